"""What a report shows, gathered from runs as one JSON object."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from protofed.errors import UserError
from protofed.experiment.folder import Folder, json_value
from protofed.experiment.groups import group_by_setting
from protofed.experiment.results import Result
from protofed.experiment.stored import StoredRun
from protofed.experiment.stored_members import members_with_data
from protofed.measures.cost import cost_until
from protofed.measures.on_demand import measure
from protofed.pictures.clients import relative_attention
from protofed.pictures.curves import common_values, megabytes_sent
from protofed.pictures.method_style import method_style
from protofed.pictures.prototype_map import prototype_map, traced_map
from protofed.pictures.style import COLOURS
from protofed.report.words import WAY_NAMES, Groups, cautions, cost_sentence, figure_rows, verdict_sentences

_MANY_CLIENTS = 500
"""With more clients than this, what takes a pass over all models is left out."""
_LEVELS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Accuracies for the table of rounds and megabytes until they were reached."""

_COMMON_COLUMNS = (
    *("round", "loss", "seconds", "clients", "rejected", "accuracy_", "miou", "iou", "up_", "down_", "validation"),
    *("personal", "pixel", "attention", "honest", "void", "unprotected", "too_few_uploads"),
)
"""Beginnings of the columns of rounds.jsonl that do not come from the method."""

ReportPart = Callable[[StoredRun], Any]


def gather(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Everything that the page shows."""
    groups: Groups = group_by_setting(runs)
    shown_whole = {group[0].folder for group in groups.values()}
    datasets = ", ".join(dict.fromkeys(run.data for run in runs))
    content = {
        "title": f"{', '.join(groups)} on {datasets}" if len(groups) <= 3 else f"{len(groups)} settings on {datasets}",
        "verdict": verdict_sentences(groups),
        "cautions": cautions(groups),
        "ways": WAY_NAMES,
        "groups": _group_list(groups),
        "figures": _figures(groups),
        "curves": _by_way(groups, _group_curve),
        "losses": _losses(groups),
        "costs": _by_way(groups, _cost_curve),
        "levels": _levels(groups),
        "runs": [_run(run, _group_of(run, groups), run.folder in shown_whole) for run in runs],
    }
    checked: dict[str, Any] = json_value(content)
    return checked


def _group_list(groups: Groups) -> list[dict[str, Any]]:
    """The names of the groups, their seeds, the number of the method's colour, and that of the dashes of its lines."""
    listed: list[dict[str, Any]] = []
    for name, group in groups.items():
        colour = COLOURS.index(method_style(group[0].method).colour)
        dashes = sum(other["colour"] == colour for other in listed)
        listed.append({"name": name, "seeds": [run.seed for run in group], "colour": colour, "dashes": dashes})
    return listed


def _group_of(run: StoredRun, groups: Groups) -> str:
    return next(name for name, group in groups.items() if run in group)  # runs are compared by identity


def _figures(groups: Groups) -> list[dict[str, Any]]:
    """Per group: the number of finished seeds, the mean of each figure over them, and its difference from the first."""
    rows = figure_rows(groups)
    table = []
    for row in rows:
        figures = {}
        for name in row.figures:
            interval, gap = row.interval(name), row.compared_with(rows[0], name) if row is not rows[0] else None
            figures[name] = {
                "mean": interval and interval.mean,
                "half": interval and interval.half,
                "gap": gap and gap.mean,
                "gap_half": gap and gap.half,
            }
        seeds = {seed for values in row.figures.values() for seed in values}
        table.append({"group": row.setting, "seeds": len(seeds), "figures": figures})
    return table


def _by_way(groups: Groups, curve: Callable[[Sequence[StoredRun], str], Any]) -> dict[str, list[dict[str, Any]]]:
    """Per way of predicting the curves of all groups that have one."""
    by_way: dict[str, list[dict[str, Any]]] = {}
    for way in (*WAY_NAMES, "miou"):
        key = "miou" if way == "miou" else f"accuracy_{way}"
        found = [{"group": name, **values} for name, group in groups.items() if (values := curve(group, key))]
        if found:
            by_way[way] = found
    return by_way


def _group_curve(runs: Sequence[StoredRun], key: str) -> dict[str, Any] | None:
    """Rounds, and the mean, lowest and highest value over seeds."""
    tested = common_values(runs, key)
    return tested and {"x": tested[0], **_band(tested[1])}


def _band(values: np.ndarray) -> dict[str, Any]:
    """Mean, lowest and highest value over the first axis."""
    return {
        name: [float(f"{value:.6g}") for value in part.tolist()]  # a term of a loss may be tiny
        for name, part in (("mean", values.mean(0)), ("low", values.min(0)), ("high", values.max(0)))
    }


def _cost_curve(runs: Sequence[StoredRun], key: str) -> dict[str, Any] | None:
    """The megabytes sent so far, and the accuracy."""
    tested = common_values(runs, key)
    if tested is None:
        return None
    sent = np.mean([[megabytes_sent(run)[at] for at in tested[0]] for run in runs], 0)
    return {"x": sent.round(6).tolist(), **_band(tested[1])}


def _losses(groups: Groups) -> dict[str, list[dict[str, Any]]]:
    """Per term of the loss the curves of all groups that have it."""
    by_term: dict[str, list[dict[str, Any]]] = {}
    for name, group in groups.items():
        rows = [[{"round": row["round"], **row["loss"]} for row in run.rounds] for run in group]
        terms = dict.fromkeys(term for run in rows for row in run for term in row if term != "round")
        for term in terms:
            runs = [replace(run, rounds=part) for run, part in zip(group, rows, strict=True)]
            if values := _group_curve(runs, term):
                by_term.setdefault(term, []).append({"group": name, **values})
    return by_term


def _levels(groups: Groups) -> list[dict[str, Any]]:
    """Per group and accuracy: the rounds and megabytes until it was reached, by the first run of the group."""
    table = []
    for name, group in groups.items():
        for level in _LEVELS:
            if reached := cost_until(group[0].rounds, level):
                row = {"group": name, "accuracy": level, "rounds": reached["rounds"], "mb": reached["bytes"] / 1e6}
                table.append(row)
    return table


def _run(run: StoredRun, group: str, whole: bool) -> dict[str, Any]:
    """One run: its clients, and what takes its models and data if `whole`."""
    content: dict[str, Any] = {
        "name": f"{group}, seed {run.seed}",
        "group": group,
        "folder": str(run.folder),
        "quoted": shlex.quote(str(run.folder)),
        "method": run.method,
        "state": run.state,
        "done": len(run.rounds),
        "total": run.settings["run"]["rounds"],
        "seconds": [row["seconds"] for row in run.rounds[-20:]],
        "labels": [str(label) for label in (Folder(run.folder).partition() or {}).get("labels", ())],
        "clients": [_client(row) for row in run.clients],
        "rejected": [
            [row["round"], client, reason] for row in run.rounds for client, reason in row.get("rejected", {}).items()
        ],
        "entries": _method_entries(run),
        "cost": "" if run.unfinished else cost_sentence(run),
        "versions": run.summary.get("versions", {}),
        "config": (run.folder / "config.toml").read_text(),
    }
    parts: dict[str, ReportPart] = {"map": traced_map if run.unfinished else prototype_map}
    if not run.unfinished:
        parts |= {"holdings": _holdings, "similarity": _measured("similarity"), "confusion": _measured("confusion")}
        if any("attention" in row for row in run.rounds):
            parts["attention"] = _attention
    content["absent"] = {}
    for name, part in parts.items():
        try:
            content[name] = part(run) if _is_shown(run, whole, name) else None
            if content[name] is None:
                content["absent"][name] = _why_left_out(run)
        except UserError as problem:
            content["absent"][name] = str(problem)
    return content


def _is_shown(run: StoredRun, whole: bool, name: str) -> bool:
    return (whole and len(run.clients) <= _MANY_CLIENTS) or (name == "holdings" and whole)


def _why_left_out(run: StoredRun) -> str:
    if len(run.clients) > _MANY_CLIENTS:
        return f"left out, because the run has more than {_MANY_CLIENTS} clients."
    return "shown for the first seed of each setting only."


def _client(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of clients.csv; of its intervals only that of the accuracy by head, None where the row has none."""
    ends = {"low": row.get("wilson_low_head"), "high": row.get("wilson_high_head")}
    return {**{key: value for key, value in row.items() if "wilson" not in key}, **ends}


def _holdings(run: StoredRun) -> dict[str, Any]:
    """Training examples per client and class, as [client, class, number]."""
    members = members_with_data(run.config, run.folder)
    labels = [str(label) for label in members.example_labels]
    counts = np.stack([train.labels.bincount(minlength=len(labels)).numpy() for train in members.train])
    held = np.argwhere(counts)
    if len(held) > 20_000:
        return {"labels": labels, "sizes": np.sort(counts.sum(1))[::-1].tolist()}
    return {"labels": labels, "counts": [[int(i), int(j), int(counts[i, j])] for i, j in held]}


def _measured(name: str) -> ReportPart:
    """A measure with a row and a column per class."""

    def part(run: StoredRun) -> dict[str, Any]:
        measured = measure(Result.load(run.folder), [name])[name]
        labels = list(measured.rows)
        values = [[round(value, 3) for value in row.values()] for row in measured.rows.values()]
        return {"about": measured.about, "labels": labels, "values": values}

    return part


def _method_entries(run: StoredRun) -> dict[str, list[list[float]]]:
    """What the method itself logs per round, such as the margins of prototype-guided FL: [round, value] per name."""
    entries: dict[str, list[list[float]]] = {}
    for row in run.rounds:
        for key, value in row.items():
            if not key.startswith(_COMMON_COLUMNS) and isinstance(value, int | float):
                entries.setdefault(key, []).append([row["round"], value])
    return entries


def _attention(run: StoredRun) -> dict[str, Any]:
    """The attention that each client got per round, relative to equal weights."""
    values = relative_attention(run)
    return {"values": [[None if np.isnan(value) else round(float(value), 3) for value in row] for row in values]}
