"""How evenly accuracy is distributed over clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def evenness(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, standard deviation, mean of the worst tenth (rounded up) and Jain's index of values, one per client.

    Jain et al. 1984: (sum x)^2 / (n sum x^2); from 1/n, if only one value is not 0, to 1, if all values are equal.
    None if there are no values.

    >>> evenness([0.0, 1.0])
    {'mean': 0.5, 'std': 0.5, 'worst_tenth': 0.0, 'jain': 0.5}
    """
    if not len(values):
        return None
    ordered = np.sort(np.asarray(values, dtype=float))
    squares = len(ordered) * float(np.square(ordered).sum())
    return {
        "mean": float(ordered.mean()),
        "std": float(ordered.std()),
        "worst_tenth": float(ordered[: -(-len(ordered) // 10)].mean()),
        "jain": float(ordered.sum()) ** 2 / squares if squares else 1.0,
    }
