"""The list of run folders below a folder, as `protofed runs` shows it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.experiment.stored import has_diverged, read_settings, summary_so_far
from protofed.experiment.table import ResultTable, TableCell
from protofed.experiment.wording import duration, percent

_LONGEST = 42
"""The number of characters of a path that are shown."""
_HEADS = ("run", "state", "method", "data", "seed", "rounds", "by head", "by prototype", "age")


def run_folders(root: Path) -> list[Path]:
    """All run folders in a folder, or this folder itself. Folders inside a run folder are not searched."""
    if not root.is_dir():
        raise UserError(f"There is no folder {root}. Give a folder with runs, for example: protofed runs DIR.")
    found = []
    for path, folders, files in os.walk(root):
        folders.sort()
        if "config.toml" in files:
            found.append(Path(path))
            folders.clear()
    return found


def list_runs(root: Path) -> ResultTable:
    """A row per run folder. A folder with files that cannot be read is listed as damaged."""
    paths = run_folders(root)
    if not paths:
        raise UserError(f"There are no run folders in {root}. Give a folder with runs, for example: protofed runs DIR.")
    rows = []
    for path in paths:
        name = TableCell(shortened(str(path)), str(path))
        try:
            rows.append([name, *_cells_of_run(path)])
        except UserError:
            rows.append([name, TableCell("damaged", "damaged"), *[TableCell("-")] * (len(_HEADS) - 2)])
    return ResultTable(_HEADS, rows, labels=4)


def shortened(path: str) -> str:
    """A long path without its middle, so that a table fits a screen. CSV and JSON have all of it.

    >>> shortened("runs/a"), shortened("runs/reproduce/" + 40 * "x" + "/seed-0")
    ('runs/a', 'runs/reproduce/xxxxx...xxxxxxxxxxxx/seed-0')
    """
    return path if len(path) <= _LONGEST else f"{path[:20]}...{path[-(_LONGEST - 23) :]}"


def _cells_of_run(path: Path) -> list[TableCell]:
    """The state of a run, its experiment, its result and the time since its last round."""
    files, settings = Folder(path), read_settings(path / "config.toml")
    summary: dict[str, Any] = {}
    if (path / "result.json").exists():
        summary = files.result()
        state, done = "diverged" if has_diverged(summary) else "finished", summary["rounds"]
    else:
        rounds = files.rounds()
        state, done = "running" if files.is_in_use() else "stopped", len(rounds)
        summary = summary_so_far(settings, files, rounds) if rounds else {}
    changed = [path / name for name in ("config.toml", "rounds.jsonl", "result.json") if (path / name).exists()]
    age = time.time() - max(file.stat().st_mtime for file in changed)
    method, seed, rounds = settings["method"]["name"], settings["run"]["seed"], settings["run"]["rounds"]
    data = summary.get("dataset", settings["data"]["name"])
    accuracies = [(summary.get("accuracy") or {}).get(way) for way in ("head", "prototype")]
    return [
        TableCell(state, state),
        TableCell(method, method),
        TableCell(data, data),
        TableCell(str(seed), seed),
        TableCell(f"{done}/{rounds}", done),
        *(TableCell(percent(spread), spread["mean"] if spread else None) for spread in accuracies),
        TableCell(duration(age), age),
    ]
