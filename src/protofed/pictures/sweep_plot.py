"""A sweep: accuracy along the values of a key, with the distance of prototypes below (FedProto's Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.measures.intervals import SettingRow
from protofed.pictures.style import COLOURS, MARKS, STYLES, make_panels, open_axes, with_column_fonts

_ACCURACIES = ("by head", "by prototype", "server")
_DISTANCE = "prototype distance"


@with_column_fonts
def draw_sweep(rows: Sequence[SettingRow], accuracies: Sequence[str] = _ACCURACIES) -> Figure:
    """Means with 95 % intervals. The first key of the grid is the x axis; the other keys' combinations are lines."""
    key = rows[0].setting.partition("=")[0]
    names = [name for name in accuracies if any(name in row.figures for row in rows)]
    has_distance = any(_DISTANCE in row.figures for row in rows)
    picture, axes = make_panels(1 + has_distance, 1, 1.9)
    _sweep_lines(axes[0], rows, names, 100.0)
    axes[0].set(ylabel="accuracy in %", xlabel="" if has_distance else key)
    if has_distance:
        _sweep_lines(axes[1], rows, [_DISTANCE], 1.0)
        axes[1].set(ylabel="distance of local\nto global prototypes", xlabel=key)
    for axis in axes:
        open_axes(axis)
    picture.tight_layout()
    handles, labels = axes[0].get_legend_handles_labels()
    columns = 1 if max(map(len, labels)) > 24 else 3
    picture.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.01), ncols=columns, frameon=False)
    return picture


def _sweep_lines(axis: Axes, rows: Sequence[SettingRow], names: Sequence[str], scale: float) -> None:
    """A line per name and combination of the grid's other keys."""
    positions = axis_positions(list(dict.fromkeys(_axis_value(row) for row in rows)))
    others = list(dict.fromkeys(_other_keys(row) for row in rows))
    for number, other in enumerate(others):
        of_line = [row for row in rows if _other_keys(row) == other]
        for name_number, name in enumerate(names):
            intervals = [(positions[_axis_value(row)], row.interval(name)) for row in of_line]
            points = sorted((x, interval.mean, interval.half or 0.0) for x, interval in intervals if interval)
            if points:
                x, y, half = np.array(points).T
                line = number * len(names) + name_number
                axis.errorbar(
                    x,
                    scale * y,
                    scale * half,
                    fmt=f"{MARKS[line % len(MARKS)]}{STYLES[name_number % len(STYLES)]}",
                    color=COLOURS[line % len(COLOURS)],
                    capsize=2,
                    markersize=3,
                    linewidth=1.2,
                    label=f"{name}, {other}" if other else name,
                )
    if not all(map(_is_number, positions)):
        axis.set_xticks(list(positions.values()), list(positions))


def _axis_value(row: SettingRow) -> str:
    """The value of the grid's first key."""
    if not row.setting:
        raise UserError("This sweep has no grid, so there is no axis to draw it along. Run it with --grid.")
    return row.setting.split()[0].partition("=")[2]


def _other_keys(row: SettingRow) -> str:
    """The grid's other keys with their values."""
    return " ".join(row.setting.split()[1:])


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def axis_positions(values: Sequence[str]) -> dict[str, float]:
    """Positions of values on the axis: the values themselves if all are numbers, otherwise 0, 1, 2, ..."""
    if all(map(_is_number, values)):
        return {value: float(value) for value in values}
    return {value: float(position) for position, value in enumerate(values)}
