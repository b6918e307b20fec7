"""Margins between sets of prototypes (Michieli & Ozay 2021, sections 3.1, 3.2 and 5.1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from protofed.prototypes import Prototypes

_ROUNDING = 32
"""Distances up to this number of machine epsilons of the longest prototype are rounding errors.

An aggregate prototype of m clients is a sum of m rounded products, so that each channel is off by (m + 2) / 2 epsilons
of itself at most, and d+ and d- together by m + 2 epsilons of the length: 32 are enough for 30 clients per class.
"""


def channels_scaled(prototypes: Prototypes) -> Prototypes:
    """Section 3.1: every prototype scaled so that its smallest channel is 0 and its largest 1; 0 if all are equal.

    >>> channels_scaled(Prototypes(torch.tensor([[[2.0, 6.0, 4.0]]]), torch.ones(1, 1))).mean.tolist()
    [[[0.0, 1.0, 0.5]]]
    """
    low, high = prototypes.mean.amin(-1, keepdim=True), prototypes.mean.amax(-1, keepdim=True)
    width = torch.where(high > low, high - low, 1)
    return prototypes._replace(mean=(prototypes.mean - low) / width)


def common_classes(a: Prototypes, b: Prototypes) -> Tensor:
    """C' of Definition 3.1: whether both sets have a prototype of the class, [classes]."""
    return (a.support[:, 0] > 0) & (b.support[:, 0] > 0)


def same_class_distances(a: Prototypes, b: Prototypes) -> Tensor:
    """Eq. (5): per class [classes] the distance between its two prototypes; 0 if one of them is missing."""
    return torch.where(common_classes(a, b), (a.single()[:, 0] - b.single()[:, 0]).norm(dim=-1), 0)


def other_class_distances(a: Prototypes, b: Prototypes) -> Tensor:
    """Eq. (6): per class [classes] the mean distance from a's prototype to b's prototypes of the other common classes.

    0 for a class that one of the two sets does not have.
    """
    in_both = common_classes(a, b)
    distances = torch.cdist(a.single()[:, 0], b.single()[:, 0], compute_mode="donot_use_mm_for_euclid_dist")
    others = in_both & ~torch.eye(len(in_both), dtype=torch.bool)  # [class, other class]
    mean = torch.where(others, distances, 0).sum(1) / others.sum(1).clamp(min=1)
    return torch.where(in_both, mean, 0)


def semantic_margins(a: Prototypes, b: Prototypes, single: Literal["zero", "minus_one"] = "zero") -> Tensor:
    """Eq. (7): per class [classes] the margin, from -1 to 1.

    0 for a class that one of the two sets does not have, and where d+ and d- are both 0 up to rounding. `single`: the
    margin of an only common class, for which Eq. (6) averages over nothing: 0, or -1, which is Eq. (7) with d- = 0.
    """
    in_both, near, far = common_classes(a, b), same_class_distances(a, b), other_class_distances(a, b)
    total = near + far
    lengths = torch.where(in_both, torch.maximum(a.single()[:, 0].norm(dim=-1), b.single()[:, 0].norm(dim=-1)), 0)
    is_defined = in_both & (total > _ROUNDING * torch.finfo(total.dtype).eps * lengths.max())
    if single == "zero":
        is_defined = is_defined & (in_both.sum() > 1)
    return torch.where(is_defined, (far - near) / torch.where(is_defined, total, 1), 0)


def aggregate_mean_margin(prototypes: Prototypes, reading: Literal["between", "letter"] = "between") -> float:
    """Eq. (15), over the classes that have a prototype.

    `letter` is Eq. (15) to the letter. It compares a set with itself, where the distance within a class is 0, so that
    every margin is exactly 1 (with more than one class). The paper's figures, 0.34 to 8.68, cannot be computed in this
    way. `between` is our guess: the mean distance d- to the prototypes of the other classes, not scaled.
    """
    per_class = semantic_margins if reading == "letter" else other_class_distances
    values = per_class(prototypes, prototypes)
    exists = prototypes.support[:, 0] > 0
    return float(values[exists].double().mean()) if exists.any() else 0.0
