"""Embeddings of two dimensions with class prototypes as dashed rays, as in FedNH's Fig. 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.measures.question import state_with_data
from protofed.pictures.embedded import client_params
from protofed.pictures.runs import FinishedRun, titles
from protofed.pictures.style import COLOURS, COLUMN, set_wrapped_title, with_column_fonts, write_picture

if TYPE_CHECKING:
    from pathlib import Path


class SpiralPanel(NamedTuple):
    """The embeddings of one model."""

    title: str
    z: np.ndarray  # [n, 2]: embeddings
    y: np.ndarray  # [n]: their classes
    prototypes: np.ndarray | None = None  # [classes, 2]


@with_column_fonts
def _draw_spirals(panels: Sequence[SpiralPanel], columns: int = 4) -> Figure:
    """The panels side by side, each half a printed column wide."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    size = (COLUMN / 2 * columns, (COLUMN / 2 + 0.4) * rows)
    picture, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        reach = 1.1 * np.quantile(np.linalg.norm(panel.z, axis=1), 0.98)  # so that outliers do not set the scale
        for label in np.unique(panel.y):
            points, colour = panel.z[panel.y == label], COLOURS[label % len(COLOURS)]
            axis.scatter(*points.T, s=1.0, color=colour, alpha=0.4, linewidths=0, rasterized=True)
            if panel.prototypes is not None:
                ray = panel.prototypes[label] / max(np.linalg.norm(panel.prototypes, axis=1)) * reach
                axis.plot([0, ray[0]], [0, ray[1]], "--", color=colour, linewidth=1.4)
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
        set_wrapped_title(axis, panel.title, 2)
    picture.tight_layout(w_pad=0.5)
    return picture


def write_spirals(panels: Sequence[SpiralPanel], out: Path, columns: int = 4) -> None:
    """Write the panels in the format that the file name's ending says."""
    write_picture(_draw_spirals(panels, columns), out)


def spiral_picture(runs: Sequence[FinishedRun], clients: Sequence[int]) -> Figure:
    """Each run's model, or the models of some clients, on the balanced test set, with the rows of its head as rays."""
    panels = []
    for run, title in zip(runs, titles(runs), strict=True):
        state = state_with_data(run.result())
        members = state.members
        if members.nets[0].dim != 2:
            raise UserError(
                f"{run.folder}: its embeddings have {members.nets[0].dim} dimensions; this picture needs 2 "
                "(net.name=mlp_spiral). Use --what tsne or --what pca to project them."
            )
        for number in clients or (None,):
            params = state.model(0).params if number is None else client_params(state, number)
            net = members.nets[number or 0]
            z, y = net.features(params, members.balanced[0])
            panel_title = title if number is None else f"{title}, client {number}"
            panels.append(SpiralPanel(panel_title, z.numpy(), y.numpy(), params[net.linear_head].numpy()))
    return _draw_spirals(panels, columns=2)
