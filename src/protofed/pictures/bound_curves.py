"""A run next to the convergence bound of its method's paper: change of the loss, constants, and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from protofed.errors import UserError
from protofed.experiment.bounds.monitor import bounds_of, read_bounds
from protofed.experiment.bounds.paper import BoundRow
from protofed.experiment.stored import StoredRun
from protofed.pictures.style import (
    COLOURS,
    MARKS,
    STYLES,
    make_panels,
    open_axes,
    set_wrapped_title,
    use_log_ticks,
    with_column_fonts,
)

_ROUND = {"measured": "change", "bound": "bound", "bound as printed": "printed"}
_PARTS = {
    "local training": "training_change",
    "its bound": "training_bound",
    "the server's step": "server_change",
    "its bound ": "server_bound",
}
_CONSTANTS = {"L1": "L1", "L2": "L2", "G": "G", "σ²": "sigma2", "S": "S", "δ²": "delta2"}


@with_column_fonts
def bound_picture(runs: Sequence[StoredRun]) -> Figure:
    """Panels one below the other; lines are means over clients, bands reach from the smallest to the largest client."""
    if len(runs) > 1:
        raise UserError(f"--what bounds draws one run; got {len(runs)} folders.")
    (run,) = runs
    rows, bounds = read_bounds(run.folder), bounds_of(run.config.method)
    if not rows or bounds is None:
        raise UserError(
            f"{run.folder} has no bounds.jsonl. Run it with --set run.monitor=5, with fedproto, fednh or mpfedcl."
        )
    panels: list[tuple[str, str, Callable[[Axes], None]]] = [
        (f"{run.method} on {run.data}: {bounds.theorem}", "change per round", lambda a: _change_lines(a, rows, _ROUND)),
        ("the two parts of the bound", "change", lambda a: _change_lines(a, rows, _PARTS)),
        ("estimated constants", "", lambda a: _constant_lines(a, rows)),
    ]
    if bounds.limits:
        panels.append((bounds.corollary, "limit / value used", lambda a: _limit_lines(a, rows, bounds.limits)))
    picture, axes = make_panels(len(panels), 1, 1.9)
    for axis, (title, label, draw) in zip(axes, panels, strict=True):
        draw(axis)
        axis.set(xlabel="round", ylabel=label)
        set_wrapped_title(axis, title, 1)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        open_axes(axis)
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, handlelength=2.4)
    picture.tight_layout()
    return picture


def by_round(rows: Sequence[BoundRow], column: str) -> dict[int, list[float]]:
    """Per round the values of a column, of the clients that have one."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if row.get(column) is not None:
            values.setdefault(row["round"], []).append(row[column])
    return values


def _draw_line(axis: Axes, values: dict[int, list[float]], name: str, at: int, band: bool = True) -> None:
    rounds, style, colour = list(values), STYLES[at % len(STYLES)], COLOURS[at % len(COLOURS)]
    mark = MARKS[at % len(MARKS)]
    axis.plot(
        rounds,
        [np.mean(values[number]) for number in rounds],
        style,
        marker=mark,
        markersize=3,
        color=colour,
        linewidth=1.2,
        label=name,
    )
    if band:
        low, high = ([pick(values[number]) for number in rounds] for pick in (min, max))
        axis.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)


def _change_lines(axis: Axes, rows: Sequence[BoundRow], columns: dict[str, str]) -> None:
    """A line per column; one that equals the line before is left out.

    A symmetric logarithmic scale shows small decreases next to large bounds.
    """
    shown: list[dict[int, list[float]]] = []
    for at, (name, column) in enumerate(columns.items()):
        if (values := by_round(rows, column)) and values not in shown:
            shown.append(values)
            _draw_line(axis, values, name.strip(), at)
    axis.set_yscale("symlog", linthresh=0.1)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.axhline(0, color="black", linewidth=0.6)


def _constant_lines(axis: Axes, rows: Sequence[BoundRow]) -> None:
    """A line per constant, without bands: single clients may have values near 0."""
    for at, (name, column) in enumerate(_CONSTANTS.items()):
        if values := by_round(rows, column):
            _draw_line(axis, values, name, at, band=False)
    axis.set_yscale("log")
    use_log_ticks(axis.yaxis)


def _limit_lines(axis: Axes, rows: Sequence[BoundRow], limits: dict[str, str]) -> None:
    """The limit of each value, relative to the value that the run used; below 1, the run exceeds the limit."""
    for at, (column, name) in enumerate(limits.items()):
        shares = [
            {**row, "share": row[f"largest_{column}"] / row[column]}
            for row in rows
            if row[f"largest_{column}"] is not None and row[column]
        ]
        if shares:
            _draw_line(axis, by_round(shares, "share"), name, at)
    axis.set_yscale("symlog", linthresh=1e-3)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.axhline(1, color="black", linewidth=0.6)
