"""`protofed.compare`: tables of accuracy by head and by prototype, spread over clients, and cost; and over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.errors import UserError
from protofed.experiment.groups import group_by_setting
from protofed.experiment.stored import StoredRun, load_runs
from protofed.experiment.table import BOLD_RULE, ResultTable, TableCell
from protofed.experiment.wording import duration, percent, quantity
from protofed.measures.intervals import SettingRow, best_row

if TYPE_CHECKING:
    from protofed.experiment.results import Result
    from protofed.studies.sweep import Sweep

_PERSONAL = {"PM(V)": "v", "PM(L)": "l"}
"""Columns for runs with eval.personal, and their keys in result.json. They replace the column of the time."""
_OVERLAPS = ("mIoU server", "mIoU clients")
"""Columns for runs in which every pixel has a label. Own classes and MB make room for them."""
_OVER_SEEDS = ("by head", "own classes", "by prototype", "server", "mIoU", "mIoU clients", "validation")
"""The columns of a table over seeds, where runs have them."""
EXPLAINED = (
    "Accuracies in percent: mean over seeds ± half-width of the 95 % confidence interval (Student's t). Differences "
    "are taken between runs with the same seed; * marks those with an interval that excludes 0."
)


@dataclass(frozen=True)
class Comparison:
    """Runs next to each other. `table` has a row per setting if runs differ in their seeds, otherwise a row per run."""

    runs: Sequence[StoredRun]

    @cached_property
    def rows(self) -> list[SettingRow]:
        """One row per setting, over the runs that differ only in their seed; empty if no two runs do."""
        groups = group_by_setting(self.runs)
        if max(len({run.seed for run in runs}) for runs in groups.values()) < 2:
            return []
        return [SettingRow.of_runs(name, runs) for name, runs in groups.items()]

    @property
    def by_run(self) -> ResultTable:
        """One row per run."""
        return _run_table(self.runs)

    @property
    def table(self) -> ResultTable:
        """The table over seeds if runs have several, otherwise the one by run."""
        return settings_table(self.rows) if self.rows else self.by_run

    @property
    def notes(self) -> list[str]:
        """The meaning of the columns, and what makes these runs hard to compare."""
        return _remarks(self.runs)

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        return self.table.to_pandas()

    def as_json(self) -> list[dict[str, Any]]:
        """The result.json of every run, with its folder, state, group, and the hash of its partition."""
        names = {id(run): name for name, runs in group_by_setting(self.runs).items() for run in runs}
        return [
            {
                "run": str(run.folder),
                **run.summary,
                "state": run.state,
                "partition": run.partition().get("sha256"),
                "setting": names[id(run)],
            }
            for run in self.runs
        ]

    def __repr__(self) -> str:
        return f"{self.table.text()}\n({quantity(len(self.runs), 'run')})"

    def _repr_html_(self) -> str:
        return self.table.html()


def compare(*runs: str | Path | Result | Sweep) -> Comparison:
    """Compare runs: run folders, folders of sweeps (all their runs), or results in memory.

    Runs that differ only in their seed form one row, with a 95 % interval. A run that is still going on is shown with
    the figures it has so far, and marked. The methods, nets and data of the runs are not needed.
    """
    if not runs:
        raise UserError("compare() needs runs: folders of runs or sweeps, or results.")
    return Comparison(load_runs(runs))


def settings_table(rows: Sequence[SettingRow]) -> ResultTable:
    """One row per setting: means over seeds with their intervals, and the difference from the first setting.

    Heads are compared among the client's own classes, because a head that stays with a client knows no others. Only
    runs of earlier versions lack this figure.
    """
    names = [name for name in _OVER_SEEDS if any(name in row.figures for row in rows)]
    compared = "own classes" if all("own classes" in row.figures for row in rows if row.figures) else "by head"
    best = {name: best_row(rows, name) for name in names}
    lines: list[list[TableCell | str]] = []
    for row in rows:
        line: list[TableCell | str] = [_setting_name(row)]
        for name in names:
            interval = row.interval(name)
            if interval is None:
                line.append(TableCell("-"))
            else:
                line.append(TableCell(interval.percent(), interval.mean, interval.half, best[name] is row))
        gap = row.compared_with(rows[0], compared) if row is not rows[0] else None
        if len(rows) > 1 and gap is None:
            line.append(TableCell(""))
        elif gap is not None:
            star = " *" if gap.excludes_zero else ""
            line.append(TableCell(gap.percent("+") + star, gap.mean, gap.half))
        lines.append(line)
    heads = ["setting", *names, *([f"{compared}, minus the first"] if len(rows) > 1 else [])]
    notes = [EXPLAINED, *([BOLD_RULE] if any(best.values()) else [])]
    return ResultTable(heads, lines, notes)


def _setting_name(row: SettingRow) -> str:
    """The setting, and how many of its runs have stopped, since its means are those of the others."""
    name = row.setting or "as it is"
    if not row.stopped:
        return name
    finished = max((len(values) for values in row.figures.values()), default=0)
    return f"{name} ({len(row.stopped)} of {quantity(finished + len(row.stopped), 'run')} stopped)"


def _cells(run: StoredRun) -> dict[str, TableCell]:
    """The row of a run, by column."""
    result = run.summary
    cost, personal = result["cost"], result["personal"]
    overlap = result.get("miou") or {}
    unfinished = f" ({run.unfinished})" if run.unfinished else ""
    marks = " (diverged)" if run.state == "diverged" else unfinished

    def accuracy(spread: dict[str, float] | None) -> TableCell:
        """A mean and standard deviation; the columns have no room for the sign for percent."""
        if not spread:
            return TableCell("-")
        return TableCell(percent(spread).replace(" %", ""), spread["mean"], spread["std"])

    def number(value: float | None, scale: float = 100, digits: int = 1) -> TableCell:
        return TableCell("-" if value is None else f"{scale * value:.{digits}f}", value)

    megabytes = (cost["up_bytes"] + cost["down_bytes"]) / 1e6
    return {
        "run": TableCell(run.folder.name + marks, str(run.folder)),
        "method": TableCell(result["method"], result["method"]),
        "by head": accuracy(result["accuracy"]["head"]),
        "own classes": accuracy(result["accuracy"].get("head_own")),
        "by prototype": accuracy(result["accuracy"]["prototype"]),
        "server": number(result["global"]["accuracy"]),
        **{name: number(personal.get(key)) for name, key in _PERSONAL.items()},
        "mIoU server": number(overlap.get("mean"), 1, 3),
        "mIoU clients": number((overlap.get("clients") or {}).get("head", {}).get("mean"), 1, 3),
        "sent up": TableCell(f"{cost['up_params']:,}", cost["up_params"]),
        "MB": TableCell(f"{megabytes:.1f}", megabytes),
        "time": TableCell(duration(result["seconds"]["total"]), result["seconds"]["total"]),
    }


def _run_table(runs: Sequence[StoredRun]) -> ResultTable:
    rows = [_cells(run) for run in runs]
    if len({run.folder.name for run in runs}) < len(runs):  # the runs of a sweep have equal names in different folders
        for row, run in zip(rows, runs, strict=True):
            marks = row["run"].text.removeprefix(run.folder.name)
            row["run"] = row["run"]._replace(text="/".join(run.folder.parts[-2:]) + marks)
    left_out = {"time"} if any(row[name].text != "-" for row in rows for name in _PERSONAL) else set(_PERSONAL)
    per_pixel = any(row[name].text != "-" for row in rows for name in _OVERLAPS)
    left_out |= {"own classes", "MB"} if per_pixel else set(_OVERLAPS)
    columns = [name for name in rows[0] if name not in left_out]
    return ResultTable(columns, [[row[name] for name in columns] for row in rows], _remarks(runs), labels=2)


def _remarks(runs: Sequence[StoredRun]) -> list[str]:
    """The meaning of the columns, differences that make runs hard to compare, and the majority-class baseline."""
    results = [run.summary for run in runs]
    baselines = [value for result in results if (value := (result.get("miou") or {}).get("background")) is not None]
    own_classes = (
        "Own classes: by head, which chooses only among the classes that the client trains on, as personal heads and "
        "prototypes usually do. "
    )
    notes = [
        "By head, by prototype: mean accuracy ± standard deviation over clients in %, each on its own test set. "
        f"{'' if baselines else own_classes}Server: the server's own model on the balanced test set, or on all "
        "clients' test sets if there is none. Sent up: numbers per round, from all clients together."
        f"{'' if baselines else ' MB: sent in both directions over the whole run.'}"
    ]
    if any(result["personal"].get("v") is not None for result in results):
        notes.append(
            "PM(V), PM(L): the clients' latest models on the balanced test set, by head. The classes that a client "
            "holds have equal weights in PM(V), and weights by their number of training examples in PM(L)."
        )
    if baselines:
        notes.append(
            "mIoU: the mean over classes, with the background, of intersection over union; of the server's model on "
            "the balanced test set, and the mean over clients by head. Accuracies are shares of pixels. Background "
            f"everywhere: {', '.join(f'{baseline:.3f}' for baseline in sorted(set(baselines)))}."
        )
    notes.append(f"Data: {', '.join(dict.fromkeys(run.data for run in runs))}.")
    notes += [f"Careful: these runs have different {what}." for what in _differences(runs)]
    if any(run.unfinished for run in runs):
        notes.append("Careful: the figures of runs that are not finished are those of the rounds so far.")
    if diverged := [str(run.folder) for run in runs if run.state == "diverged"]:
        notes.append(f"Careful: the loss of {', '.join(diverged)} is not finite: it has diverged.")
    if len({result["majority"] for result in results}) == 1 and results[0]["majority"] is not None:
        notes.append(
            f"Majority-class baseline: {100 * results[0]['majority']:.1f} % "
            "(always predicting the most frequent class of a client's training examples)."
        )
    return notes


def _differences(runs: Sequence[StoredRun]) -> list[str]:
    """In what the runs differ although a comparison needs it to be equal."""
    partitions: dict[int, set[str | None]] = {}
    seeds: dict[str, set[int]] = {}
    for name, group in group_by_setting(runs).items():
        for run in group:
            partitions.setdefault(run.seed, set()).add(run.partition().get("sha256"))
            seeds.setdefault(name, set()).add(run.seed)
    unequal = {
        "datasets": len({run.summary["dataset"] for run in runs}) > 1,
        "partitions of the data": any(len(hashes) > 1 for hashes in partitions.values()),
        "seeds": len(set(map(frozenset, seeds.values()))) > 1,
        "numbers of rounds": len({run.summary["rounds"] for run in runs}) > 1,
    }
    return [what for what, differs in unequal.items() if differs]
