"""Communication cost of a run, in total and until an accuracy was reached, from the rows of rounds.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protofed.experiment.results import RoundRow

_COST_KEYS = ("up_params", "down_params", "up_bytes", "down_bytes")


def cost_of_rounds(rows: Sequence[RoundRow]) -> dict[str, int]:
    """The numbers and bytes that were sent in these rounds, up and down; `bytes` is the sum of both directions.

    >>> cost_of_rounds([{"up_params": 2, "down_params": 3, "up_bytes": 8, "down_bytes": 12}] * 2)
    {'rounds': 2, 'up_params': 4, 'down_params': 6, 'up_bytes': 16, 'down_bytes': 24, 'bytes': 40}
    """
    total = {key: sum(row[key] for row in rows) for key in _COST_KEYS}
    return {"rounds": len(rows), **total, "bytes": total["up_bytes"] + total["down_bytes"]}


def cost_until(rows: Sequence[RoundRow], accuracy: float, key: str = "accuracy_head") -> dict[str, int] | None:
    """The cost up to and including the first round in which `key` is at least `accuracy`; None if there is none."""
    for position, row in enumerate(rows):
        value = row.get(key)
        if value is not None and value >= accuracy:
            return cost_of_rounds(rows[: position + 1])
    return None
