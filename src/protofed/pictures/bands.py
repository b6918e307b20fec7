"""Curves over rounds: the mean of several runs per name, with a band of one standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from protofed.pictures.method_style import line_styles
from protofed.pictures.style import (
    COLUMN,
    open_axes,
    set_wrapped_title,
    use_log_ticks,
    with_column_fonts,
)

_MARKS_PER_LINE = 8


class BandPanel(NamedTuple):
    """The content of one panel."""

    title: str
    x: Sequence[float] | Mapping[str, Sequence[float]]  # of all curves, or by name; usually rounds
    curves: Mapping[str, np.ndarray]  # by name: [runs, x]
    log_y: bool = False
    x_label: str = "round"
    y_label: str = ""
    log_x: bool = False
    levels: Mapping[str, float] = {}  # by name: a horizontal line
    methods: Mapping[str, str] = {}  # by name: the method, which gives the colour and the mark


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of the `window` values around each, along the last dimension; at the ends, of those that exist.

    >>> moving_average(np.array([1.0, 2.0, 6.0, 1.0]), 3).tolist()
    [1.5, 3.0, 3.0, 3.5]
    """
    before, after, length = (window - 1) // 2, window // 2, values.shape[-1]
    means = [values[..., max(0, at - before) : at + after + 1].mean(-1) for at in range(length)]
    return np.stack(means, -1)


@with_column_fonts
def draw_bands(panels: Sequence[BandPanel], columns: int = 2, window: int = 1) -> Figure:
    """The panels side by side with one legend. With a window > 1, the mean before smoothing is a faint line."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    picture, axes = plt.subplots(rows, columns, figsize=(COLUMN * columns, 2.3 * rows), squeeze=False)
    names = list(dict.fromkeys(name for panel in panels for name in (*panel.curves, *panel.levels)))
    styles = line_styles(names, {name: method for panel in panels for name, method in panel.methods.items()})
    lines = {}
    for axis, panel in zip(axes.flat, panels, strict=False):
        for name, values in panel.curves.items():
            x = panel.x[name] if isinstance(panel.x, Mapping) else panel.x
            (colour, mark, dashes), smooth = styles[name], moving_average(values, window)
            mean, std = smooth.mean(0), smooth.std(0)
            if window > 1:
                axis.plot(x, values.mean(0), color=colour, alpha=0.35, linewidth=0.6)
            every = max(1, -(-len(mean) // _MARKS_PER_LINE))
            (lines[name],) = axis.plot(
                x, mean, dashes, color=colour, linewidth=1.3, marker=mark, markersize=3.2, markevery=(every // 2, every)
            )
            axis.fill_between(x, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
        for name, level in panel.levels.items():
            lines[name] = axis.axhline(level, linestyle=styles[name].dashes, color=styles[name].colour, linewidth=1.3)
        axis.set(xlabel=panel.x_label, ylabel=panel.y_label)
        set_wrapped_title(axis, panel.title, 1)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if panel.log_x:
            axis.set_xscale("log")
            use_log_ticks(axis.xaxis)
        if panel.log_y:
            axis.set_yscale("log")
            use_log_ticks(axis.yaxis)
        open_axes(axis)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    picture.align_ylabels()
    picture.tight_layout()
    legend_rows = sum(len(name) + 6 for name in names) / (52 * columns)  # about 52 characters fit in a column
    picture.legend(
        [lines[name] for name in names],
        names,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.02),
        borderaxespad=0,
        ncols=max(1, int(len(names) / max(legend_rows, 1))),
        frameon=False,
        handlelength=2.6,
        columnspacing=1.2,
    )
    return picture
