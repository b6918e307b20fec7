"""Labels by name: what the classes are called, and class numbers for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from protofed.errors import UserError, did_you_mean

_MOST_SHOWN = 10_000
"""More classes than this are taken for a slip, unless they are given."""


def names(labels: Sequence[np.ndarray], classes: int | Sequence[str | int] | None) -> tuple[str | int, ...]:
    """What the classes are called."""
    there = [y for y in labels if len(y)]
    by_name = any(y.dtype.kind == "U" for y in there)
    if by_name and any(y.dtype.kind != "U" for y in there):
        raise UserError("data: some clients' labels are names, others' are whole numbers. Use one of them.")
    if isinstance(classes, int | np.integer):
        classes = int(classes)
        if by_name or classes < 1:
            raise UserError(
                f"classes: got {classes}; must be {'the list of names' if by_name else '1 or more'}, or None."
            )
        return tuple(range(classes))
    if classes is not None:
        classes = np.asarray(classes).tolist() if isinstance(classes, np.ndarray) else list(classes)
        if len(set(classes)) < len(classes):
            raise UserError("classes: a name is there twice.")
        return tuple(classes)
    if by_name:
        return tuple(np.unique(np.concatenate(there)).tolist())
    count = max((int(y.max()) for y in there), default=0) + 1
    if count > _MOST_SHOWN:
        raise UserError(f"data: label {count - 1} would make {count:,} classes. Give `classes`, the labels there are.")
    return tuple(range(count))


def numbered(labels: tuple[str | int, ...], y: np.ndarray, whose: str) -> np.ndarray:
    """Labels as class numbers [n]."""
    found, inverse = np.unique(y, return_inverse=True)
    numbers = y.dtype.kind != "U" and all(isinstance(label, str) for label in labels)  # places in the list of names
    places: dict[Any, int] = {place if numbers else label: place for place, label in enumerate(labels)}
    for label in found.tolist():
        if label not in places:
            if isinstance(label, str) and label in map(str, labels):
                raise UserError(f"{whose}: its labels are text, but the classes are numbers. Give numbers.")
            hint = did_you_mean(str(label), map(str, labels)) if len(labels) <= 30 else f"There are {len(labels)}."
            raise UserError(f"{whose}: there is no class {label!r}. {hint}")
    return np.array([places[label] for label in found.tolist()], dtype=np.int64)[inverse]
