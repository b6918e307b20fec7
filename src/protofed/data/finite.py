"""Checks that inputs are finite numbers before anything is trained, and says where they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from protofed.errors import UserError

_ROWS_AT_ONCE = 4096
_PLACES_SHOWN = 3
_LARGEST = float(np.finfo(np.float32).max)


def check_finite(
    where: str,
    x: np.ndarray,
    missing_allowed: bool = False,
    advice: str = "",
    find_owners: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Raise an error if the inputs x [n, ...] have values that a net cannot compute with.

    `where` names the array and where it comes from. `missing_allowed`: NaN will be filled in. `advice`: what to do
    about NaN. `find_owners` returns the name of the client or user of each row, or nothing if it is not known.
    """
    if x.dtype.kind != "f":
        return
    chunks = [np.asarray(x[start : start + _ROWS_AT_ONCE]) for start in range(0, len(x), _ROWS_AT_ONCE)]
    missing = _counts([np.isnan(chunk) for chunk in chunks])
    if missing.any() and not missing_allowed:
        raise UserError(
            f"{where}: {missing.sum():,} of {x.size:,} values are missing (NaN){_places(missing, find_owners())}. "
            f"{advice or 'Fill them in, or delete these rows.'}"
        )
    infinite = _counts([np.abs(chunk) > np.float64(_LARGEST) for chunk in chunks])  # float16 cannot hold the limit
    if infinite.any():
        raise UserError(
            f"{where}: {infinite.sum():,} of {x.size:,} values are infinite or larger than 3.4e38"
            f"{_places(infinite, find_owners())}. Correct them, or delete these rows."
        )


def count_missing(x: np.ndarray) -> int:
    """The number of missing values (NaN)."""
    if x.dtype.kind != "f":
        return 0
    return sum(int(np.isnan(x[start : start + _ROWS_AT_ONCE]).sum()) for start in range(0, len(x), _ROWS_AT_ONCE))


def _counts(masks: list[np.ndarray]) -> np.ndarray:
    """The number of marked values per row and column [n, columns]; of inputs with more dimensions, per row [n, 1]."""
    if not masks:
        return np.zeros((0, 1), np.int64)
    return np.concatenate(
        [mask if mask.ndim == 2 else mask.reshape(len(mask), -1).sum(1, keepdims=True) for mask in masks]
    ).astype(np.int64)


def _places(counts: np.ndarray, owners: Sequence[str]) -> str:
    """Where the values are: the columns of a table or the rows of other inputs, and their owners."""
    per_row, per_column = counts.sum(1), counts.sum(0)
    if counts.shape[1] > 1:
        places = [f"x[:, {column}] ({per_column[column]:,})" for column in np.flatnonzero(per_column)]
    else:
        places = [f"x[{row}]" for row in np.flatnonzero(per_row)]
    text = f", in {_some(places)}"
    if len(owners):
        by_owner: dict[str, int] = {}
        for row in np.flatnonzero(per_row).tolist():
            by_owner[owners[row]] = by_owner.get(owners[row], 0) + int(per_row[row])
        text += f", of {_some([f'{owner} ({count:,})' for owner, count in by_owner.items()])}"
    return text


def _some(places: list[str]) -> str:
    """The first few of the places, and how many more there are."""
    more = f" and {len(places) - _PLACES_SHOWN:,} more" if len(places) > _PLACES_SHOWN else ""
    return ", ".join(places[:_PLACES_SHOWN]) + more
