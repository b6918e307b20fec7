"""How evenly accuracy is spread over clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def evenness(values: Sequence[float]) -> dict[str, float] | None:
    """How evenly clients fare: mean, standard deviation, the mean of the worst tenth (rounded up), Jain's index.

    Jain et al. 1984: (sum x)^2 / (n sum x^2), from 1/n, one client has everything, to 1, all have the same.

    >>> evenness([0.0, 1.0])
    {'mean': 0.5, 'std': 0.5, 'worst_tenth': 0.0, 'jain': 0.5}
    """
    if not len(values):
        return None
    share = np.sort(np.asarray(values, dtype=float))
    squares = len(share) * float(np.square(share).sum())
    return {
        "mean": float(share.mean()),
        "std": float(share.std()),
        "worst_tenth": float(share[: -(-len(share) // 10)].mean()),
        "jain": float(share.sum()) ** 2 / squares if squares else 1.0,
    }
