"""The mean and standard deviation of accuracy over clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

Reporting = Literal["clients", "running"]
"""The values of `eval.reporting`: over the clients, or over the running averages of FedProto's authors' code."""


def accuracy_mean_and_std(
    correct: Sequence[int], total: Sequence[int], reporting: Reporting = "clients"
) -> dict[str, float] | None:
    """The mean and (population) standard deviation of accuracy over the clients that have test examples; None without.

    `correct` and `total` are counts per client. `running` is what FedProto's authors' code prints. It never resets its
    counts between clients: the value of a client is the average up to that client, and the deviation is far too small.

    >>> accuracy_mean_and_std([1, 3], [4, 4]), accuracy_mean_and_std([1, 3], [4, 4], "running")
    ({'mean': 0.5, 'std': 0.25}, {'mean': 0.375, 'std': 0.125})
    """
    hits, totals = np.asarray(correct, dtype=float), np.asarray(total, dtype=float)
    hits, totals = hits[totals > 0], totals[totals > 0]
    if not len(totals):
        return None
    accuracies = hits / totals if reporting == "clients" else np.cumsum(hits) / np.cumsum(totals)
    return {"mean": float(accuracies.mean()), "std": float(accuracies.std())}
