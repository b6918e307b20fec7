"""Cosines between the server's prototypes, with boxes around superclasses (FedNH's Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.experiment.config import GIVEN
from protofed.pictures.embedded import server_prototypes
from protofed.pictures.runs import FinishedRun, titles
from protofed.pictures.style import COLUMN, make_panels, set_wrapped_title, with_column_fonts


class SimilarityPanel(NamedTuple):
    """The prototypes of one run, compared pair by pair."""

    title: str
    labels: Sequence[str | int]
    cosines: np.ndarray  # [classes, classes]
    superclass: Sequence[int] = ()  # of each class; () if the dataset has none


def _similarity_panel(run: FinishedRun, title: str) -> SimilarityPanel:
    """The cosines of a run's class prototypes, each the mean of the class's modes. Unseen classes are left out."""
    result = run.result()
    prototypes = server_prototypes(result)
    if prototypes is None:
        raise UserError(f"{run.method} has no prototypes at the server: draw a run of fedproto, fednh, mpfedcl, ...")
    seen = (prototypes.support > 0).any(1)
    if seen.sum() < 2:
        raise UserError(f"{run.folder}: at least two classes need a prototype; got {int(seen.sum())}.")
    present = (prototypes.support > 0).to(prototypes.mean.dtype).unsqueeze(-1)  # [classes, modes, 1]
    unit = F.normalize(((prototypes.mean * present).sum(1) / present.sum(1).clamp(min=1))[seen], dim=-1)
    classes, superclass = seen.nonzero().squeeze(1).tolist(), _superclasses(run)
    return SimilarityPanel(
        title,
        [result.labels[label] for label in classes],
        (unit @ unit.T).numpy(),
        [superclass[label] for label in classes] if superclass else (),
    )


def _superclasses(run: FinishedRun) -> tuple[int, ...]:
    """The superclass of each class; () if the dataset has none or cannot be read, because the picture can omit it."""
    if run.config.data.name == GIVEN:
        return ()
    try:
        return SOURCES[run.config.data.name](run.config.data.root).superclass
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


def similarity_picture(runs: Sequence[FinishedRun]) -> Figure:
    """A map of cosines per run."""
    panels = [_similarity_panel(run, title) for run, title in zip(runs, titles(runs), strict=True)]
    return draw_similarity([group_by_superclass(panel) for panel in panels])


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
            axis.set(xlabel=f"{classes} classes" + ", by superclass" * bool(panel.superclass))
        if classes <= 10 and alone:
            for row, column in np.argwhere(~np.isnan(values)):
                text = f"{values[row, column]:.2f}".replace("0.", ".")
                colour = "black" if values[row, column] > (low + high) / 2 else "white"
                axis.text(column, row, text, ha="center", va="center", fontsize=5.5, color=colour)
        for first, count in superclass_blocks(panel.superclass):
            box = Rectangle((first - 0.5, first - 0.5), count, count, fill=False, edgecolor="white", linewidth=0.7)
            box.set_path_effects([withStroke(linewidth=1.7, foreground="black")])  # visible on every colour
            axis.add_patch(box)
    picture.tight_layout()
    picture.colorbar(image, ax=axes, label="cosine", shrink=0.75, pad=0.03, extend="both")
    return picture
