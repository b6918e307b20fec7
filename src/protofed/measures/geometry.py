"""Where prototypes and embeddings lie: directions, drift over rounds, scatter within and between classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.methods.parts.margins import common, same_class
from protofed.prototypes import Prototypes, ratio


def centres(prototypes: Prototypes) -> Prototypes:
    """One prototype per class: the mean of its modes, weighted by the examples behind them."""
    if prototypes.mean.shape[1] == 1:
        return prototypes
    support = prototypes.support
    mean = (prototypes.mean * support.unsqueeze(-1)).sum(1)
    return Prototypes(ratio(mean, support.sum(1, keepdim=True)).unsqueeze(1), support.sum(1, keepdim=True))


def cosine_similarities(prototypes: Prototypes) -> Tensor:
    """The cosines [classes, classes] between classes' prototypes; NaN where one is missing or has no direction."""
    mean = centres(prototypes).single()[:, 0].double()
    seen = (centres(prototypes).support[:, 0] > 0) & (mean.norm(dim=-1) > 0)
    unit = F.normalize(mean, dim=-1)
    return torch.where(seen & seen.unsqueeze(1), (unit @ unit.T).clamp(-1, 1), torch.nan)


def drift(before: Prototypes, after: Prototypes) -> Tensor:
    """How far each class's prototype [classes] has moved, in L2; NaN where one of the two is missing."""
    a, b = centres(before), centres(after)
    return torch.where(common(a, b), same_class(a, b), torch.nan)


class Scatter(NamedTuple):
    """The variance of embeddings, summed over dimensions, in two parts: what lies within classes, and between them."""

    within: float
    between: float

    @property
    def ratio(self) -> float | None:
        """Between over within: how well classes are separated."""
        return self.between / self.within if self.within > 0 else None


def scatter(z: Tensor, y: Tensor, classes: int) -> Scatter | None:
    """Of embeddings [n, dim] with labels [n]: within is the mean of ||z - m_y||^2, between that of ||m_y - m||^2."""
    if not len(y):
        return None
    z = z.double()
    own = Prototypes.of(z, y, classes).single()[y, 0]
    return Scatter(float((z - own).square().sum(-1).mean()), float((own - z.mean(0)).square().sum(-1).mean()))
