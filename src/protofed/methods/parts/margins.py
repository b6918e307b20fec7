"""Margins between sets of prototypes (Michieli & Ozay 2021, sections 3.1, 3.2 and 5.1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from protofed.prototypes import Prototypes


def channels_scaled(prototypes: Prototypes) -> Prototypes:
    """Section 3.1: every prototype scaled so that its smallest channel is 0 and its largest 1 (all equal: 0).

    >>> channels_scaled(Prototypes(torch.tensor([[[2.0, 6.0, 4.0]]]), torch.ones(1, 1))).mean.tolist()
    [[[0.0, 1.0, 0.5]]]
    """
    low, high = prototypes.mean.amin(-1, keepdim=True), prototypes.mean.amax(-1, keepdim=True)
    wide = torch.where(high > low, high - low, 1)
    return prototypes._replace(mean=(prototypes.mean - low) / wide)


def common(a: Prototypes, b: Prototypes) -> Tensor:
    """C' of Definition 3.1: the classes [classes] that both have, true or false."""
    return (a.support[:, 0] > 0) & (b.support[:, 0] > 0)


def same_class(a: Prototypes, b: Prototypes) -> Tensor:
    """Eq. (5): for each class [classes] the distance of its two prototypes; 0 where one of them is missing."""
    return torch.where(common(a, b), (a.single()[:, 0] - b.single()[:, 0]).norm(dim=-1), 0)


def other_classes(a: Prototypes, b: Prototypes) -> Tensor:
    """Eq. (6): for each class [classes] the mean distance of a's prototype to b's of the other common classes; or 0."""
    held = common(a, b)
    apart = torch.cdist(a.single()[:, 0], b.single()[:, 0], compute_mode="donot_use_mm_for_euclid_dist")
    others = held & ~torch.eye(len(held), dtype=torch.bool)  # [class, other class]
    mean = torch.where(others, apart, 0).sum(1) / others.sum(1).clamp(min=1)
    return torch.where(held, mean, 0)


def semantic_margins(a: Prototypes, b: Prototypes) -> Tensor:
    """Eq. (7): for each class [classes] the margin, from -1 to 1.

    0 for a class that one of the two has not; where only one class is common, Eq. (6) has nothing to average: 0, too.
    """
    held, near, far = common(a, b), same_class(a, b), other_classes(a, b)
    total = near + far
    defined = held & (held.sum() > 1) & (total > 0)
    return torch.where(defined, (far - near) / torch.where(total > 0, total, 1), 0)


def aggregate_mean_margin(prototypes: Prototypes, reading: Literal["between", "letter"] = "between") -> float:
    """Eq. (15), over the classes that have a prototype.

    `letter` compares a set with itself: the same class is at distance 0, so that every margin is exactly 1 (with more
    than one class), which the paper's figures (0.34 to 8.68) cannot be. `between` is our guess at those: the mean
    distance d- to the other classes' prototypes, which are not scaled.
    """
    values = semantic_margins(prototypes, prototypes) if reading == "letter" else other_classes(prototypes, prototypes)
    held = prototypes.support[:, 0] > 0
    return float(values[held].double().mean()) if held.any() else 0.0
