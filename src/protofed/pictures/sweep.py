"""A sweep: accuracy under varying values of a key, with the distance of prototypes beside it (FedProto's Fig. 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from protofed.pictures.page import COLOURS, STYLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from protofed.statistics import Row

ACCURACIES = ("by head", "by prototype", "server")


def draw(found: Sequence[Row], out: Path) -> None:
    """Write it; the first key of the grid is the axis, each combination of the others a line."""
    key, *_ = (found[0].setting or "=").split("=")
    values = list(dict.fromkeys(axis_value(row) for row in found))
    names = [name for name in ACCURACIES if any(name in row.figures for row in found)]
    apart = any("prototype distance" in row.figures for row in found)
    picture, axes = plt.subplots(1, 1 + apart, figsize=(4.6 * (1 + apart), 3.2), squeeze=False)
    lines(axes[0, 0], found, values, names, 100.0)
    axes[0, 0].set(ylabel="accuracy, %", xlabel=key)
    if apart:
        lines(axes[0, 1], found, values, ["prototype distance"], 1.0)
        axes[0, 1].set(ylabel="distance of local to global prototypes", xlabel=key)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    picture.tight_layout()
    picture.savefig(out, dpi=150)
    plt.close(picture)


def lines(axis: Axes, found: Sequence[Row], values: list[str], names: Sequence[str], scale: float) -> None:
    """Means over seeds with their 95 % intervals."""
    places = numbers(values)
    others = list(dict.fromkeys(" ".join(row.setting.split()[1:]) for row in found))
    for number, other in enumerate(others):
        mine = {axis_value(row): row for row in found if " ".join(row.setting.split()[1:]) == other}
        for style, name in enumerate(names):
            told = [(places[value], row.interval(name)) for value, row in mine.items()]
            there = [(place, one.mean, one.half or 0.0) for place, one in told if one]
            if not there:
                continue
            x, y, half = np.array(there).T
            colour = COLOURS[(number * len(names) + style) % len(COLOURS)]
            label = f"{name}, {other}" if other else name
            axis.errorbar(
                x, scale * y, scale * half, fmt=f"o{STYLES[style % len(STYLES)]}", color=colour, capsize=3, label=label,
                markersize=4,
            )  # fmt: skip
    if sorted(places.values()) == list(range(len(places))):
        axis.set_xticks(list(places.values()), list(places))


def axis_value(row: Row) -> str:
    """The value of the grid's first key."""
    return row.setting.split()[0].partition("=")[2] if row.setting else ""


def numbers(values: Sequence[str]) -> dict[str, float]:
    """Where values stand on the axis: where they are if they are numbers, else side by side."""
    try:
        return {value: float(value) for value in values}
    except ValueError:
        return {value: float(place) for place, value in enumerate(values)}
