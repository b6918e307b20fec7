"""Class names, and class numbers for the labels of a user's own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from protofed.errors import UserError, did_you_mean

ClassNames = tuple[str | int, ...]
"""The names of the classes 0, 1, ..."""
MOST_CLASSES = 10_000
"""More classes than this are taken for a mistake, unless the user gives the classes."""
_INEXACT = 2.0**53
"""From here on, not every whole number can be stored as a float."""


def checked_labels(y: np.ndarray, owner: str) -> np.ndarray:
    """The labels of a file as whole numbers or text; an error that says what is wrong. `owner` begins the message."""
    if y.dtype.kind == "f":
        if missing := int(np.isnan(y).sum()):
            raise UserError(
                f"{owner}: {missing:,} of {y.size:,} labels are missing (NaN). Delete these rows, or fill them in."
            )
        if not np.array_equal(y, np.round(y)) or not np.isfinite(y).all():
            strange = y[~np.isfinite(y) | (y != np.round(y))].flat[0]
            raise UserError(f"{owner}: got the label {strange:g}; labels must be whole numbers or names.")
        if (inexact := y[np.abs(y) >= _INEXACT]).size:
            raise UserError(
                f"{owner}: got the label {inexact.flat[0]:g}, which is too large to be exact. Give smaller whole "
                "numbers, or names."
            )
        y = y.astype(np.int64)
    if y.dtype.kind in "SV":
        raise UserError(f"{owner}: its labels are of type {y.dtype}; they must be whole numbers or text (astype(str)).")
    if y.dtype.kind not in "biuU":
        raise UserError(f"{owner}: its labels are of type {y.dtype}; they must be whole numbers or names.")
    return y.astype(np.int64) if y.dtype.kind == "b" else y


def class_names(labels: Sequence[np.ndarray], classes: int | Sequence[str | int] | None) -> tuple[str | int, ...]:
    """The names of the classes: those given as `classes` (or that many numbers), else those found in the labels."""
    nonempty = [y for y in labels if len(y)]
    by_name = any(y.dtype.kind == "U" for y in nonempty)
    if by_name and any(y.dtype.kind != "U" for y in nonempty):
        raise UserError("data: some clients' labels are names, others' are whole numbers. Use the same kind for all.")
    if isinstance(classes, int | np.integer):
        classes = int(classes)
        if by_name:
            raise UserError(f"classes: got {classes}, but the labels are names; must be the list of names, or None.")
        if classes < 1:
            raise UserError(f"classes: got {classes}; must be 1 or more, or None.")
        return tuple(range(classes))
    if classes is not None:
        classes = np.asarray(classes).tolist() if isinstance(classes, np.ndarray) else list(classes)
        if len(set(classes)) < len(classes):
            repeated = next(name for name in classes if classes.count(name) > 1)
            raise UserError(f"classes: got {repeated!r} more than once. Give each class once.")
        return tuple(classes)
    if by_name:
        return tuple(np.unique(np.concatenate(nonempty)).tolist())
    count = max((int(y.max()) for y in nonempty), default=0) + 1
    if count > MOST_CLASSES:
        raise UserError(
            f"data: label {count - 1} would make {count:,} classes. Give `classes`, the list of all labels."
        )
    return tuple(range(count))


def class_numbers(labels: tuple[str | int, ...], y: np.ndarray, owner: str) -> np.ndarray:
    """The class numbers [n] of the labels y [n]. `owner` begins the error messages."""
    values, inverse = np.unique(y, return_inverse=True)
    are_positions = y.dtype.kind != "U" and all(isinstance(label, str) for label in labels)  # in the list of names
    numbers: dict[Any, int] = {number if are_positions else label: number for number, label in enumerate(labels)}
    for label in values.tolist():
        if label not in numbers:
            if isinstance(label, str) and label in map(str, labels):
                raise UserError(f"{owner}: its labels are text, but the classes are numbers. Give whole numbers.")
            smallest = min((one for one in numbers if isinstance(one, int)), default=0)
            if isinstance(label, int) and label < 0 <= smallest:
                raise UserError(
                    f"{owner}: got the label {label}; labels must be 0 or more. Leave out examples without a label, or "
                    "renumber the labels of all clients."
                )
            hint = (
                did_you_mean(str(label), map(str, labels)) if len(labels) <= 30 else f"There are {len(labels)} classes."
            )
            raise UserError(f"{owner}: there is no class {label!r}. {hint}")
    return np.array([numbers[label] for label in values.tolist()], dtype=np.int64)[inverse]
