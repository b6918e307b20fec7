"""Runs side by side: accuracy by head and by prototype, spread over clients, cost."""

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
"""Columns of runs with eval.personal, in which they take the place of the time."""


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
    """The same for runs that differ in nothing but the seed."""
    file = path / "config.toml"
    if not file.exists():
        return str(path)
    config = Config.load(file)
    return replace(config, run=replace(config.run, seed=0)).digest()


def _cells(result: dict[str, Any]) -> dict[str, str]:
    """A run in words."""
    cost, shared, own = result["cost"], result["global"]["accuracy"], result["personal"]
    return {
        "run": Path(result["run"]).name,
        "method": result["method"],
        "by head": percent(result["accuracy"]["head"]),
        "by prototype": percent(result["accuracy"]["prototype"]),
        "server": "-" if shared is None else f"{100 * shared:.1f} %",
        **{name: "-" if own.get(key) is None else f"{100 * own[key]:.1f} %" for name, key in _PERSONAL.items()},
        "sent up": f"{cost['up_params']:,}",
        "MB": f"{(cost['up_bytes'] + cost['down_bytes']) / 1e6:.1f}",
        "time": duration(result["seconds"]["total"]),
    }


def compare_table(results: Sequence[dict[str, Any]]) -> Table:
    """One row a run."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    rows = [_cells(result) for result in results]
    if len({row["run"] for row in rows}) < len(rows):  # as the runs of a sweep are called
        longer = ["/".join(Path(result["run"]).parts[-2:]) for result in results]
        rows = [{**row, "run": name} for row, name in zip(rows, longer, strict=True)]
    left_out = {"time"} if any(row[name] != "-" for row in rows for name in _PERSONAL) else set(_PERSONAL)
    shown = [name for name in rows[0] if name not in left_out]
    for name in shown:
        made.add_column(name, justify="left" if name in ("run", "method") else "right", overflow="fold")
    for row in rows:
        made.add_row(*(row[name] for name in shown))
    return made


def by_setting(results: Sequence[dict[str, Any]]) -> list[SettingRow]:
    """Runs that differ in their seed alone, together; empty where no two do."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(result["setting"], []).append(result)
    if max(len(own) for own in groups.values()) < 2:
        return []
    methods = [own[0]["method"] for own in groups.values()]
    made = []
    for own in groups.values():
        method = own[0]["method"]
        row = SettingRow(method if methods.count(method) == 1 else Path(own[0]["run"]).parent.name, {})
        for result in own:
            for name, value in figures_of(result):
                row.figures.setdefault(name, {})[result["seed"]] = value
        made.append(row)
    return made


def over_seeds(rows: Sequence[SettingRow]) -> Table:
    """One row a setting: means over seeds with their intervals, and the difference to the first setting."""
    shown = ("by head", "by prototype", "server", "validation")
    names = [name for name in shown if any(name in row.figures for row in rows)]
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("setting", *names, "head, beside the first"):
        made.add_column(name, justify="left" if name == "setting" else "right", overflow="fold")
    for row in rows:
        intervals = [row.interval(name) for name in names]
        gap = row.beside(rows[0], "by head") if row is not rows[0] else None
        marked = "" if gap is None else f"{gap.percent('+')}{' *' if gap.sure else ''}"
        made.add_row(row.setting, *(one.percent() if one else "-" for one in intervals), marked)
    return made


EXPLAINED = (
    "Accuracies in percent: mean over seeds ± the half-width of the 95 % interval (Student's t); differences are of "
    "runs with the same seed, * where 0 is outside of the interval."
)


def remarks(results: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader of the table must know: whether the runs can be compared at all, and what chance is."""
    notes = [
        "By head, by prototype: mean accuracy ± spread over clients, each on its own test set. Server: the server's "
        "own model on the balanced test set, or on all clients' where there is none. Sent up: numbers a round, from "
        "all clients. MB: both ways, the whole run."
    ]
    if any(result["personal"].get("v") is not None for result in results):
        notes.append(
            "PM(V), PM(L): the clients' latest models on the balanced test set, by head: the classes they hold count "
            "the same, or as often as they hold them."
        )
    named = dict.fromkeys(dataset_title(result["dataset"], result.get("remark", "")) for result in results)
    notes.append(f"Data: {', '.join(named)}.")
    for key, what in (
        ("dataset", "datasets"),
        ("partition", "partitions of the data"),
        ("seed", "seeds"),
        ("rounds", "numbers of rounds"),
    ):
        if len({result[key] for result in results}) > 1:
            notes.append(f"Careful: these runs have different {what}.")
    if len({result["majority"] for result in results}) == 1 and results[0]["majority"] is not None:
        notes.append(f"Always answering a client's commonest class gives {100 * results[0]['majority']:.1f} %.")
    return notes
