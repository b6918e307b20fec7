"""How alike the server's prototypes are: cosines of all pairs, with boxes around superclasses (FedNH's Fig. 3)."""

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
from protofed.pictures.style import COLUMN, head, lettered, make_panels


class Alike(NamedTuple):
    title: str
    labels: Sequence[str | int]
    cosines: np.ndarray  # [classes, classes]
    superclass: Sequence[int] = ()  # of each class; () if there are none


def _most_similar(run: FinishedRun, title: str) -> Alike:
    """A run's prototypes; of several of a class the mean; classes that nobody has seen are left out."""
    result = run.result()
    found = server_prototypes(result)
    if found is None:
        raise UserError(f"{run.method} has no prototypes at the server: draw a run of fedproto, fednh, mpfedcl, ...")
    seen = (found.support > 0).any(1)
    if seen.sum() < 2:
        raise UserError(f"{run.folder}: fewer than two classes have a prototype.")
    there = (found.support > 0).to(found.mean.dtype).unsqueeze(-1)
    unit = F.normalize(((found.mean * there).sum(1) / there.sum(1).clamp(min=1))[seen], dim=-1)
    places, over = seen.nonzero().squeeze(1).tolist(), _superclasses(run)
    return Alike(
        title,
        [result.labels[at] for at in places],
        (unit @ unit.T).numpy(),
        [over[at] for at in places] if over else (),
    )


def _superclasses(run: FinishedRun) -> tuple[int, ...]:
    """For each class its superclass, if the data have some and are at hand: the picture can do without."""
    if run.config.data.name == GIVEN:
        return ()
    try:
        return SOURCES[run.config.data.name](run.config.data.root).superclass
    except UserError:
        return ()


def class_order(shown: Alike) -> Alike:
    """The same with the classes of a superclass beside each other."""
    if not shown.superclass:
        return shown
    order = np.argsort(shown.superclass, kind="stable")
    return Alike(
        shown.title,
        [shown.labels[at] for at in order],
        shown.cosines[np.ix_(order, order)],
        [shown.superclass[at] for at in order],
    )


def boxes(superclass: Sequence[int]) -> list[tuple[int, int]]:
    """Where each superclass begins, and how many classes it has.

    >>> boxes([0, 0, 3, 3, 3, 7])
    [(0, 2), (2, 3), (5, 1)]
    """
    _, first, counts = np.unique(superclass, return_index=True, return_counts=True)
    return list(zip(first.tolist(), counts.tolist(), strict=True))


def similarity_picture(runs: Sequence[FinishedRun]) -> Figure:
    return draw_similarity(
        [class_order(_most_similar(run, title)) for run, title in zip(runs, titles(runs), strict=True)]
    )


@lettered
def draw_similarity(shown: Sequence[Alike]) -> Figure:
    """A map for each, all with the same colours; the diagonal, always 1, is left out."""
    made, axes = make_panels(len(shown), 2, COLUMN - 0.3 if len(shown) == 1 else COLUMN / 2 + 0.2)
    cut = [np.where(np.eye(len(one.cosines), dtype=bool), np.nan, one.cosines) for one in shown]
    known = np.concatenate([values[~np.isnan(values)] for values in cut])
    low, high = np.quantile(known, [0.005, 0.995])  # a few far ones would make all others alike
    for axis, one, values in zip(axes, shown, cut, strict=True):
        classes = len(values)
        image = axis.imshow(values, cmap="viridis", vmin=low, vmax=max(high, low + 1e-6), interpolation="nearest")
        axis.set(facecolor="#dddddd", xticks=[], yticks=[])
        head(axis, one.title, 1 if len(shown) == 1 else 3)  # the colours take room
        if classes <= (40 if len(shown) == 1 else 20):
            names = [str(label)[:16] for label in one.labels]
            size = min(6.5, 180 / classes / (1 if len(shown) == 1 else 2))
            axis.set_yticks(range(classes), names, fontsize=size)
            axis.set_xticks(range(classes), names, fontsize=size, rotation=90 if max(map(len, names)) > 2 else 0)
        else:
            axis.set(xlabel=f"{classes} classes" + ", by superclass" * bool(one.superclass))
        if classes <= 10 and len(shown) == 1:
            for row, column in np.argwhere(~np.isnan(values)):
                bright = values[row, column] > (low + high) / 2
                told = f"{values[row, column]:.2f}".replace("0.", ".")
                shade = "black" if bright else "white"
                axis.text(column, row, told, ha="center", va="center", fontsize=5.5, color=shade)
        for first, count in boxes(one.superclass):
            box = Rectangle((first - 0.5, first - 0.5), count, count, fill=False, edgecolor="white", linewidth=0.7)
            box.set_path_effects([withStroke(linewidth=1.7, foreground="black")])  # seen on every colour
            axis.add_patch(box)
    made.tight_layout()
    made.colorbar(image, ax=axes, label="cosine", shrink=0.75, pad=0.03, extend="both")
    return made
