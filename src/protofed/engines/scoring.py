"""Scoring: which predictions are right, counted per way of predicting and per class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from protofed.net import EVALUATE

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.examples import Examples

Hits = dict[str, list[int]]
"""By each way to predict, how many examples of each class get the right answer."""


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


@torch.no_grad()
def class_hits(answer: Callable[[Tensor], dict[str, Tensor]], parts: Sequence[Examples], classes: int) -> Hits:
    """Of the examples of all parts."""
    right: dict[str, Tensor] = {}
    for x, y in (batch for part in parts for batch in part.batches(EVALUATE)):
        for way, scores in answer(x).items():
            right[way] = right.get(way, 0) + torch.bincount(y[hit(scores, y)], minlength=classes)
    return {way: counts.tolist() for way, counts in right.items()}


def fitting(parts: Sequence[Examples], shape: tuple[int, ...]) -> list[Examples]:
    """The parts of a test set that a net for inputs of this shape can be asked about."""
    return [part for part in parts if part.shape == shape]
