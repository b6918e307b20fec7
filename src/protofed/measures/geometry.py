"""Geometry of prototypes and embeddings: cosine similarities, drift over rounds, scatter within and between classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.methods.parts.margins import common_classes, same_class_distances
from protofed.prototypes import Prototypes, safe_divide


def centres(prototypes: Prototypes) -> Prototypes:
    """One prototype per class: the mean of its modes, weighted by their support."""
    if prototypes.mean.shape[1] == 1:
        return prototypes
    sums = (prototypes.mean * prototypes.support.unsqueeze(-1)).sum(1)
    support = prototypes.support.sum(1, keepdim=True)
    return Prototypes(safe_divide(sums, support).unsqueeze(1), support)


def cosine_similarities(prototypes: Prototypes) -> Tensor:
    """The cosines [classes, classes] between prototypes of classes; NaN where one is missing or zero."""
    class_centres = centres(prototypes)
    mean = class_centres.single()[:, 0].double()
    has_direction = (class_centres.support[:, 0] > 0) & (mean.norm(dim=-1) > 0)
    unit = F.normalize(mean, dim=-1)
    return torch.where(has_direction & has_direction.unsqueeze(1), (unit @ unit.T).clamp(-1, 1), torch.nan)


def drift(before: Prototypes, after: Prototypes) -> Tensor:
    """The L2 distance [classes] that the prototype of each class has moved; NaN where one of the two is missing."""
    a, b = centres(before), centres(after)
    return torch.where(common_classes(a, b), same_class_distances(a, b), torch.nan)


class Scatter(NamedTuple):
    """The two parts of the variance of embeddings, summed over dimensions: within classes and between classes."""

    within: float
    between: float

    @property
    def ratio(self) -> float | None:
        """Between divided by within: how well classes are separated. None if the variance within classes is 0."""
        return self.between / self.within if self.within > 0 else None


def scatter(z: Tensor, y: Tensor, classes: int) -> Scatter | None:
    """The scatter of embeddings [n, dim] with labels [n]; None without examples.

    `within` is the mean of ||z - m_y||^2 and `between` the mean of ||m_y - m||^2, where m_c is the mean of class c and
    m the mean of all embeddings.
    """
    if not len(y):
        return None
    z = z.double()
    class_mean = Prototypes.of(z, y, classes).single()[y, 0]  # [n, dim]: the mean of each example's class
    within = float((z - class_mean).square().sum(-1).mean())
    between = float((class_mean - z.mean(0)).square().sum(-1).mean())
    return Scatter(within, between)
