"""Curves over rounds: for each name the mean of several runs, with a band of one standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from protofed.pictures.style import COLOURS, COLUMN, STYLES, head, in_powers, lettered, open_axes, write_picture

if TYPE_CHECKING:
    from pathlib import Path


class BandPanel(NamedTuple):
    title: str
    rounds: Sequence[float] | Mapping[str, Sequence[float]]  # for all curves, or for each name
    curves: Mapping[str, np.ndarray]  # for each name [runs, rounds]
    log: bool = False
    along: str = "round"
    upward: str = ""
    log_along: bool = False
    levels: Mapping[str, float] = {}  # for each name a line from side to side


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of the `window` values around each, along the last dimension; at the ends of those that are there.

    >>> moving_average(np.array([1.0, 2.0, 6.0, 1.0]), 3).tolist()
    [1.5, 3.0, 3.0, 3.5]
    """
    before, after, length = (window - 1) // 2, window // 2, values.shape[-1]
    parts = [values[..., max(0, at - before) : at + after + 1].mean(-1) for at in range(length)]
    return np.stack(parts, -1)


@lettered
def draw_bands(panels: Sequence[BandPanel], columns: int = 2, window: int = 1) -> Figure:
    """The panels, side by side, with one legend; with a window the mean as it is stays as a faint line."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    made, axes = plt.subplots(rows, columns, figsize=(COLUMN * columns, 2.3 * rows), squeeze=False)
    names = list(dict.fromkeys(name for panel in panels for name in (*panel.curves, *panel.levels)))
    looks = {name: (STYLES[at % len(STYLES)], COLOURS[at % len(COLOURS)]) for at, name in enumerate(names)}
    lines = {}
    for axis, panel in zip(axes.flat, panels, strict=False):
        for name, values in panel.curves.items():
            along = panel.rounds[name] if isinstance(panel.rounds, Mapping) else panel.rounds
            (style, colour), smooth = looks[name], moving_average(values, window)
            middle, wide = smooth.mean(0), smooth.std(0)
            if window > 1:
                axis.plot(along, values.mean(0), color=colour, alpha=0.35, linewidth=0.6)
            (lines[name],) = axis.plot(along, middle, style, color=colour, linewidth=1.3)
            axis.fill_between(along, middle - wide, middle + wide, color=colour, alpha=0.18, linewidth=0)
        for name, level in panel.levels.items():
            lines[name] = axis.axhline(level, linestyle=looks[name][0], color=looks[name][1], linewidth=1.3)
        axis.set(xlabel=panel.along, ylabel=panel.upward)
        head(axis, panel.title, 1)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if panel.log_along:
            axis.set_xscale("log")
            in_powers(axis.xaxis)
        if panel.log:
            axis.set_yscale("log")
            in_powers(axis.yaxis)
        open_axes(axis)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    made.tight_layout()
    broad = sum(len(name) + 6 for name in names) / (52 * columns)  # how many lines the legend would fill
    in_row = max(1, int(len(names) / max(broad, 1)))
    made.legend(
        [lines[name] for name in names],
        names,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.02),
        borderaxespad=0,
        ncols=in_row,
        frameon=False,
        handlelength=2.6,
        columnspacing=1.2,
    )
    return made


def write_bands(panels: Sequence[BandPanel], out: Path, columns: int = 2) -> None:
    """Write the panels; the ending of the name says in which format."""
    write_picture(draw_bands(panels, columns), out)
