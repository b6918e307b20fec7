"""Per-client pictures: the accuracies of clients, and their weights in each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from protofed.errors import UserError
from protofed.experiment.groups import group_by_setting, titles
from protofed.experiment.stored import StoredRun
from protofed.pictures.curves import WAYS, way_suffix
from protofed.pictures.method_style import method_style
from protofed.pictures.style import (
    COLUMN,
    make_panels,
    open_axes,
    set_wrapped_title,
    with_column_fonts,
)

_MOST_NAMES = 20
"""With more clients than this, their names are not written."""


def client_accuracies(runs: Sequence[StoredRun], ways: Sequence[str] = WAYS) -> dict[str, tuple[str, np.ndarray]]:
    """Per group of runs and way of predicting: the method, and the accuracies in percent of all tested clients."""
    by_name = {}
    for name, group in group_by_setting(runs).items():
        for way in ways:
            every = [row.get(f"accuracy_{way}") for run in group for row in run.clients]
            if accuracies := [value for value in every if value is not None]:
                by_name[name + way_suffix(way)] = group[0].method, 100 * np.array(accuracies, float)
    if not by_name and not any(run.clients for run in runs):
        raise UserError("None of these runs is finished, so that they have no clients.csv yet.")
    if not by_name:
        raise UserError(f"clients.csv of these runs has no accuracy by {' or '.join(ways)}. Try another --by.")
    return by_name


def clients(runs: Sequence[StoredRun], ways: Sequence[str] = WAYS) -> Figure:
    """A strip of points per group of runs and way of predicting, one point per client."""
    all_seeds = ", clients of all seeds" if len(group_by_setting(runs)) < len(runs) else ""
    names = [row["name"] for row in runs[0].clients if "name" in row] if len(runs) == 1 else []
    title = ", ".join(dict.fromkeys(run.data for run in runs)) + all_seeds
    return _strips(client_accuracies(runs, ways), title, names if len(names) <= _MOST_NAMES else [])


@with_column_fonts
def _strips(accuracies: Mapping[str, tuple[str, np.ndarray]], title: str, names: Sequence[str] = ()) -> Figure:
    """A strip of points per name, with a bar at the mean. `names`: of the clients, written next to the points."""
    picture, axis = plt.subplots(figsize=(COLUMN, 0.8 + 0.38 * len(accuracies)))
    for row, (method, values) in enumerate(accuracies.values()):
        colour, mark, _ = method_style(method)
        jittered = row + 0.22 * np.sin(2.4 * np.arange(len(values)))  # the same jitter each time
        axis.scatter(
            values,
            jittered,
            s=9,
            marker=mark,
            color=colour,
            alpha=0.6,
            linewidths=0,
        )
        if len(names) == len(values):
            for name, value, height in zip(names, values, jittered, strict=True):
                axis.annotate(name, (value, height), (2, 1), textcoords="offset points", fontsize=4.5)
        axis.plot([values.mean()] * 2, [row - 0.36, row + 0.36], color="black", linewidth=1.2)
    axis.set_yticks(range(len(accuracies)), list(accuracies))
    axis.set(ylim=(len(accuracies) - 0.5, -0.5), xlabel="accuracy of each client in %; bar: mean", title=title)
    open_axes(axis)
    picture.tight_layout()
    return picture


def relative_attention(run: StoredRun) -> np.ndarray:
    """Each client's weight in each round [clients, rounds], divided by an equal share; nan if it was not counted.

    A round in which the server combined nothing has no weights.
    """
    weighted = {column: row for column, row in enumerate(run.rounds) if "attention" in row}
    if not weighted:
        raise UserError(
            f"This run of {run.method} has no attention over clients to draw. Use a run of protomargin in which the "
            "server combined uploads."
        )
    table = np.full((run.summary["clients"], len(run.rounds)), np.nan)
    for column, row in weighted.items():
        counted = [client for client in row["clients"] if str(client) not in row["rejected"]]
        if len(counted) == len(row["attention"]):
            table[counted, column] = np.array(row["attention"], float) * len(counted)
    return table


@with_column_fonts
def attention(runs: Sequence[StoredRun]) -> Figure:
    """A map of clients x rounds per run, one below the other."""
    tables = [relative_attention(run) for run in runs]
    picture, axes = make_panels(len(runs), 1, 2.4)
    weights = np.concatenate([table[~np.isnan(table)] for table in tables])
    low, high = np.quantile(weights, [0.02, 0.98])  # so that outliers do not set the colours
    for axis, table, title, run in zip(axes, tables, titles(runs), runs, strict=True):
        extent = (0.5, table.shape[1] + 0.5, table.shape[0] - 0.5, -0.5)
        image = axis.imshow(
            table,
            aspect="auto",
            cmap="cividis",
            vmin=low,
            vmax=max(high, low + 0.01),
            extent=extent,
            interpolation="nearest",
        )
        axis.set(xlabel="round", ylabel="client")
        set_wrapped_title(axis, title, 1)
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        if 0 < len(names := run.client_names()) <= _MOST_NAMES:
            axis.set_yticks(list(names), list(names.values()))
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        picture.colorbar(image, ax=axis, label="weight / equal share", extend="both")
    picture.tight_layout()
    return picture
