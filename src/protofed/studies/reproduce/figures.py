"""The figures of a finished run that tables show: accuracy, spread, convergence, cost, and measures on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from protofed.errors import UserError
from protofed.experiment.accuracy import accuracy_mean_and_std
from protofed.experiment.folder import Folder
from protofed.experiment.results import Result
from protofed.measures.on_demand import MEASURES, measure
from protofed.studies.reproduce.measured import MEASURED, WEIGHTS, measured_figure
from protofed.studies.sweep import DISTANCE, stored_distance

CONVERGENCE_TOLERANCE, CONVERGENCE_ROUNDS = 0.005, 10
"""A run has converged in the first round whose accuracy is at most 0.005 below the mean of its last ten rounds."""
BY_HEAD, BY_PROTOTYPE = "accuracy.head.mean", "accuracy.prototype.mean"
"""The mean accuracy over clients on their own test sets, in result.json."""
BY_HEAD_OWN = "accuracy.head_own.mean"
"""The same with a head that chooses among the classes of the client's training examples."""
PROTOTYPE_ALL = "prototype_all"
"""The name of a further figure: accuracy by the nearest prototype among all classes."""
_LAST, _ROUND = "last ", "round "
"""How the name of a figure begins that is a mean over the last rounds, or the value of one round."""


def server_in_last_rounds(number: int) -> str:
    """The name of a figure: the mean accuracy of the server's model over the last rounds."""
    return f"{_LAST}{number}.accuracy_global"


def by_head_after(number: int) -> str:
    """The name of a figure: the mean accuracy over clients by head after this round, which must have been tested."""
    return f"{_ROUND}{number}.accuracy_head"


class Figures(NamedTuple):
    """The figures of one run. Those that a cell's figure does not have are None."""

    accuracy: float  # the cell's figure
    spread: float | None  # standard deviation over clients
    running: float | None  # standard deviation of a running average over clients, as in FedProto's authors' code
    converged: int | None  # rounds until convergence
    sent: float  # numbers that all clients send per round
    received: float | None = None  # numbers that all clients receive per round; None in older files
    others: Mapping[str, float] = MappingProxyType({})  # further figures of the run, by name
    versions: Mapping[str, str | None] | None = None  # what made the run, as in result.json; None in older files


def is_finished(figure: str, path: Path) -> bool:
    """Whether the run in this folder is finished, and measured if this figure must be."""
    is_measured = not figure.startswith(MEASURED) or measured_figure(path, figure) is not None
    return (path / "result.json").exists() and is_measured


def figures_of_run(figure: str, path: Path, also: Sequence[str] = ()) -> Figures:
    """The figures of the finished run in this folder: the one with this name, with what belongs to it, and `also`."""
    result = Folder(path).result()
    return _named_figure(figure, path, result)._replace(
        received=result["cost"].get("down_params"),
        others=_other_figures(path, result, also),
        versions=result.get("versions"),
    )


def _other_figures(path: Path, result: Mapping[str, Any], also: Sequence[str]) -> dict[str, float]:
    """Accuracy among all prototypes, the distance of prototypes, and those of `also`.

    These are measured ("MEASURE.ROW.COLUMN") or at a path in result.json ("miou.per_class.cat").
    """
    others = {PROTOTYPE_ALL: _at(result, "accuracy.prototype_all.mean"), DISTANCE: stored_distance(path)}
    measured_names = [name for name in also if name.partition(".")[0] in MEASURES]
    others |= {name: _at(result, name) for name in also if name not in {*others, *measured_names}}
    if paths := [name.split(".") for name in measured_names]:
        measured = measure(Result.load(path), [name for name, _, _ in paths])
        others |= {f"{name}.{row}.{column}": measured[name].rows[row][column] for name, row, column in paths}
    return {name: value for name, value in others.items() if value is not None}


def _named_figure(figure: str, path: Path, result: Mapping[str, Any]) -> Figures:
    """The figure with this name, with its spread, convergence and cost."""
    rounds, sent = Folder(path).rounds(), result["cost"]["up_params"]
    section, _, key = figure.partition(".")
    if section.startswith((MEASURED, WEIGHTS)):
        value = measured_figure(path, figure)
        if value is None:
            raise UserError(f"{path} has no figure {figure}: the run was not measured. Leave --finished out.")
        return Figures(value, None, None, None, sent)
    if section.startswith(_LAST):
        last = rounds[-int(section.removeprefix(_LAST)) :]
        values = [row[key] for row in last if row.get(key) is not None]
        if len(values) < len(last):
            raise UserError(f"{path} has {key} in {len(values)} of its last {len(last)} rounds. Set run.eval_last.")
        return Figures(float(np.mean(values)), None, None, None, sent)
    if section.startswith(_ROUND):
        row = next((row for row in rounds if row["round"] == int(section.removeprefix(_ROUND))), {})
        if row.get(key) is None:
            raise UserError(f"{path} has no {key} of {section}. Set run.eval_every.")
        return Figures(row[key], row.get(f"{key}_std"), None, None, sent)
    accuracy = _at(result, figure)
    if accuracy is None:
        raise UserError(f"{path} has no figure {figure}. Delete the folder to run it again.")
    way = key.removesuffix(".mean")
    if section != "accuracy" or way == key:
        return Figures(accuracy, _at(result, f"{figure}_std"), None, None, sent)
    column = f"accuracy_{way}"
    tested = [row for row in Folder(path).clients() if row["test"]]
    correct, total = [round(row[column] * row["test"]) for row in tested], [row["test"] for row in tested]
    return Figures(
        accuracy,
        _at(result, f"accuracy.{way}.std"),
        (accuracy_mean_and_std(correct, total, "running") or {"std": 0.0})["std"],
        converged({row["round"]: row[column] for row in rounds if row.get(column) is not None}),
        sent,
    )


def _at(result: Any, path: str) -> Any:
    """The value at a path with dots; None if there is none."""
    for key in path.split("."):
        result = result.get(key) if isinstance(result, Mapping) else None
    return result


def converged(accuracies: Mapping[int, float]) -> int:
    """The first tested round whose accuracy is at most 0.005 below the mean of those tested in the last ten rounds.

    >>> converged({5: 0.1, 10: 0.796, 15: 0.5, 20: 0.8})
    10
    """
    last = [accuracy for number, accuracy in accuracies.items() if number > max(accuracies) - CONVERGENCE_ROUNDS]
    threshold = float(np.mean(last)) - CONVERGENCE_TOLERANCE
    return next(number for number, accuracy in accuracies.items() if accuracy >= threshold)
