"""Runs side by side: accuracy by head and by prototype, spread over clients, cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from protofed.errors import UserError
from protofed.folder import Folder
from protofed.members import titled
from protofed.screen import duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

PERSONAL = {"PM(V)": "v", "PM(L)": "l"}
"""Columns of runs with eval.personal, in which they take the place of the time."""


def collect(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The results of the run folders, each with its folder and the hash of its partition."""
    missing = [str(path) for path in paths if not path.is_dir()]
    if missing:
        raise UserError(f"There is no folder {', '.join(missing)}. Give folders that `protofed run --out` wrote.")
    return [
        {"run": str(path), **Folder(path).result(), "partition": (Folder(path).partition() or {}).get("sha256")}
        for path in paths
    ]


def cells(result: dict[str, Any]) -> dict[str, str]:
    """A run in words."""
    cost, shared, own = result["cost"], result["global"]["accuracy"], result["personal"]
    return {
        "run": Path(result["run"]).name,
        "method": result["method"],
        "by head": percent(result["accuracy"]["head"]),
        "by prototype": percent(result["accuracy"]["prototype"]),
        "server": "-" if shared is None else f"{100 * shared:.1f} %",
        **{name: "-" if own.get(key) is None else f"{100 * own[key]:.1f} %" for name, key in PERSONAL.items()},
        "sent up": f"{cost['up_params']:,}",
        "MB": f"{(cost['up_bytes'] + cost['down_bytes']) / 1e6:.1f}",
        "time": duration(result["seconds"]["total"]),
    }


def table(results: Sequence[dict[str, Any]]) -> Table:
    """One row a run."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    rows = [cells(result) for result in results]
    left_out = {"time"} if any(row[name] != "-" for row in rows for name in PERSONAL) else set(PERSONAL)
    shown = [name for name in rows[0] if name not in left_out]
    for name in shown:
        made.add_column(name, justify="left" if name in ("run", "method") else "right", overflow="fold")
    for row in rows:
        made.add_row(*(row[name] for name in shown))
    return made


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
    named = dict.fromkeys(titled(result["dataset"], result.get("remark", "")) for result in results)
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
