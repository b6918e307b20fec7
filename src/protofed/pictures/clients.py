"""Per-client pictures: a strip of accuracies for each run, and how much each client counted in each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from protofed.errors import UserError
from protofed.pictures.curves import WAYS, said
from protofed.pictures.runs import FinishedRun, group_by_setting, titles
from protofed.pictures.style import COLOURS, COLUMN, MARKS, head, lettered, make_panels, open_axes


def client_accuracies(runs: Sequence[FinishedRun], ways: Sequence[str] = WAYS) -> dict[str, np.ndarray]:
    """For each group of runs and way to predict the accuracies of all clients in percent, those tested."""
    found = {}
    for title, group in group_by_setting(runs).items():
        for way in ways:
            every = [row.get(f"accuracy_{way}") for run in group for row in run.clients]
            if got := [value for value in every if value is not None]:
                found[title + said(way)] = 100 * np.array(got, float)
    if not found:
        raise UserError(f"clients.csv of these runs has no accuracy by {' or '.join(ways)}.")
    return found


def clients(runs: Sequence[FinishedRun], ways: Sequence[str] = WAYS) -> Figure:
    """The strips of runs."""
    several = ", clients of all seeds" if len(group_by_setting(runs)) < len(runs) else ""
    return _strips(client_accuracies(runs, ways), ", ".join(dict.fromkeys(run.data for run in runs)) + several)


@lettered
def _strips(found: Mapping[str, np.ndarray], title: str) -> Figure:
    """A strip of points for each name, one a client, and a bar at the mean."""
    picture, axis = plt.subplots(figsize=(COLUMN, 0.8 + 0.38 * len(found)))
    for place, values in enumerate(found.values()):
        beside = place + 0.22 * np.sin(2.4 * np.arange(len(values)))  # spread out, the same way every time
        axis.scatter(
            values,
            beside,
            s=9,
            marker=MARKS[place % len(MARKS)],
            color=COLOURS[place % len(COLOURS)],
            alpha=0.6,
            linewidths=0,
        )
        axis.plot([values.mean()] * 2, [place - 0.36, place + 0.36], color="black", linewidth=1.2)
    axis.set_yticks(range(len(found)), list(found))
    axis.set(ylim=(len(found) - 0.5, -0.5), xlabel="accuracy of each client in %; bar: mean", title=title)
    open_axes(axis)
    picture.tight_layout()
    return picture


def attended(run: FinishedRun) -> np.ndarray:
    """How much each client counted in each round [clients, rounds], in equal shares; nan: not at all."""
    table = np.full((run.summary["clients"], len(run.rounds)), np.nan)
    for at, row in enumerate(run.rounds):
        if "attention" not in row:
            raise UserError(f"{run.method} has no attention over clients to draw; protomargin has.")
        counted = [client for client in row["clients"] if str(client) not in row["rejected"]]
        if len(counted) == len(row["attention"]):
            table[counted, at] = np.array(row["attention"], float) * len(counted)
    return table


@lettered
def attention(runs: Sequence[FinishedRun]) -> Figure:
    """Clients x rounds, one run above the other."""
    tables = [attended(run) for run in runs]
    picture, axes = make_panels(len(runs), 1, 2.4)
    known = np.concatenate([table[~np.isnan(table)] for table in tables])
    low, high = np.quantile(known, [0.02, 0.98])  # a few far ones would make all others alike
    for axis, table, title in zip(axes, tables, titles(runs), strict=True):
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
        head(axis, title, 1)
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        picture.colorbar(image, ax=axis, label="weight / equal share", extend="both")
    picture.tight_layout()
    return picture
