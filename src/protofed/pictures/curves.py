"""Pictures of rounds.jsonl: learning curves, the terms of the loss, accuracy against what was sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.measures.geometry import centres
from protofed.methods.parts.margins import aggregate_mean_margin
from protofed.pictures import bands
from protofed.pictures.runs import FinishedRun, group_by_setting

WAYS = ("head", "prototype")


def values(runs: Sequence[FinishedRun], key: str) -> tuple[list[int], np.ndarray] | None:
    """The rounds in which all of these runs have a value, and the values [runs, rounds]; None if there are none."""
    rows = [{row["round"]: row[key] for row in run.rounds if row.get(key) is not None} for run in runs]
    common = sorted(set.intersection(*(set(row) for row in rows)))
    return (common, np.array([[row[at] for at in common] for row in rows], float)) if common else None


def sent_so_far(run: FinishedRun) -> dict[int, float]:
    """For each round the megabytes sent so far, both ways, by all clients."""
    sums = np.cumsum([row["up_bytes"] + row["down_bytes"] for row in run.rounds]) / 1e6
    return {row["round"]: float(total) for row, total in zip(run.rounds, sums, strict=True)}


def said(way: str) -> str:
    return {"head": "", "global": ", the server's model"}.get(way, f", by {way.replace('_', ' ')}")


def _learned(
    runs: Sequence[FinishedRun], ways: Sequence[str]
) -> dict[str, tuple[list[FinishedRun], list[int], np.ndarray]]:
    """For each group of runs and way to predict the runs, the rounds tested, and the accuracies in percent."""
    found = {}
    for title, group in group_by_setting(runs).items():
        for way in ways:
            if got := values(group, f"accuracy_{way}"):
                found[title + said(way)] = (group, got[0], 100 * got[1])
    if not found:
        raise UserError(f"None of these runs has an accuracy by {' or '.join(ways)}.")
    return found


def _about(runs: Sequence[FinishedRun]) -> str:
    """The data, and over how many seeds the mean is taken."""
    seeds = sorted({len(group) for group in group_by_setting(runs).values()})
    told = f", mean and spread over {'-'.join(map(str, seeds))} seeds" if seeds[-1] > 1 else ""
    return ", ".join(dict.fromkeys(run.data for run in runs)) + told


def curves(runs: Sequence[FinishedRun], ways: Sequence[str] = WAYS, window: int = 1) -> Figure:
    """Accuracy over rounds; a moving average if there is a window."""
    found = _learned(runs, ways)
    panel = bands.BandPanel(
        _about(runs),
        {title: rounds for title, (_, rounds, _) in found.items()},
        {title: accuracies for title, (_, _, accuracies) in found.items()},
        upward="accuracy in %" + (f", mean of {window} rounds" if window > 1 else ""),
    )
    return bands.draw_bands([panel], window=window)


def losses(runs: Sequence[FinishedRun], window: int = 1) -> Figure:
    """Each term of the training loss over rounds, one above the other."""
    groups = group_by_setting([run._replace(rounds=[{**row, **_terms(row)} for row in run.rounds]) for run in runs])
    panels = []
    for term in dict.fromkeys(term for run in runs for row in run.rounds for term in row["loss"]):
        found = {title: got for title, group in groups.items() if (got := values(group, f"loss {term}"))}
        lines = {title: got for title, (_, got) in found.items()}
        positive = all((line > 0).all() for line in lines.values())
        rounds = {title: got for title, (got, _) in found.items()}
        panels.append(bands.BandPanel(f"loss: {term}", rounds, lines, log=positive, upward="mean over examples"))
    if not panels:
        raise UserError("None of these runs has a loss: nobody trained.")
    return bands.draw_bands(panels, columns=1, window=window)


def _terms(row: dict[str, object]) -> dict[str, object]:
    """The terms of a round's loss as keys of their own."""
    loss = row["loss"]
    return {f"loss {term}": value for term, value in loss.items()} if isinstance(loss, dict) else {}


def cost(runs: Sequence[FinishedRun], ways: Sequence[str] = WAYS, window: int = 1) -> Figure:
    """Accuracy against megabytes sent so far; who sends nothing is a line at its last accuracy."""
    along: dict[str, list[float]] = {}
    lines, levels = {}, {}
    for title, (group, rounds, accuracies) in _learned(runs, ways).items():
        so_far = np.mean([[megabytes[at] for at in rounds] for megabytes in map(sent_so_far, group)], 0)
        if so_far[-1] > 0:
            moved = so_far > 0
            along[title], lines[title] = so_far[moved].tolist(), accuracies[:, moved]
        else:
            levels[f"{title} (sends nothing)"] = float(accuracies[:, -1].mean())
    panel = bands.BandPanel(
        _about(runs),
        along,
        lines,
        along="MB sent so far, by all clients, both ways",
        upward="accuracy in %",
        log_along=bool(lines),
        levels=levels,
    )
    return bands.draw_bands([panel], window=window)


def margin_curves(runs: Sequence[FinishedRun]) -> Figure:
    """The aggregate mean margin of the server's prototypes (prototype-guided FL, Eq. 15) over the rounds traced."""
    traced = []
    for run in runs:
        kept = dict(Folder(run.folder).trace())
        apart = {number: aggregate_mean_margin(centres(held)) for number, held in kept.items()}
        traced.append(run._replace(rounds=[{**row, "margin": apart.get(row["round"])} for row in run.rounds]))
    found = {title: got for title, group in group_by_setting(traced).items() if (got := values(group, "margin"))}
    if not found:
        raise UserError("None of these runs has a trace of its prototypes: run with --set run.trace_every=5.")
    panel = bands.BandPanel(
        _about(runs),
        {title: rounds for title, (rounds, _) in found.items()},
        {title: got for title, (_, got) in found.items()},
        upward="mean distance to other classes",
    )
    return bands.draw_bands([panel])
