"""The convergence bounds of the papers on a finished run: a table per round, a verdict, and the premises it breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from protofed.errors import UserError
from protofed.experiment.bounds.monitor import METHODS_WITH_BOUNDS, BoundsMonitor, bounds_of, read_bounds
from protofed.experiment.bounds.paper import BoundRow, PaperBounds
from protofed.experiment.bounds.premises import common_premises
from protofed.experiment.folder import json_value
from protofed.experiment.results import State
from protofed.experiment.runner import Runner
from protofed.measures.question import Measurement, Question, Rows
from protofed.plugins import label

_REPLAYED = 5
"""The number of rounds that are probed if neither the run nor the question says which."""
_OF_ALL = ("holds", "printed_holds", "training_holds")
_LIMIT = "largest_"
"""How the columns begin that have limits for every client; a round shows the smallest one."""


def measure_bounds(question: Question) -> Measurement:
    """The bounds of the method's paper, from bounds.jsonl, or from a repetition of the run."""
    config = question.result.state.config
    bounds = bounds_of(config.method)
    if bounds is None:
        raise UserError(
            f"bounds: no paper proves a bound for {label(config.method_name)}. Methods with one: "
            f"{', '.join(METHODS_WITH_BOUNDS)}."
        )
    folder = question.result.folder
    rows = read_bounds(folder) if folder and question.every is None else []
    repeated = ""
    if not rows:
        rows, repeated = _repeat(question)
    if question.client is not None:
        rows = _of_client(rows, question.client, bounds)
    by_round: Rows = {
        f"round {number}": _over_clients([row for row in rows if row["round"] == number])
        for number in dict.fromkeys(row["round"] for row in rows)
    }
    steps = max((row["steps"] for row in rows), default=0)
    premises = broken_premises(question.state, bounds, steps)
    about = " ".join(filter(None, (verdict(bounds, rows), bounds.remark, repeated)))
    notes = tuple(f"Broken premise: {premise}." for premise in premises)
    return Measurement(about, by_round, notes or ("The run breaks no premise that can be checked.",))


def _of_client(rows: Sequence[BoundRow], client: int, bounds: PaperBounds[Any]) -> list[BoundRow]:
    """The rows of one client; an error if there are none."""
    if any(row["client"] is None for row in rows):
        raise UserError(f"--client {client}: {bounds.theorem}, is about all clients together. Leave --client out.")
    if not (found := [row for row in rows if row["client"] == client]):
        clients = ", ".join(map(str, sorted({row["client"] for row in rows})))
        raise UserError(f"--client {client}: it trained in no monitored round. Clients that did: {clients}.")
    return found


def broken_premises(state: State, bounds: PaperBounds[Any], steps: int) -> list[str]:
    """A sentence per premise that the run breaks."""
    return [*common_premises(state.config, state.members), *bounds.premises(state.config.method, steps)]


def _repeat(question: Question) -> tuple[list[BoundRow], str]:
    """Do the run again with a monitor, and compare its losses with the recorded ones."""
    state, recorded = question.state, question.result.rounds
    done = len(recorded)
    every = question.every or max(1, done // _REPLAYED)
    last = done // every * every
    if not last:
        raise UserError(f"--every {every}: the run has only {done} rounds. Use {done} or fewer.")
    section = replace(state.config.run, rounds=last, seconds=0.0, eval_every=last, eval_last=0, monitor=0)
    scoring = replace(state.config.eval, personal=False)
    runner = Runner(replace(state.config, run=section, eval=scoring), state.members, None)
    monitor = BoundsMonitor(runner, every)
    runner.watchers.append(monitor)
    try:
        runner.go()
    finally:
        runner.close()
    ours, theirs = ([json_value(row["loss"]) for row in rows[:last]] for rows in (runner.rounds, recorded))
    if ours == theirs:
        said = f"The run was repeated up to round {last}; its losses are those recorded, to the last bit."
    else:
        said = (
            f"The run was repeated up to round {last}; its losses differ from those recorded, so this is another "
            "machine or version, and the table is that of the repetition."
        )
    return monitor.rows, said


def _over_clients(rows: Sequence[BoundRow]) -> dict[str, Any]:
    """A round: the number of clients, in how many the bounds hold, the tightest limits, and means of the rest."""
    found: dict[str, Any] = {"clients": len(rows)}
    limits = {column for column in rows[0] if column.startswith(_LIMIT)}
    for column in rows[0]:
        values = [row[column] for row in rows if row[column] is not None]
        if column in ("round", "client"):
            continue
        if column in _OF_ALL:
            found[column] = f"{sum(values)} of {len(values)}" if values else None
        elif not values:
            found[column] = None
        else:
            found[column] = min(values) if column in limits else sum(values) / len(values)
    return found


def verdict(bounds: PaperBounds[Any], rows: Sequence[BoundRow]) -> str:
    """What the rows say, in plain words."""
    applied = [row for row in rows if row["holds"] is not None]
    unit = "rounds" if rows and rows[0]["client"] is None else "rounds of clients"
    diverged = sum(row["change"] is None for row in rows)
    lost = f" In {diverged} of {len(rows)} {unit} the loss is not finite: the run has diverged." if diverged else ""
    if not applied:
        return f"{bounds.theorem}, applies to none of these {unit}.{lost}"
    held = sum(row["holds"] for row in applied)
    fell = sum(row["change"] < 0 for row in applied)
    promised = sum(row["bound"] < 0 for row in applied)
    sentences = [f"{bounds.theorem}, held in {held} of {len(applied)} {unit} that it applies to."]
    sentences.append(f"The loss decreased in {fell} of them; the bound promised a decrease in {promised}.")
    if loose := [abs((row["bound"] - row["change"]) / row["change"]) for row in applied if row["change"]]:
        sentences.append(f"Its distance from the measured change is {median(loose):.3g} times that change (median).")
    trained = [row for row in rows if row["training_holds"] is not None]
    sentences.append(
        f"Its part for local training held in {sum(row['training_holds'] for row in trained)} of {len(trained)} and "
        f"promised a decrease in {sum(row['training_bound'] < 0 for row in trained)}."
    )
    for column, name in bounds.limits.items():
        limits = [row[f"{_LIMIT}{column}"] for row in rows if row[f"{_LIMIT}{column}"] is not None]
        used = f"the run used {rows[-1][column]:.3g}"
        if limits and max(limits) == 0:
            sentences.append(f"{bounds.corollary}, allows no {name} above 0; {used}.")
        elif limits:
            ranges = f"{min(limits):.3g} to {max(limits):.3g}, depending on client and round"
            sentences.append(f"{bounds.corollary}, allows a {name} below {ranges}; {used}.")
    return " ".join(sentences) + lost
