"""FedNH's accuracies of personal models (Dai et al. 2023, section 4.1): a client's model on the balanced test set.

Classes are weighted in three ways. `v`: equally, all classes that the client holds. `l`: by the number of training
examples that the client has of the class. `all`: every test example counts the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protofed.engines.scoring import Hits, with_input_shape

if TYPE_CHECKING:
    from protofed.examples import Examples

PERSONAL_KEYS = ("v", "l", "all")
Personal = dict[str, dict[int, dict[str, float | None]]]
"""Accuracies per way of predicting and client: by `PERSONAL_KEYS`, None if no example counts."""


def weighted_accuracy(hits: Sequence[int], totals: Sequence[int], weights: Sequence[float]) -> float | None:
    """Section 4.1: the accuracy with a weight per class; None if no example counts.

    >>> weighted_accuracy([5, 0, 9], [10, 10, 10], [1, 1, 0])
    0.25
    """
    weighted_total = float(np.dot(weights, totals))
    return float(np.dot(weights, hits)) / weighted_total if weighted_total > 0 else None


def personal_accuracies(
    hits: Sequence[int], totals: Sequence[int], train_counts: Sequence[int]
) -> dict[str, float | None]:
    """The accuracies of a client's model. All arguments are counts per class.

    `hits`: correct predictions on the test set; `totals`: its examples; `train_counts`: the client's training examples.

    >>> personal_accuracies([8, 2, 4], [10, 10, 10], train_counts=[3, 1, 0])
    {'v': 0.5, 'l': 0.65, 'all': 0.4666666666666667}
    """
    return {
        "v": weighted_accuracy(hits, totals, [count > 0 for count in train_counts]),
        "l": weighted_accuracy(hits, totals, train_counts),
        "all": weighted_accuracy(hits, totals, [1] * len(totals)) if any(train_counts) else None,
    }


def accuracies_by_client(
    hits: Mapping[int, Hits], train: Sequence[Examples], balanced: Sequence[Examples], classes: int
) -> Personal:
    """The accuracies of all clients, from their hits on the balanced test set."""
    accuracies: Personal = {}
    for client, client_hits in sorted(hits.items()):
        parts = with_input_shape(balanced, train[client].shape)
        totals = torch.stack([part.class_counts(classes) for part in parts]).sum(0)
        train_counts = train[client].class_counts(classes).tolist()
        for way, class_hits in client_hits.items():
            accuracies.setdefault(way, {})[client] = personal_accuracies(class_hits, totals.tolist(), train_counts)
    return accuracies


def mean_and_std(rows: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """The mean and standard deviation over the clients that have examples. Table 2 calls the deviation fairness."""
    statistics: dict[str, Any] = {}
    for key in PERSONAL_KEYS:
        values = [value for row in rows if (value := row[key]) is not None]
        statistics |= (
            {key: float(np.mean(values)), f"{key}_std": float(np.std(values))}
            if values
            else {key: None, f"{key}_std": None}
        )
    return statistics
