"""Points in the plane: embeddings with class prototypes as dashed rays (FedNH's Fig. 1 and 2), and inputs (Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from protofed.core import AnyMethod, Net, Params
from protofed.errors import UserError
from protofed.experiment.groups import titles
from protofed.experiment.stored import StoredRun
from protofed.measures.question import state_with_data
from protofed.pictures.embedded import client_params
from protofed.pictures.style import COLOURS, COLUMN, set_wrapped_title, with_column_fonts, write_picture

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.examples import Examples


class SpiralPanel(NamedTuple):
    """The embeddings of one model."""

    title: str
    z: np.ndarray  # [n, 2]: embeddings
    y: np.ndarray  # [n]: their classes
    prototypes: np.ndarray | None = None  # [classes, 2]


def embedding_panel(title: str, method: AnyMethod, net: Net, params: Params, examples: Examples) -> SpiralPanel:
    """A model's embeddings of the examples, with the rows of its head.

    If only the direction of an embedding counts (fednh), the embeddings of each class are on a circle of their own:
    the first class on the largest, so that classes with the same direction remain visible.
    """
    z, y = net.features(params, examples)
    compared = method.compared_embeddings(z)
    if compared is not None and not torch.equal(compared, z):
        z = compared * (1 - 0.6 * y / net.classes).unsqueeze(1)
    return SpiralPanel(title, z.numpy(), y.numpy(), params[net.linear_head].numpy())


@with_column_fonts
def _draw_spirals(panels: Sequence[SpiralPanel], columns: int = 4) -> Figure:
    """The panels side by side, each half a printed column wide."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    size = (COLUMN / 2 * columns, (COLUMN / 2 + 0.4) * rows + 0.35)  # with the legend
    picture, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
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
    classes = [int(label) for label in np.unique(np.concatenate([panel.y for panel in panels]))]
    handles = [
        Line2D([], [], color=COLOURS[label % len(COLOURS)], marker="o", linestyle="", markersize=3, label=str(label))
        for label in classes
    ]
    picture.legend(
        handles=handles,
        title="class",
        loc="outside lower center",
        ncols=10,
        frameon=False,
        handletextpad=0.0,
        columnspacing=0.8,
    )
    return picture


def write_spirals(panels: Sequence[SpiralPanel], out: Path, columns: int = 4) -> None:
    """Write the panels in the format that the file name's ending says."""
    write_picture(_draw_spirals(panels, columns), out)


def input_panel(title: str, sets: Sequence[Examples]) -> SpiralPanel:
    """The inputs of these sets, which have two columns, and their classes."""
    taken = [examples.take(torch.arange(len(examples))) for examples in sets]
    x, y = (torch.cat(parts).numpy() for parts in zip(*taken, strict=True))
    return SpiralPanel(title, x, y)


def input_picture(runs: Sequence[StoredRun]) -> Figure:
    """The training examples of all clients and the balanced test set of each run, as in FedNH's Fig. 5."""
    panels = []
    for run, title in zip(runs, titles(runs), strict=True):
        members = state_with_data(run.result()).members
        if any(examples.shape != (2,) for examples in members.train):
            raise UserError(
                f"{run.folder}: this picture needs inputs of two columns, such as those of data.name=spiral."
            )
        panels.append(input_panel(f"{title}, training set", members.train))
        panels.append(input_panel(f"{title}, test set", members.balanced))
    return _draw_spirals(panels, columns=2)


def spiral_picture(runs: Sequence[StoredRun], clients: Sequence[int]) -> Figure:
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
            panel_title = title if number is None else f"{title}, {members.client_name(number)}"
            net, method = members.nets[number or 0], state.config.method
            panels.append(embedding_panel(panel_title, method, net, params, members.balanced[0]))
    return _draw_spirals(panels, columns=2)
