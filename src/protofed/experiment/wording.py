"""Numbers and events as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def percent(spread: dict[str, float] | None) -> str:
    """A mean accuracy and its standard deviation over clients: "94.4 % ± 5.4"; "-" if there is none."""
    return "-" if not spread or spread["mean"] is None else f"{100 * spread['mean']:.1f} % ± {100 * spread['std']:.1f}"


def quantity(number: int, noun: str) -> str:
    """A number with its noun: "1 round", "30 rounds"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time in its largest units: "8 s", "2 min 5 s", "1 h 3 min", "2 d 5 h"."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    if rounded < 48 * 3600:
        return f"{rounded // 3600} h {rounded % 3600 // 60} min"
    return f"{rounded // 86400} d {rounded % 86400 // 3600} h"


def dataset_title(dataset: str, remark: str) -> str:
    """The name of a dataset with its remark.

    >>> dataset_title("synthdigits", "re-made")
    'synthdigits (re-made)'
    """
    return f"{dataset} ({remark})" if remark else dataset


def void_text(row: Mapping[str, Any]) -> str:
    """What to tell the user about a round that had too few uploads; an empty text for other rounds."""
    if not row.get("void"):
        return ""
    reason = row.get("void_reason", "too few usable uploads (trust.quorum)").rstrip(".")
    return f"round {row['round']} is void: {reason}, the server's state is unchanged"
