"""Embeddings in the plane with class prototypes as dashed rays: FedNH's Fig. 1 and 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Told apart by everybody (Okabe and Ito)."""


class Panel(NamedTuple):
    title: str
    z: np.ndarray  # [n, 2]: embeddings
    y: np.ndarray  # [n]: their classes
    prototypes: np.ndarray | None = None  # [classes, 2]


def draw(panels: Sequence[Panel], out: Path, columns: int = 4) -> None:
    """Write the panels, side by side; the ending of the name says in which format."""
    rows = -(-len(panels) // columns)
    picture, axes = plt.subplots(rows, min(columns, len(panels)), figsize=(2.6 * min(columns, len(panels)), 2.8 * rows))
    for axis, panel in zip(np.ravel(axes), panels, strict=False):
        reach = 1.1 * np.quantile(np.linalg.norm(panel.z, axis=1), 0.98)  # a few far ones would make all others small
        for label in np.unique(panel.y):
            points, colour = panel.z[panel.y == label], COLOURS[label % len(COLOURS)]
            axis.scatter(*points.T, s=1.5, color=colour, alpha=0.4, linewidths=0, rasterized=True)
            if panel.prototypes is not None:
                ray = panel.prototypes[label] / max(np.linalg.norm(panel.prototypes, axis=1)) * reach
                axis.plot([0, ray[0]], [0, ray[1]], "--", color=colour, linewidth=1.4)
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
        axis.set_title(panel.title, fontsize=8)
    picture.tight_layout()
    picture.savefig(out, dpi=150)
    plt.close(picture)
