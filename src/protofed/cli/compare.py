"""The tables of `protofed compare`: accuracy by head and by prototype, spread over clients, cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder
from protofed.experiment.members import dataset_title
from protofed.experiment.wording import duration, percent
from protofed.measures.intervals import SettingRow, figures_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_PERSONAL = {"PM(V)": "v", "PM(L)": "l"}
"""Columns for runs with eval.personal, and their keys in result.json. They replace the column of the time."""


_OVERLAPS = ("mIoU server", "mIoU clients")
"""Columns for runs in which every pixel has a label. Own classes and MB make room for them."""


def collect(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The results of the run folders, each with its folder and the hash of its partition."""
    missing = [str(path) for path in paths if not path.is_dir()]
    if missing:
        raise UserError(f"There is no folder {', '.join(missing)}. Give folders that `protofed run --out` wrote.")
    return [
        {
            "run": str(path),
            **Folder(path).result(),
            "partition": (Folder(path).partition() or {}).get("sha256"),
            "setting": _setting(path),
        }
        for path in paths
    ]


def _setting(path: Path) -> str:
    """A key that is equal for runs that differ only in their seed or their number of rounds."""
    file = path / "config.toml"
    if not file.exists():
        return str(path)
    config = Config.load(file)
    budget = f" {config.run.seconds:g} s" if config.run.seconds else ""
    return replace(config, run=replace(config.run, seed=0)).digest() + budget


def _cells(result: dict[str, Any]) -> dict[str, str]:
    """The row of a run, by column."""
    cost, server_accuracy, personal = result["cost"], result["global"]["accuracy"], result["personal"]
    overlap = result.get("miou") or {}
    return {
        "run": Path(result["run"]).name,
        "method": result["method"],
        "by head": _mean_and_std(result["accuracy"]["head"]),
        "own classes": _mean_and_std(result["accuracy"].get("head_own")),
        "by prototype": _mean_and_std(result["accuracy"]["prototype"]),
        "server": "-" if server_accuracy is None else f"{100 * server_accuracy:.1f}",
        **{name: "-" if personal.get(key) is None else f"{100 * personal[key]:.1f}" for name, key in _PERSONAL.items()},
        "mIoU server": _overlap(overlap.get("mean")),
        "mIoU clients": _overlap((overlap.get("clients") or {}).get("head", {}).get("mean")),
        "sent up": f"{cost['up_params']:,}",
        "MB": f"{(cost['up_bytes'] + cost['down_bytes']) / 1e6:.1f}",
        "time": duration(result["seconds"]["total"]),
    }


def _overlap(value: float | None) -> str:
    """A mean intersection over union; "-" if there is none."""
    return "-" if value is None else f"{value:.3f}"


def _mean_and_std(accuracy: dict[str, float] | None) -> str:
    """A mean and standard deviation; the columns have no room for the sign for percent."""
    return percent(accuracy).replace(" %", "")


def compare_table(results: Sequence[dict[str, Any]]) -> Table:
    """One row per run."""
    table = Table(box=SIMPLE_HEAD, padding=0)  # so that all columns fit 80 characters
    rows = [_cells(result) for result in results]
    if len({row["run"] for row in rows}) < len(rows):  # the runs of a sweep have equal names in different folders
        names = ["/".join(Path(result["run"]).parts[-2:]) for result in results]
        rows = [{**row, "run": name} for row, name in zip(rows, names, strict=True)]
    left_out = {"time"} if any(row[name] != "-" for row in rows for name in _PERSONAL) else set(_PERSONAL)
    per_pixel = any(row[name] != "-" for row in rows for name in _OVERLAPS)
    left_out |= {"own classes", "MB"} if per_pixel else set(_OVERLAPS)
    columns = [name for name in rows[0] if name not in left_out]
    for name in columns:
        is_text = name in ("run", "method")
        table.add_column(
            name if is_text else name.replace(" ", "\n", 1),
            justify="left" if is_text else "right",
            overflow="fold",
            no_wrap=not is_text,
        )
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def by_setting(results: Sequence[dict[str, Any]]) -> list[SettingRow]:
    """One row per setting, over the runs that differ only in their seed; empty if no two runs do."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(result["setting"], []).append(result)
    if max(map(len, groups.values())) < 2:
        return []
    methods = [runs[0]["method"] for runs in groups.values()]
    rows = []
    for runs in groups.values():
        method = runs[0]["method"]
        row = SettingRow(method if methods.count(method) == 1 else Path(runs[0]["run"]).parent.name, {})
        for result in runs:
            for name, value in figures_of(result):
                row.figures.setdefault(name, {})[result["seed"]] = value
        rows.append(row)
    return rows


def over_seeds(rows: Sequence[SettingRow]) -> Table:
    """One row per setting: means over seeds with their intervals, and the difference from the first setting."""
    columns = ("by head", "own classes", "by prototype", "server", "mIoU", "mIoU clients", "validation")
    names = [name for name in columns if any(name in row.figures for row in rows)]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    compared = len(rows) > 1
    for name in ("setting", *names, *(["by head, minus the first"] if compared else [])):
        table.add_column(name, justify="left" if name == "setting" else "right", overflow="fold")
    for row in rows:
        cells = [interval.percent() if (interval := row.interval(name)) else "-" for name in names]
        gap = row.compared_with(rows[0], "by head") if row is not rows[0] else None
        difference = "" if gap is None else f"{gap.percent('+')}{' *' if gap.excludes_zero else ''}"
        table.add_row(row.setting, *cells, *([difference] if compared else []))
    return table


EXPLAINED = (
    "Accuracies in percent: mean over seeds ± half-width of the 95 % confidence interval (Student's t). Differences "
    "are taken between runs with the same seed; * marks those with an interval that excludes 0."
)


def remarks(results: Sequence[dict[str, Any]]) -> list[str]:
    """The meaning of the columns, differences that make runs hard to compare, and the majority-class baseline."""
    notes = [
        "By head, by prototype: mean accuracy ± standard deviation over clients in %, each on its own test set. Own "
        "classes: by head, which chooses only among the classes that the client trains on, as personal heads and "
        "prototypes usually do. Server: the server's own model on the balanced test set, or on all clients' test sets "
        "if there is none. Sent up: numbers per round, from all clients together. MB: sent in both directions over the "
        "whole run."
    ]
    if any(result["personal"].get("v") is not None for result in results):
        notes.append(
            "PM(V), PM(L): the clients' latest models on the balanced test set, by head. The classes that a client "
            "holds have equal weights in PM(V), and weights by their number of training examples in PM(L)."
        )
    baselines = [value for result in results if (value := (result.get("miou") or {}).get("background")) is not None]
    if baselines:
        notes.append(
            "mIoU: the mean over classes, with the background, of intersection over union; of the server's model on "
            "the balanced test set, and the mean over clients by head. Accuracies are shares of pixels. Background "
            f"everywhere: {', '.join(f'{baseline:.3f}' for baseline in sorted(set(baselines)))}."
        )
    titles = dict.fromkeys(dataset_title(result["dataset"], result.get("remark", "")) for result in results)
    notes.append(f"Data: {', '.join(titles)}.")
    for key, plural in (
        ("dataset", "datasets"),
        ("partition", "partitions of the data"),
        ("seed", "seeds"),
        ("rounds", "numbers of rounds"),
    ):
        if len({result[key] for result in results}) > 1:
            notes.append(f"Careful: these runs have different {plural}.")
    if len({result["majority"] for result in results}) == 1 and results[0]["majority"] is not None:
        notes.append(
            f"Majority-class baseline: {100 * results[0]['majority']:.1f} % "
            "(always predicting the most frequent class of a client's test set)."
        )
    return notes
