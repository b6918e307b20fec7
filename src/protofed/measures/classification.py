"""Classification beyond accuracy, from labels [n] and answers [n] (-1: none) or scores [n, classes].

A class that does not occur is an ordinary case: it is left out of means over classes. Without examples there is nothing
to say, which is None.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.engines.scoring import hit


def confusion(y: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """How often [classes, classes] examples of a class (row) got an answer (column); no answer is in no column.

    >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, -1]), 2).tolist()
    [[1, 1], [0, 0]]
    """
    answered = predicted >= 0
    cells = torch.bincount(y[answered] * classes + predicted[answered], minlength=classes**2)
    return cells.reshape(classes, classes)


def balanced_accuracy(y: Tensor, predicted: Tensor, classes: int) -> float | None:
    """The mean over classes of the share of its examples that got the right answer.

    >>> balanced_accuracy(torch.tensor([0, 0, 0, 2]), torch.tensor([0, 0, 1, 2]), 3)
    0.8333333333333333
    """
    total, right = torch.bincount(y, minlength=classes), torch.bincount(y[y == predicted], minlength=classes)
    return _mean_over_classes((right.double() / total)[total > 0])


def macro_f1(y: Tensor, predicted: Tensor, classes: int) -> float | None:
    """The mean over classes, that occur among labels or answers, of 2 right / (labels + answers).

    >>> macro_f1(torch.tensor([0, 0, 0, 2]), torch.tensor([0, 0, 1, 2]), 4)  # 2*2/(3+2), 0, 2*1/(1+1)
    0.6
    """
    right = torch.bincount(y[y == predicted], minlength=classes).double()
    either = torch.bincount(y, minlength=classes) + torch.bincount(predicted[predicted >= 0], minlength=classes)
    return _mean_over_classes((2 * right / either)[either > 0])


def auc(scores: Tensor, y: Tensor) -> float | None:
    """One class against the rest: the chance that an example of the class has a higher score for it than one of
    another class, ties counting half; the mean over the classes that have examples of both kinds."""
    if torch.isnan(scores).any():
        return None
    areas = []
    for label in y.unique().tolist():
        own = y == label
        here, there = int(own.sum()), int((~own).sum())
        if there:
            rank = ranks(scores[:, label])[own].sum() - here * (here + 1) / 2  # Mann-Whitney's U
            areas.append(rank / (here * there))
    return _mean_over_classes(torch.stack(areas)) if areas else None


def ranks(values: Tensor) -> Tensor:
    """The places [n], from 1, of values [n] in order; equal ones share the mean of theirs.

    >>> ranks(torch.tensor([5.0, 1.0, 5.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    middle: Tensor = count.cumsum(0).double() - (count - 1) / 2
    return middle[place]


def calibration_error(probabilities: Tensor, y: Tensor, bins: int = 15) -> float | None:
    """The expected calibration error (Guo et al. 2017): over bins of equal width ((m-1)/M, m/M] of the confidence, the
    mean of |accuracy - mean confidence|, weighted by the examples in them."""
    if not len(y) or torch.isnan(probabilities).any():
        return None
    sure = probabilities.double().amax(-1)
    place = ((sure * bins).ceil().long() - 1).clamp(0, bins - 1)
    gap = torch.zeros(bins, dtype=torch.double).index_add_(0, place, hit(probabilities, y).double() - sure)
    return float(gap.abs().sum()) / len(y)


def _mean_over_classes(values: Tensor) -> float | None:
    """Of values [n]; None if there are none."""
    return float(values.mean()) if len(values) else None
