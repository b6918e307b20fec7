"""A sweep: accuracy under varying values of a key, with the distance of prototypes beside it (FedProto's Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.measures.intervals import SettingRow
from protofed.pictures.style import COLOURS, MARKS, STYLES, lettered, make_panels, open_axes

_ACCURACIES = ("by head", "by prototype", "server")
_APART = "prototype distance"


@lettered
def draw_sweep(found: Sequence[SettingRow]) -> Figure:
    """The first key of the grid is the axis, each combination of the others a line; means and 95 % intervals."""
    key = found[0].setting.partition("=")[0]
    names = [name for name in _ACCURACIES if any(name in row.figures for row in found)]
    apart = any(_APART in row.figures for row in found)
    made, axes = make_panels(1 + apart, 1, 1.9)
    _sweep_lines(axes[0], found, names, 100.0)
    axes[0].set(ylabel="accuracy in %", xlabel="" if apart else key)
    if apart:
        _sweep_lines(axes[1], found, [_APART], 1.0)
        axes[1].set(ylabel="distance of local\nto global prototypes", xlabel=key)
    for axis in axes:
        open_axes(axis)
    made.tight_layout()
    handles, labels = axes[0].get_legend_handles_labels()
    columns = 1 if max(map(len, labels)) > 24 else 3
    made.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.01), ncols=columns, frameon=False)
    return made


def _sweep_lines(axis: Axes, found: Sequence[SettingRow], names: Sequence[str], scale: float) -> None:
    """A line for each name and each combination of the grid's other keys."""
    places = numbers(list(dict.fromkeys(_axis_value(row) for row in found)))
    others = list(dict.fromkeys(" ".join(row.setting.split()[1:]) for row in found))
    for number, other in enumerate(others):
        mine = [row for row in found if " ".join(row.setting.split()[1:]) == other]
        for place, name in enumerate(names):
            told = [(places[_axis_value(row)], row.interval(name)) for row in mine]
            there = sorted((at, one.mean, one.half or 0.0) for at, one in told if one)
            if there:
                x, y, half = np.array(there).T
                kind = number * len(names) + place
                look = f"{MARKS[kind % len(MARKS)]}{STYLES[place % len(STYLES)]}"
                axis.errorbar(
                    x,
                    scale * y,
                    scale * half,
                    fmt=look,
                    color=COLOURS[kind % len(COLOURS)],
                    capsize=2,
                    markersize=3,
                    linewidth=1.2,
                    label=f"{name}, {other}" if other else name,
                )
    if not all(map(_is_number, places)):
        axis.set_xticks(list(places.values()), list(places))


def _axis_value(row: SettingRow) -> str:
    """The value of the grid's first key."""
    if not row.setting:
        raise UserError("This sweep has no grid: there is nothing along which to draw it.")
    return row.setting.split()[0].partition("=")[2]


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def numbers(values: Sequence[str]) -> dict[str, float]:
    """Where values stand on the axis: where they are if they are numbers, else side by side."""
    if all(map(_is_number, values)):
        return {value: float(value) for value in values}
    return {value: float(place) for place, value in enumerate(values)}
