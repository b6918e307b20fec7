"""Read files of a run folder; if they are damaged, the error says how to recreate them."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

from protofed.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def recreated_by_resume(path: Path) -> str:
    """What to do about a damaged or missing file of a run folder that follows from its checkpoint."""
    start = "Delete it and run" if path.exists() else "Run"
    return f"{start} `protofed run --resume --out {path.parent}` to recreate it."


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """The JSON object in a file of a run folder; an error if it does not have these keys."""
    advice = recreated_by_resume(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        content = {}
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"{path} cannot be read: {problem}. {advice}") from problem
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing or not isinstance(content, dict):
        detail = f" (no {missing[0]})" if missing else ""
        raise UserError(f"{path} is {'incomplete' if path.exists() else 'missing'}{detail}. {advice}")
    return content


def read_client_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a clients.csv, with numbers where its columns have numbers."""
    advice = recreated_by_resume(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [{key: _client_cell(key, text) for key, text in row.items()} for row in csv.DictReader(file)]
    except (OSError, ValueError, TypeError, AttributeError, csv.Error) as problem:  # cells without a column, or none
        raise UserError(f"{path} cannot be read: {problem}. {advice}") from problem
    if not all("client" in row for row in rows) or not rows:
        raise UserError(f"{path} is damaged: it has no rows of clients. {advice}")
    return rows


def _client_cell(column: str, text: str) -> Any:
    """The value of a cell of clients.csv."""
    if column.startswith(("accuracy_", "wilson_", "miou_", "personal_", "temperature_")):
        return float(text) if text else None
    return int(text) if column in ("client", "train", "test") else text
