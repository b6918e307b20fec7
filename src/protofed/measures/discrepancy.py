"""How far clients are apart: their features from a central model's, and their gradients (Michieli & Ozay 2021, 5.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protofed.net import EVALUATE, Batch, Net, Params

if TYPE_CHECKING:
    from protofed.examples import Examples


def bandwidth(q: Tensor) -> float:
    """The usual width of the kernel: the median distance between two different rows of q [n, dim]."""
    apart = torch.cdist(q.double(), q.double())
    pairs = apart[~torch.eye(len(q), dtype=torch.bool)]
    return float(pairs.median()) if len(pairs) and pairs.median() > 0 else 1.0


def mmd(p: Tensor, q: Tensor, width: float) -> float:
    """The maximum mean discrepancy of two samples [n, dim] and [m, dim], with a Gaussian kernel of this width.

    The biased quadratic-time estimate of Gretton et al. 2012: it is never negative, and 0 for equal samples.
    """
    squared = kernel_mean(p, p, width) + kernel_mean(q, q, width) - 2 * kernel_mean(p, q, width)
    return math.sqrt(max(squared, 0.0))


def kernel_mean(a: Tensor, b: Tensor, width: float) -> float:
    """The mean of exp(-||x - y||^2 / 2 width^2) over all pairs; some rows at a time, so that memory stays small."""
    total = 0.0
    for part in a.double().split(1024):
        total += float(torch.exp(-torch.cdist(part, b.double()).square() / (2 * width**2)).sum())
    return total / (len(a) * len(b))


def mean_mmd(features: Sequence[Tensor], central: Tensor, width: float | None = None) -> float:
    """Eq. (16): the mean over clients of the discrepancy between their features and a central model's."""
    wide = bandwidth(central) if width is None else width
    found = [mmd(own, central, wide) for own in features if len(own)]
    return sum(found) / len(found)


def feature_discrepancy(ours: float, baseline: float) -> float:
    """Eq. (17), FFD in percent: how much nearer to central features than the baseline's, both as Eq. (16).

    >>> feature_discrepancy(ours=0.3, baseline=0.4)
    25.0
    """
    return round((baseline - ours) / baseline * 100, 12)


def gradient_dissimilarity(
    net: Net,
    params: Params,
    parts: Sequence[Examples],
    loss: Callable[[Tensor, Batch], Tensor],
    answer: Callable[[Params, Tensor], Tensor] | None = None,
) -> float:
    """Fig. 2, third row: the mean over clients of ||grad L_k - grad L||^2, without dropout.

    grad L weighs clients by their examples (Eq. 1); clients without any are left out. `loss` is a batch's mean,
    from the logits that `answer` gives, or the net.
    """
    logits = answer or (lambda params, x: net(params, x)[1])
    names = sorted(name for name in params if net.trains(name, params[name]))
    grads, sizes = [], []
    for part in parts:
        if not len(part):
            continue
        own = torch.zeros(sum(params[name].numel() for name in names), dtype=torch.double)
        for x, y in part.batches(EVALUATE):
            leaves = {name: params[name].detach().requires_grad_() for name in names}
            value = loss(logits({**params, **leaves}, x), Batch.of(x, y))
            found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
            own += torch.cat([grad.flatten() for grad in found]).double() * len(y) / len(part)
        grads.append(own)
        sizes.append(len(part))
    stacked, weights = torch.stack(grads), torch.tensor(sizes, dtype=torch.double)
    central = (weights / weights.sum()) @ stacked
    return float((stacked - central).square().sum(1).mean())
