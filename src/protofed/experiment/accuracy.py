"""Accuracy over clients: mean and standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

Reporting = Literal["clients", "running"]


def over_clients(
    correct: Sequence[int], total: Sequence[int], reporting: Reporting = "clients"
) -> dict[str, float] | None:
    """Mean and (population) standard deviation over the clients that have test examples.

    `running` is what FedProto's authors' code prints: counts are never reset between clients, so that each client's
    figure is the average over all up to it, and the spread comes out far too small.

    >>> over_clients([1, 3], [4, 4]), over_clients([1, 3], [4, 4], "running")
    ({'mean': 0.5, 'std': 0.25}, {'mean': 0.375, 'std': 0.125})
    """
    right, asked = np.asarray(correct, dtype=float), np.asarray(total, dtype=float)
    right, asked = right[asked > 0], asked[asked > 0]
    if not len(asked):
        return None
    share = right / asked if reporting == "clients" else np.cumsum(right) / np.cumsum(asked)
    return {"mean": float(share.mean()), "std": float(share.std())}
