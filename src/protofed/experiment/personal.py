"""FedNH's measures of personal models (Dai et al. 2023, section 4.1): a client's model on the balanced test set.

The accuracy is weighted by class in two ways. V: every class that the client holds counts the same. L: every class
counts as often as the client has it. Beside them `all`: every example counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protofed.engines.scoring import Hits, fitting

if TYPE_CHECKING:
    from protofed.examples import Examples

PERSONAL_KEYS = ("v", "l", "all")
Personal = dict[str, dict[int, dict[str, float | None]]]
"""By each way to predict and each client its accuracies."""


def weighted(hits: Sequence[int], totals: Sequence[int], weights: Sequence[float]) -> float | None:
    """Section 4.1: accuracy with a weight for each class; None if no example counts.

    >>> weighted([5, 0, 9], [10, 10, 10], [1, 1, 0])
    0.25
    """
    counted = float(np.dot(weights, totals))
    return float(np.dot(weights, hits)) / counted if counted > 0 else None


def personal_accuracies(hits: Sequence[int], totals: Sequence[int], held: Sequence[int]) -> dict[str, float | None]:
    """A client's accuracies, from its hits and the test set's totals by class, and how many examples of each it holds.

    >>> personal_accuracies([8, 2, 4], [10, 10, 10], held=[3, 1, 0])
    {'v': 0.5, 'l': 0.65, 'all': 0.4666666666666667}
    """
    return {
        "v": weighted(hits, totals, [count > 0 for count in held]),
        "l": weighted(hits, totals, held),
        "all": weighted(hits, totals, [1] * len(totals)) if any(held) else None,
    }


def by_client(
    hits: Mapping[int, Hits], train: Sequence[Examples], balanced: Sequence[Examples], classes: int
) -> Personal:
    """The accuracies, from hits by client."""
    found: Personal = {}
    for client, ways in sorted(hits.items()):
        labels = torch.cat([part.labels for part in fitting(balanced, train[client].shape)])
        totals = torch.bincount(labels, minlength=classes)
        held = torch.bincount(train[client].labels, minlength=classes).tolist()
        for way, right in ways.items():
            found.setdefault(way, {})[client] = personal_accuracies(right, totals.tolist(), held)
    return found


def mean_and_std(rows: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Means over the clients that hold examples, and standard deviations: how fair a method is (Table 2)."""
    found: dict[str, Any] = {}
    for key in PERSONAL_KEYS:
        values = [value for row in rows if (value := row[key]) is not None]
        found |= (
            {key: float(np.mean(values)), f"{key}_std": float(np.std(values))}
            if values
            else {key: None, f"{key}_std": None}
        )
    return found
