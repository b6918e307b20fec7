"""Distance of clients' features from a central model's, and between their gradients (Michieli & Ozay 2021, 5.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protofed.batch import Batch
from protofed.errors import UserError
from protofed.net import EVALUATION_BATCH, Net, Params

if TYPE_CHECKING:
    from protofed.examples import Examples


def bandwidth(q: Tensor) -> float:
    """The usual kernel width: the median distance between two different rows of q [n, dim]; 1 if that is 0 or n < 2."""
    distances = torch.cdist(q.double(), q.double())
    pairs = distances[~torch.eye(len(q), dtype=torch.bool)]
    return float(pairs.median()) if len(pairs) and pairs.median() > 0 else 1.0


def mmd(p: Tensor, q: Tensor, width: float) -> float:
    """The maximum mean discrepancy of two samples [n, dim] and [m, dim], with a Gaussian kernel of this width.

    The biased quadratic-time estimate of Gretton et al. 2012: it is never negative, and 0 for equal samples.
    """
    squared = kernel_mean(p, p, width) + kernel_mean(q, q, width) - 2 * kernel_mean(p, q, width)
    return math.sqrt(max(squared, 0.0))


def kernel_mean(a: Tensor, b: Tensor, width: float) -> float:
    """The mean of exp(-||x - y||^2 / 2 width^2) over all pairs of rows x of a and y of b."""
    total = 0.0
    for rows in a.double().split(1024):  # a few rows at a time to save memory
        total += float(torch.exp(-torch.cdist(rows, b.double()).square() / (2 * width**2)).sum())
    return total / (len(a) * len(b))


def mean_mmd(features: Sequence[Tensor], central: Tensor, width: float | None = None) -> float:
    """Eq. (16): the mean over clients of the discrepancy between their features and a central model's features.

    `width` None: the `bandwidth` of the central features. Clients without features are left out.
    """
    width = bandwidth(central) if width is None else width
    discrepancies = [mmd(client_features, central, width) for client_features in features if len(client_features)]
    return sum(discrepancies) / len(discrepancies)


def feature_discrepancy(ours: float, baseline: float) -> float:
    """Eq. (17), FFD in percent: how much closer to the central features than the baseline; both values from Eq. (16).

    NaN if the baseline has the central features themselves.

    >>> feature_discrepancy(ours=0.3, baseline=0.4)
    25.0
    """
    return round((baseline - ours) / baseline * 100, 12) if baseline else math.nan


def gradient_dissimilarity(
    net: Net,
    params: Params,
    parts: Sequence[Examples],
    loss: Callable[[Tensor, Batch], Tensor],
    answer: Callable[[Params, Tensor], Tensor] | None = None,
) -> float:
    """Fig. 2, third row: the mean over clients of ||grad L_k - grad L||^2, without dropout.

    grad L weights clients by their numbers of examples (Eq. 1). Clients without examples are left out. `loss` is the
    mean loss of a batch, from the logits that `answer` returns; without `answer`, from the logits of the net.
    """
    logits = answer or (lambda params, x: net(params, x)[1])
    names = sorted(name for name in params if net.trains(name, params[name]))
    size = sum(params[name].numel() for name in names)
    mean, central = torch.zeros(size, dtype=torch.double), torch.zeros(size, dtype=torch.double)
    spread, number, examples = 0.0, 0, sum(map(len, parts))
    if not examples:
        raise UserError("Gradients need training examples, but no client has any.")
    for part in parts:
        if not len(part):
            continue
        gradient = torch.zeros(size, dtype=torch.double)
        for x, y in part.batches(EVALUATION_BATCH):
            trainable = {name: params[name].detach().requires_grad_() for name in names}
            value = loss(logits({**params, **trainable}, x), Batch.of(x, y))
            grads = torch.autograd.grad(value, list(trainable.values()), allow_unused=True, materialize_grads=True)
            gradient += torch.cat([grad.flatten() for grad in grads]).double() * len(y) / len(part)
        # Welford: `spread` is the sum of squared distances to the plain mean. Not all gradients fit into memory.
        number += 1
        step = gradient - mean
        mean += step / number
        spread += float(step @ (gradient - mean))
        central += gradient * len(part) / examples
    return spread / number + float((mean - central).square().sum())
