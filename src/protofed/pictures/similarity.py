"""Cosines between prototypes or between the rows of a head, with boxes around superclasses (FedNH's Fig. 3 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor

from protofed.data.sources import SOURCES
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.experiment.groups import titles
from protofed.experiment.results import Result
from protofed.experiment.stored import GIVEN, StoredRun
from protofed.measures.question import state_with_data
from protofed.pictures.embedded import client_params, server_prototypes
from protofed.pictures.style import COLUMN, make_panels, set_wrapped_title, with_column_fonts


class SimilarityPanel(NamedTuple):
    """The prototypes of one run, compared pair by pair."""

    title: str
    labels: Sequence[str | int]
    cosines: np.ndarray  # [classes, classes]
    superclass: Sequence[int] = ()  # of each class; () if the dataset has none


def similarity_panels(runs: Sequence[StoredRun], clients: Sequence[int]) -> list[SimilarityPanel]:
    """The panels of all runs: of the server, or of these clients."""
    return [
        group_by_superclass(_similarity_panel(run, title, client))
        for run, title in zip(runs, titles(runs), strict=True)
        for client in clients or (None,)
    ]


def _similarity_panel(run: StoredRun, title: str, client: int | None) -> SimilarityPanel:
    """The cosines between the class vectors of a run's server or of a client. Classes without a vector are left out."""
    result = run.result()
    vectors, seen, source = _client_rows(result, client) if client is not None else _server_vectors(run, result)
    if seen.sum() < 2:
        raise UserError(f"{run.folder}: at least two classes need a prototype; got {int(seen.sum())}.")
    unit = F.normalize(vectors[seen], dim=-1)
    classes, superclass = seen.nonzero().squeeze(1).tolist(), _superclasses(run)
    return SimilarityPanel(
        title + source,
        [result.labels[label] for label in classes],
        (unit @ unit.T).numpy(),
        [superclass[label] for label in classes] if superclass else (),
    )


def _server_vectors(run: StoredRun, result: Result) -> tuple[Tensor, Tensor, str]:
    """A vector per class [classes, dim], which classes have one [classes], and what they are, for the title.

    They are the server's prototypes, each the mean of the class's modes. A server without prototypes but with a model
    for all clients has the rows of its head.
    """
    prototypes = server_prototypes(result)
    if prototypes is not None:
        present = (prototypes.support > 0).to(prototypes.mean.dtype).unsqueeze(-1)  # [classes, modes, 1]
        means = (prototypes.mean * present).sum(1) / present.sum(1).clamp(min=1)
        return means, (prototypes.support > 0).any(1), ""
    state = result.state
    server = {**getattr(state.server, "params", {}), **getattr(state.server, "head", {})}  # creff: its retrained head
    rows = server.get(state.members.nets[0].linear_head)
    if rows is None:
        raise UserError(
            f"{run.method} has neither prototypes nor a shared head at the server. Draw the head of a client with "
            "--client, or a run of fedproto, fednh, fedavg, ..."
        )
    return rows, torch.ones(len(rows), dtype=torch.bool), ": rows of the shared head"


def _client_rows(result: Result, client: int) -> tuple[Tensor, Tensor, str]:
    """The same for a client: the rows of the head of its model (see `client_params`)."""
    state = state_with_data(result)
    with one_thread():
        params = client_params(state, client)
    rows = params[state.members.nets[client].linear_head]
    return rows, torch.ones(len(rows), dtype=torch.bool), f": rows of the head of {state.members.client_name(client)}"


def _superclasses(run: StoredRun) -> tuple[int, ...]:
    """The superclass of each class; () if the dataset has none or cannot be read, because the picture can omit it."""
    if run.config.data.name == GIVEN:
        return ()
    try:
        return SOURCES.find(run.config.data.name)[1](run.config.data.root).superclass
    except UserError:
        return ()


def group_by_superclass(panel: SimilarityPanel) -> SimilarityPanel:
    """The panel with the classes of a superclass next to each other."""
    if not panel.superclass:
        return panel
    order = np.argsort(panel.superclass, kind="stable")
    return SimilarityPanel(
        panel.title,
        [panel.labels[at] for at in order],
        panel.cosines[np.ix_(order, order)],
        [panel.superclass[at] for at in order],
    )


def superclass_blocks(superclass: Sequence[int]) -> list[tuple[int, int]]:
    """The first class of each superclass, and its number of classes.

    >>> superclass_blocks([0, 0, 3, 3, 3, 7])
    [(0, 2), (2, 3), (5, 1)]
    """
    _, first, counts = np.unique(superclass, return_index=True, return_counts=True)
    return list(zip(first.tolist(), counts.tolist(), strict=True))


def similarity_picture(runs: Sequence[StoredRun], clients: Sequence[int] = ()) -> Figure:
    """A map of cosines per run, or per run and client."""
    return draw_similarity(similarity_panels(runs, clients))


@with_column_fonts
def draw_similarity(panels: Sequence[SimilarityPanel]) -> Figure:
    """A map per panel, all with the same colours. The diagonal, which is always 1, is left out."""
    alone = len(panels) == 1
    picture, axes = make_panels(len(panels), 2, COLUMN - 0.3 if alone else COLUMN / 2 + 0.2)
    maps = [np.where(np.eye(len(panel.cosines), dtype=bool), np.nan, panel.cosines) for panel in panels]
    every = np.concatenate([values[~np.isnan(values)] for values in maps])
    low, high = np.quantile(every, [0.005, 0.995])  # so that outliers do not set the colours
    for axis, panel, values in zip(axes, panels, maps, strict=True):
        classes = len(values)
        image = axis.imshow(values, cmap="viridis", vmin=low, vmax=max(high, low + 1e-6), interpolation="nearest")
        axis.set(facecolor="#dddddd", xticks=[], yticks=[])
        set_wrapped_title(axis, panel.title, 1 if alone else 3)  # narrower, for the colour bar
        if classes <= (40 if alone else 20):
            names = [str(label)[:16] for label in panel.labels]
            size = min(6.5, 180 / classes / (1 if alone else 2))
            axis.set_yticks(range(classes), names, fontsize=size)
            axis.set_xticks(range(classes), names, fontsize=size, rotation=90 if max(map(len, names)) > 2 else 0)
        else:
            by_superclass = ", by superclass" if alone else ",\nby superclass"
            axis.set(xlabel=f"{classes} classes{by_superclass if panel.superclass else ''}")
        if classes <= 10 and alone:
            write_cosines(axis, values, (low + high) / 2, 5.5)
        for first, count in superclass_blocks(panel.superclass):
            box = Rectangle((first - 0.5, first - 0.5), count, count, fill=False, edgecolor="white", linewidth=0.7)
            box.set_path_effects([withStroke(linewidth=1.7, foreground="black")])  # visible on every colour
            axis.add_patch(box)
    picture.tight_layout()
    picture.colorbar(image, ax=axes, label="cosine", shrink=0.75, pad=0.03, extend="both")
    return picture


def write_cosines(axis: Axes, cosines: np.ndarray, middle: float, size: float) -> None:
    """Write the values into the cells of a map, dark on the light colours above the middle; nan is left out."""
    for row, column in np.argwhere(~np.isnan(cosines)):
        text = f"{cosines[row, column]:.2f}".replace("0.", ".")
        colour = "black" if cosines[row, column] > middle else "white"
        axis.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)
