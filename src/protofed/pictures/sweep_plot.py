"""A sweep: accuracy along the values of a key, with the distance of prototypes below (FedProto's Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from protofed.experiment.table import is_number
from protofed.measures.intervals import SettingRow
from protofed.pictures.method_style import method_style
from protofed.pictures.style import COLOURS, MARKS, STYLES, make_panels, open_axes, with_column_fonts

_ACCURACIES = ("by head", "by prototype", "server")
_DISTANCE = "prototype distance"
_APART = 0.16
"""Distance on the axis between the points of one category."""
_FILLS = ("full", "none", "left", "right")
"""How the marks of several figures are filled."""


class _Point(NamedTuple):
    """A setting on the x axis: its value there, and the line or colour that it belongs to."""

    row: SettingRow
    value: str
    group: str


@with_column_fonts
def draw_sweep(rows: Sequence[SettingRow], accuracies: Sequence[str] = _ACCURACIES) -> Figure:
    """Means with 95 % intervals.

    If the values of the grid's first key are numbers, they are the x axis, and the other keys' combinations are lines.
    Otherwise every setting, or every value of the first key, is a category: points with bars, no lines.
    """
    key, points = _points(rows)
    names = [name for name in accuracies if any(name in row.figures for row in rows)]
    has_distance = sum(_DISTANCE in row.figures for row in rows) > min(1, len(rows) - 1)  # one point says nothing
    picture, axes = make_panels(1 + has_distance, 1, 1.9, share_x=True)
    draw = _lines if all(is_number(point.value) for point in points) else _categories
    handles = draw(axes[0], points, names, 100.0)
    low, high = axes[0].get_ylim()
    axes[0].set(ylabel="accuracy in %", ylim=(max(low, -3), min(high, 103)))  # an interval may reach further
    if has_distance:
        draw(axes[1], points, [_DISTANCE], 1.0)
        axes[1].set(ylabel="distance of local\nto global prototypes")
    axes[-1].set(xlabel=key)
    for axis in axes:
        open_axes(axis)
    picture.align_ylabels()
    picture.tight_layout()
    columns = 1 if max((len(str(handle.get_label())) for handle in handles), default=0) > 24 else 3
    if handles:
        picture.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.01), ncols=columns, frameon=False)
    return picture


def _points(rows: Sequence[SettingRow]) -> tuple[str, list[_Point]]:
    """The key of the x axis, and every setting as a point. Settings without a common key are categories."""
    keys = [list(row.keys) for row in rows]
    first = keys[0][0] if keys[0] else ""
    if not first or any(one != keys[0] for one in keys) or any("=" not in row.setting for row in rows):
        return "", [_Point(row, row.setting or "as it is", "") for row in rows]
    others = [" ".join(f"{key}={value}" for key, value in list(row.keys.items())[1:]) for row in rows]
    return first, [_Point(row, row.keys[first], other) for row, other in zip(rows, others, strict=True)]


def _lines(axis: Axes, points: Sequence[_Point], names: Sequence[str], scale: float) -> list[Line2D]:
    """A line per name and group. Returns the entries of the legend."""
    handles = []
    for number, group in enumerate(dict.fromkeys(point.group for point in points)):
        of_line = [point for point in points if point.group == group]
        for at, name in enumerate(names):
            intervals = [(float(point.value), point.row.interval(name)) for point in of_line]
            found = sorted((x, interval.mean, interval.half or 0.0) for x, interval in intervals if interval)
            if not found:
                continue
            x, y, half = np.array(found).T
            line = number * len(names) + at
            style: dict[str, Any] = {"color": COLOURS[line % len(COLOURS)], "marker": MARKS[line % len(MARKS)]}
            if "method.name=" in group:  # the colour of the method, dashes by the figure
                own = method_style(of_line[0].row.method or group.split("method.name=")[1])
                style = {"color": own.colour, "marker": own.mark}
            style |= {"linestyle": STYLES[at % len(STYLES)], "markersize": 3, "linewidth": 1.2}
            axis.errorbar(x, scale * y, scale * half, capsize=2, **style)
            handles.append(Line2D([], [], label=f"{name}, {group}" if group else name, **style))
    return handles


def _categories(axis: Axes, points: Sequence[_Point], names: Sequence[str], scale: float) -> list[Line2D]:
    """A point with a bar per setting and name, next to each other; no lines, because categories have no order."""
    values = list(dict.fromkeys(point.value for point in points))
    groups = list(dict.fromkeys(point.group for point in points))
    count = len(names) * len(groups)
    for point in points:
        own = method_style(point.row.method or point.value)
        for at, name in enumerate(names):
            interval = point.row.interval(name)
            if interval is None:
                continue
            slot = groups.index(point.group) * len(names) + at
            shift = (slot - (count - 1) / 2) * min(_APART, 0.8 / max(count, 1))
            mark = own.mark if len(groups) == 1 else MARKS[groups.index(point.group) % len(MARKS)]
            axis.errorbar(
                values.index(point.value) + shift,
                scale * interval.mean,
                scale * (interval.half or 0.0),
                linestyle="none",
                color=own.colour,
                marker=mark,
                fillstyle=_FILLS[at % len(_FILLS)],
                capsize=2,
                markersize=4.5,
                linewidth=1.0,
            )
    turned = sum(len(value) + 2 for value in values) > 52  # about 52 characters fit below a column
    axis.set_xticks(range(len(values)), values, rotation=30 if turned else 0, ha="right" if turned else "center")
    axis.set_xlim(-0.5, len(values) - 0.5)
    handles = []
    for number, group in enumerate(groups):
        for at, name in enumerate(names):
            mark = "o" if len(groups) == 1 else MARKS[number % len(MARKS)]
            label = f"{name}, {group}" if group else name
            style: dict[str, Any] = {"linestyle": "none", "color": "#555555", "marker": mark, "markersize": 4.5}
            style["fillstyle"] = _FILLS[at % len(_FILLS)]
            handles.append(Line2D([], [], label=label, **style))
    return handles
