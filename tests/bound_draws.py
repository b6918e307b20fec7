"""Bounds in many random draws, for the tests of theory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

PAGE = (Path(__file__).parents[1] / "docs" / "theory.md").read_text(encoding="utf-8")
DRAWS = 10_000
ROUNDING = 1e-9
"""Sums of a few hundred doubles of size 1 to 1000."""


def norm(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x, axis=-1)


def over_draws(bound: Any, **constants: Any) -> np.ndarray:
    """A scalar function for every draw."""
    names, columns = list(constants), np.broadcast_arrays(*constants.values())
    return np.array([bound(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)])


def never_above(left: np.ndarray, right: np.ndarray) -> bool:
    return bool((left <= right + ROUNDING * (1 + np.abs(right))).all())


def share_above(left: np.ndarray, right: np.ndarray) -> float:
    return float((left > right + ROUNDING * (1 + np.abs(right))).mean())


def share_of_failures(name: str, left: np.ndarray, right: np.ndarray) -> float:
    """In how many draws a printed bound fails; docs/theory.md must say it."""
    share = share_above(left, right)
    assert f"| {name} | {100 * share:.0f} % |" in PAGE, (name, share)
    return share
