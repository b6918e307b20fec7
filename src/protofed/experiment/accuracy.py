"""Accuracy over clients, its uncertainty at one client, and the majority-class baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

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


FEW_TESTS = 20
"""With fewer test examples, one example is more than 5 points of accuracy."""
_NORMAL_QUANTILE = 1.959963984540054
"""97.5 % of a normal distribution."""


def wilson_interval(correct: int, total: int) -> tuple[float, float] | None:
    """The 95 % interval of Wilson (1927) for an accuracy of `correct` out of `total` examples; None without examples.

    >>> tuple(round(end, 4) for end in wilson_interval(3, 4))
    (0.3006, 0.9544)
    """
    if not total:
        return None
    share, z2 = correct / total, _NORMAL_QUANTILE**2
    centre = share + z2 / (2 * total)
    half = _NORMAL_QUANTILE * (share * (1 - share) / total + z2 / (4 * total**2)) ** 0.5
    return max((centre - half) / (1 + z2 / total), 0.0), min((centre + half) / (1 + z2 / total), 1.0)


def majority_accuracy(train_counts: Tensor, test_counts: Tensor) -> float | None:
    """The accuracy on a test set of always predicting the most frequent training class; of equal ones, the first.

    Both are counts per class [classes]. None if either set is empty.

    >>> import torch
    >>> majority_accuracy(torch.tensor([5, 3]), torch.tensor([1, 3]))
    0.25
    """
    if not train_counts.sum() or not test_counts.sum():
        return None
    return float(test_counts[train_counts.argmax()]) / float(test_counts.sum())
