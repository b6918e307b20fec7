"""Distances between embeddings and prototypes (FedProto, Eq. 8)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Distance = Literal["mse", "squared", "l2", "l1", "emd", "cross_entropy", "relu_l2"]
"""`mse`: squared norm / dim. `squared`: squared norm. `l2`, `l1`: norms. `emd`: earth mover's distance.

`cross_entropy` and `relu_l2` are named in section 4.4 of FedProto's first version on arXiv, which defines neither.
"""

SMOOTH_BELOW = 0.1
"""Norms below this are smoothed. It is ten times the paper's learning rate, and so wider than a step: inside a narrower
zone, steps would overshoot and enlarge differences by rounding."""
_SMOOTH_SHARES_BELOW = 0.01
"""The same for the cumulative sums of histograms, which are at most 1."""


def distance(a: Tensor, b: Tensor, kind: Distance) -> Tensor:
    """The distance over the last dimension between embeddings a and prototypes b: [..., dim] -> [...]."""
    if kind == "emd":
        return _smoothed((_histogram(a).cumsum(-1) - _histogram(b).cumsum(-1)).abs(), _SMOOTH_SHARES_BELOW).mean(-1)
    if kind == "cross_entropy":  # of the distributions softmax(a) and softmax(b) over the units; b is the target
        return -(b.softmax(-1) * a.log_softmax(-1)).sum(-1)
    if kind == "relu_l2":  # between the positive parts
        return _smoothed(torch.linalg.vector_norm(F.relu(a) - F.relu(b), dim=-1))
    if kind == "l2":
        return _smoothed(torch.linalg.vector_norm(a - b, dim=-1))  # unlike that of sqrt, its gradient at 0 is 0
    if kind == "l1":
        return _smoothed((a - b).abs()).sum(-1)
    squared = (a - b).square()
    return squared.mean(-1) if kind == "mse" else squared.sum(-1)


def _smoothed(d: Tensor, width: float = SMOOTH_BELOW) -> Tensor:
    """Norms d >= 0 with slope 0 at 0: d^2 (2w - d) / w^2 below the width w, and d itself from there on.

    A norm's gradient at 0 jumps from one unit vector to the opposite one. An embedding that equals its prototype up to
    rounding would get a gradient of length 1 in the direction of the rounding, which differs between machines.
    """
    return torch.where(d < width, d.square() * (2 * width - d) / width**2, d)


def _histogram(z: Tensor) -> Tensor:
    """An embedding as a distribution over its units: the positive part, scaled to sum 1."""
    mass = z.clamp(min=0) + 1e-3  # so that an embedding without a positive unit is uniform
    return mass / mass.sum(-1, keepdim=True)
