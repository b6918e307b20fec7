"""Measures of classification, from labels [n] and predicted classes [n] (-1: no prediction) or scores [n, classes].

Means over classes leave out classes that do not occur. Without examples a measure is None.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.engines.scoring import hit


def confusion(y: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """The confusion matrix [classes, classes]: numbers of examples per true class (row) and predicted class (column).

    Examples without a prediction are not counted.

    >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, -1]), 2).tolist()
    [[1, 1], [0, 0]]
    """
    has_prediction = predicted >= 0
    counts = torch.bincount(y[has_prediction] * classes + predicted[has_prediction], minlength=classes**2)
    return counts.reshape(classes, classes)


def balanced_accuracy(y: Tensor, predicted: Tensor, classes: int) -> float | None:
    """The mean over classes of the share of the class's examples that are predicted correctly.

    >>> balanced_accuracy(torch.tensor([0, 0, 0, 2]), torch.tensor([0, 0, 1, 2]), 3)
    0.8333333333333333
    """
    total, correct = torch.bincount(y, minlength=classes), torch.bincount(y[y == predicted], minlength=classes)
    return _mean_over_classes((correct.double() / total)[total > 0])


def macro_f1(y: Tensor, predicted: Tensor, classes: int) -> float | None:
    """The mean of 2 correct / (labels + predictions) over the classes that occur among labels or predictions.

    >>> macro_f1(torch.tensor([0, 0, 0, 2]), torch.tensor([0, 0, 1, 2]), 4)  # 2*2/(3+2), 0, 2*1/(1+1)
    0.6
    """
    correct = torch.bincount(y[y == predicted], minlength=classes).double()
    total = torch.bincount(y, minlength=classes) + torch.bincount(predicted[predicted >= 0], minlength=classes)
    return _mean_over_classes((2 * correct / total)[total > 0])


def auc(scores: Tensor, y: Tensor) -> float | None:
    """The area under the ROC curve of each class against the rest, averaged over classes.

    The area is the probability that an example of the class has a higher score for the class than an example of another
    class; ties count half. Classes without examples, or without examples of other classes, are left out. None if a
    score is NaN.

    >>> auc(torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 0, 1]))
    0.75
    """
    from scipy.stats import rankdata  # slow to import

    if torch.isnan(scores).any():
        return None
    ranks = torch.from_numpy(rankdata(scores.numpy(), axis=0))  # [n, classes]; ties share their mean rank
    areas = []
    for label in y.unique().tolist():
        positive = y == label
        num_positive, num_negative = int(positive.sum()), int((~positive).sum())
        if num_negative:
            u = ranks[positive, label].sum() - num_positive * (num_positive + 1) / 2  # Mann-Whitney U
            areas.append(u / (num_positive * num_negative))
    return _mean_over_classes(torch.stack(areas)) if areas else None


def calibration_error(probabilities: Tensor, y: Tensor, bins: int = 15) -> float | None:
    """The expected calibration error (Guo et al. 2017): the mean over bins of |accuracy - mean confidence|.

    The bins ((m-1)/M, m/M] of the confidence have equal width. They are weighted by their numbers of examples.
    """
    if not len(y) or torch.isnan(probabilities).any():
        return None
    confidence = probabilities.double().amax(-1)
    bin_of = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)
    gaps = torch.zeros(bins, dtype=torch.double).index_add_(0, bin_of, hit(probabilities, y).double() - confidence)
    return float(gaps.abs().sum()) / len(y)


def _mean_over_classes(values: Tensor) -> float | None:
    """The mean of values [n]; None if there are none."""
    return float(values.mean()) if len(values) else None
