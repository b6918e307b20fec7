"""Curves over rounds: for each name the mean of several runs, with a band of one standard deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from protofed.pictures.spiral import COLOURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STYLES = ("-", "--", "-.", ":")
"""So that lines can be told apart without colours, too."""


class Panel(NamedTuple):
    title: str
    rounds: Sequence[int]
    curves: Mapping[str, np.ndarray]  # for each name [runs, rounds]
    log: bool = False


def draw(panels: Sequence[Panel], out: Path, columns: int = 2) -> None:
    """Write the panels, side by side, with one legend; the ending of the name says in which format."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    picture, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 2.9 * rows), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for number, (name, values) in enumerate(panel.curves.items()):
            middle, wide = values.mean(0), values.std(0)
            colour = COLOURS[number % len(COLOURS)]
            axis.plot(panel.rounds, middle, STYLES[number % len(STYLES)], color=colour, label=name, linewidth=1.5)
            axis.fill_between(panel.rounds, middle - wide, middle + wide, color=colour, alpha=0.15, linewidth=0)
        axis.set_title(panel.title, fontsize=9)
        axis.set_xlabel("round")
        axis.set_yscale("log" if panel.log else "linear")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    lines, names = axes[0, 0].get_legend_handles_labels()
    picture.legend(lines, names, loc="lower center", ncols=len(names), frameon=False, fontsize=9)
    picture.tight_layout(rect=(0, 0.25 / (2.9 * rows), 1, 1))
    picture.savefig(out, dpi=150)
    plt.close(picture)
