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


def distance(a: Tensor, b: Tensor, kind: Distance) -> Tensor:
    """The distance over the last dimension between embeddings a and prototypes b: [..., dim] -> [...]."""
    if kind == "emd":
        return (_histogram(a).cumsum(-1) - _histogram(b).cumsum(-1)).abs().mean(-1)
    if kind == "cross_entropy":  # of the distributions softmax(a) and softmax(b) over the units; b is the target
        return -(b.softmax(-1) * a.log_softmax(-1)).sum(-1)
    if kind == "relu_l2":  # between the positive parts
        return torch.linalg.vector_norm(F.relu(a) - F.relu(b), dim=-1)
    if kind == "l2":
        norm: Tensor = torch.linalg.vector_norm(a - b, dim=-1)  # unlike that of sqrt, its gradient at 0 is 0
        return norm
    if kind == "l1":
        return (a - b).abs().sum(-1)
    squared = (a - b).square()
    return squared.mean(-1) if kind == "mse" else squared.sum(-1)


def _histogram(z: Tensor) -> Tensor:
    """An embedding as a distribution over its units: the positive part, scaled to sum 1."""
    mass = z.clamp(min=0) + 1e-3  # so that an embedding without a positive unit is uniform
    return mass / mass.sum(-1, keepdim=True)
