"""Accuracy: of one client, and its mean and spread over clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from protofed.net import EVALUATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from protofed.examples import Examples

Reporting = Literal["clients", "running"]


def predicted(scores: Tensor) -> Tensor:
    """The class [n] with the highest of the scores [n, classes]; -1, no answer, where no best one is finite."""
    best, place = scores.max(-1)
    return torch.where(torch.isfinite(best), place, -1)


def hit(scores: Tensor, y: Tensor) -> Tensor:
    """Which labels [n] have the highest of the scores [n, classes]; a row without a finite best is a miss.

    >>> hit(torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf]]), torch.tensor([1, 0])).tolist()
    [True, False]
    """
    return predicted(scores) == y


@torch.no_grad()
def tally(answer: Callable[[Tensor], dict[str, Tensor]], examples: Examples) -> dict[str, int]:
    """By each way to predict, how many of the examples get the right answer; nothing where there is no way."""
    right: dict[str, int] = {}
    for x, y in examples.batches(EVALUATE):
        answers = answer(x)
        if not answers:  # nor will there be for the others
            break
        for way, scores in answers.items():
            right[way] = right.get(way, 0) + int(hit(scores, y).sum())
    return right


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
