"""Pictures of rounds.jsonl: learning curves, the terms of the loss, accuracy against megabytes sent, margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.experiment.groups import group_by_setting
from protofed.experiment.stored import StoredRun
from protofed.measures.geometry import centres
from protofed.methods.parts.margins import aggregate_mean_margin
from protofed.pictures import bands

WAYS = ("head", "prototype")


def common_values(runs: Sequence[StoredRun], key: str) -> tuple[list[int], np.ndarray] | None:
    """The rounds in which all runs have a value of this key, and the values [runs, rounds]; None if there are none."""
    by_round = [{row["round"]: row[key] for row in run.rounds if row.get(key) is not None} for run in runs]
    rounds = sorted(set.intersection(*(set(values) for values in by_round)))
    return (rounds, np.array([[values[at] for at in rounds] for values in by_round], float)) if rounds else None


def megabytes_sent(run: StoredRun) -> dict[int, float]:
    """By round: the megabytes sent so far, in both directions, by all clients."""
    totals = np.cumsum([row["up_bytes"] + row["down_bytes"] for row in run.rounds]) / 1e6
    return {row["round"]: float(total) for row, total in zip(run.rounds, totals, strict=True)}


def way_suffix(way: str) -> str:
    """How a curve's name ends for a way of predicting."""
    if way.startswith("miou"):  # a column of its own
        return {"miou": "", "miou_objects": ", without background"}.get(way, f", {way.replace('_', ' ')}")
    return {"head": "", "global": ", the server's model"}.get(way, f", by {way.replace('_', ' ')}")


def _accuracy_curves(
    runs: Sequence[StoredRun], ways: Sequence[str]
) -> dict[str, tuple[list[StoredRun], list[int], np.ndarray]]:
    """Per group of runs and way of predicting: the runs, the rounds tested, and the accuracies in percent."""
    by_name = {}
    for name, group in group_by_setting(runs).items():
        for way in ways:
            if tested := common_values(group, way if way.startswith("miou") else f"accuracy_{way}"):
                by_name[name + way_suffix(way)] = (group, tested[0], 100 * tested[1])
    if not by_name:
        columns = dict.fromkeys(
            key.removeprefix("accuracy_")
            for run in runs
            for row in run.rounds
            for key in row
            if row[key] is not None and key.startswith(("accuracy_", "miou")) and not key.endswith("_std")
        )
        if not columns:
            raise UserError("None of these runs has a tested round.")
        raise UserError(f"--by: none of these runs has {' or '.join(ways)}. Known: {', '.join(columns)}.")
    return by_name


def _axis_label(ways: Sequence[str]) -> str:
    """What the vertical axis shows."""
    return "mIoU in %" if all(way.startswith("miou") for way in ways) else "accuracy in %"


def _data_and_seeds(runs: Sequence[StoredRun]) -> str:
    """A title: the datasets, and the number of seeds over which means are taken."""
    seeds = sorted({len(group) for group in group_by_setting(runs).values()})
    over_seeds = f", mean and spread over {'-'.join(map(str, seeds))} seeds" if seeds[-1] > 1 else ""
    return ", ".join(dict.fromkeys(run.data for run in runs)) + over_seeds


def curves(runs: Sequence[StoredRun], ways: Sequence[str] = WAYS, window: int = 1) -> Figure:
    """Accuracy over rounds; with a window > 1, its moving average."""
    by_name = _accuracy_curves(runs, ways)
    panel = bands.BandPanel(
        _data_and_seeds(runs),
        {name: rounds for name, (_, rounds, _) in by_name.items()},
        {name: accuracies for name, (_, _, accuracies) in by_name.items()},
        y_label=_axis_label(ways) + (f", mean of {window} rounds" if window > 1 else ""),
        methods={name: group[0].method for name, (group, _, _) in by_name.items()},
    )
    return bands.draw_bands([panel], window=window)


def losses(runs: Sequence[StoredRun], window: int = 1) -> Figure:
    """The terms of the training loss over rounds, a panel each, one below the other."""
    groups = group_by_setting([replace(run, rounds=[{**row, **_terms(row)} for row in run.rounds]) for run in runs])
    panels = []
    for term in dict.fromkeys(term for run in runs for row in run.rounds for term in row["loss"]):
        by_name = {name: values for name, group in groups.items() if (values := common_values(group, f"loss {term}"))}
        rounds = {name: rounds for name, (rounds, _) in by_name.items()}
        lines = {name: values for name, (_, values) in by_name.items()}
        positive = all((values > 0).all() for values in lines.values())
        methods = {name: groups[name][0].method for name in lines}
        panel = bands.BandPanel(f"loss: {term}", rounds, lines, positive, y_label="mean over examples", methods=methods)
        panels.append(panel)
    if not panels:
        raise UserError("None of these runs has a training loss: no client trained.")
    return bands.draw_bands(panels, columns=1, window=window)


def _terms(row: dict[str, object]) -> dict[str, object]:
    """The terms of a round's loss as entries "loss TERM"."""
    loss = row["loss"]
    return {f"loss {term}": value for term, value in loss.items()} if isinstance(loss, dict) else {}


def cost(runs: Sequence[StoredRun], ways: Sequence[str] = WAYS, window: int = 1) -> Figure:
    """Accuracy against the megabytes sent so far. A method that sends nothing is a line at its last accuracy."""
    x: dict[str, list[float]] = {}
    lines, levels, methods = {}, {}, {}
    for name, (group, rounds, accuracies) in _accuracy_curves(runs, ways).items():
        megabytes = np.mean([[sent[at] for at in rounds] for sent in map(megabytes_sent, group)], 0)
        if megabytes[-1] > 0:
            positive = megabytes > 0
            x[name], lines[name] = megabytes[positive].tolist(), accuracies[:, positive]
        else:
            name = f"{name} (sends nothing)"
            levels[name] = float(accuracies[:, -1].mean())
        methods[name] = group[0].method
    panel = bands.BandPanel(
        _data_and_seeds(runs),
        x,
        lines,
        x_label="MB sent so far, by all clients, both ways",
        y_label=_axis_label(ways),
        log_x=bool(lines),
        levels=levels,
        methods=methods,
    )
    return bands.draw_bands([panel], window=window)


def margin_curves(runs: Sequence[StoredRun]) -> Figure:
    """The aggregate mean margin of the server's prototypes (prototype-guided FL, Eq. 15) over the traced rounds."""
    traced = []
    for run in runs:
        margins = {at: aggregate_mean_margin(centres(prototypes)) for at, prototypes in Folder(run.folder).trace()}
        traced.append(replace(run, rounds=[{**row, "margin": margins.get(row["round"])} for row in run.rounds]))
    groups = group_by_setting(traced)
    by_name = {name: values for name, group in groups.items() if (values := common_values(group, "margin"))}
    if not by_name:
        raise UserError("None of these runs has a trace of its prototypes. Run with --set run.trace_every=5.")
    panel = bands.BandPanel(
        _data_and_seeds(runs),
        {name: rounds for name, (rounds, _) in by_name.items()},
        {name: values for name, (_, values) in by_name.items()},
        y_label="mean distance to other classes",
        methods={name: groups[name][0].method for name in by_name},
    )
    return bands.draw_bands([panel])
