"""Scoring: correct predictions, counted per way of predicting and per class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from protofed.examples import IGNORED
from protofed.net import EVALUATION_BATCH

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.core import AnyMethod, Net, Params
    from protofed.examples import Examples

Hits = dict[str, list[int]]
"""Per way of predicting ("head", "prototype"): the number of correct predictions per class."""
Counts = list[list[int]]
"""Pixels per true class (row) and predicted class (column); the last of the classes + 1 columns is "no answer"."""


def predicted(scores: Tensor) -> Tensor:
    """The class [n] with the highest of the scores [n, classes]; -1 (no answer) where the highest is not finite."""
    best, label = scores.max(-1)
    return torch.where(torch.isfinite(best), label, -1)


def hit(scores: Tensor, y: Tensor) -> Tensor:
    """Whether each label [n] has the highest of the scores [n, classes]; False where the highest is not finite.

    >>> hit(torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf]]), torch.tensor([1, 0])).tolist()
    [True, False]
    """
    return predicted(scores) == y


def with_head_among(scores: dict[str, Tensor], classes: Tensor) -> dict[str, Tensor]:
    """The scores, and as `head_own` those of the head among some classes [classes], which other classes never win.

    A head that was trained on all classes and one that has seen only a client's classes answer the same question there.

    >>> with_head_among({"head": torch.tensor([[3.0, 2.0, 1.0]])}, torch.tensor([False, True, True]))["head_own"]
    tensor([[-inf, 2., 1.]])
    """
    if "head" not in scores:
        return scores
    return {**scores, "head_own": scores["head"].masked_fill(~classes.to(scores["head"].device), -torch.inf)}


def client_scores(
    method: AnyMethod, net: Net, params: Params, down: Any, kept: Any
) -> Callable[[Tensor], dict[str, Tensor]]:
    """The scores of a client's model for normalised inputs [n, ...], by each of the method's ways of predicting."""

    def scores(x: Tensor) -> dict[str, Tensor]:
        return net.at_image_size(method.predict(net, params, x, down, kept), len(x))

    return scores


@torch.no_grad()
def tally(predict: Callable[[Tensor], dict[str, Tensor]], examples: Examples) -> dict[str, int]:
    """The number of correct predictions per way of predicting; {} if `predict` has no way."""
    correct: dict[str, int] = {}
    for x, y in examples.for_steps.batches(EVALUATION_BATCH):
        predictions = predict(x)
        if not predictions:  # the other batches would give none either
            break
        for way, scores in predictions.items():
            correct[way] = correct.get(way, 0) + int(hit(scores, y.flatten()).sum())  # no class has the number IGNORED
    return correct


@torch.no_grad()
def class_hits(predict: Callable[[Tensor], dict[str, Tensor]], parts: Sequence[Examples], classes: int) -> Hits:
    """The number of correct predictions per way of predicting and class, over the examples of all parts."""
    correct: dict[str, Tensor] = {}
    for x, y in (batch for part in parts for batch in part.for_steps.batches(EVALUATION_BATCH)):
        labels = y.flatten()
        for way, scores in predict(x).items():
            correct[way] = correct.get(way, 0) + torch.bincount(labels[hit(scores, labels)], minlength=classes)
    return {way: counts.tolist() for way, counts in correct.items()}


def labelled(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The scores [n, classes] and labels [n] of the examples; of masks y, those of the pixels that have a label."""
    if y.dim() == 1:
        return scores, y
    labels = y.flatten()
    return scores[labels != IGNORED], labels[labels != IGNORED]


@torch.no_grad()
def pixel_counts(
    predict: Callable[[Tensor], dict[str, Tensor]], parts: Sequence[Examples], classes: int
) -> dict[str, Counts]:
    """Per way of predicting the labelled pixels of all parts by true and predicted class, summed batch by batch."""
    counts: dict[str, Tensor] = {}
    for x, y in (batch for part in parts for batch in part.for_steps.batches(EVALUATION_BATCH)):
        for way, scores in predict(x).items():
            rows, labels = labelled(scores, y)
            answers = predicted(rows)
            cells = labels * (classes + 1) + torch.where(answers < 0, classes, answers)
            counts[way] = counts.get(way, 0) + torch.bincount(cells, minlength=classes * (classes + 1))
    return {way: matrix.reshape(classes, classes + 1).tolist() for way, matrix in counts.items()}


def with_input_shape(parts: Sequence[Examples], shape: tuple[int, ...]) -> list[Examples]:
    """The parts of a test set with inputs of this shape, which a net can take."""
    return [part for part in parts if part.shape == shape]
