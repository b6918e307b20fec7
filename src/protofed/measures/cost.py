"""What a run has sent, and how much of it until it was good enough; from the rows of rounds.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protofed.experiment.results import RoundRow

_COST_KEYS = ("up_params", "down_params", "up_bytes", "down_bytes")


def cost_of_rounds(rows: Sequence[RoundRow]) -> dict[str, int]:
    """Numbers and bytes, up and down and both, in these rounds.

    >>> cost_of_rounds([{"up_params": 2, "down_params": 3, "up_bytes": 8, "down_bytes": 12}] * 2)
    {'rounds': 2, 'up_params': 4, 'down_params': 6, 'up_bytes': 16, 'down_bytes': 24, 'bytes': 40}
    """
    total = {key: sum(row[key] for row in rows) for key in _COST_KEYS}
    return {"rounds": len(rows), **total, "bytes": total["up_bytes"] + total["down_bytes"]}


def cost_until(rows: Sequence[RoundRow], accuracy: float, key: str = "accuracy_head") -> dict[str, int] | None:
    """What was sent until `key` was this high for the first time, that round included; None if it never was."""
    for place, row in enumerate(rows):
        reached = row.get(key)
        if reached is not None and reached >= accuracy:
            return cost_of_rounds(rows[: place + 1])
    return None
