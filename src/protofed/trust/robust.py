"""Averages that some bad uploads cannot move far. Each is a function of vectors [clients, n].

What each assumes of n uploads, of which f are bad:

* `coordinate_median`: f < n / 2; the bad ones may be anything, but each coordinate is looked at alone.
* `trimmed_mean`: f <= the number that is cut off at each end, and f < n / 2.
* `geometric_median`: bad uploads have less than half of the weight. The result depends little on how far out they are.
* `krum_order`: n >= 2 f + 3, and good uploads lie closer together than bad ones. Krum takes one upload, and multi-Krum
  the mean of n - f.

No rule can tell who is right if good uploads differ more than bad ones deviate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.trust.trust_sections import TrustSection

_WEISZFELD_STEPS = 1000
"""Largest number of Weiszfeld's steps."""
_CLOSE = 1e-9
"""Steps end if no weight changes by more than this. A distance is at least this part of the median distance."""


def coordinate_median(vectors: Tensor) -> Tensor:
    """The median [n] of every coordinate; the mean of the middle two if the number of vectors is even.

    >>> coordinate_median(torch.tensor([[1.0, 9.0], [2.0, 7.0], [90.0, 8.0]])).tolist()
    [2.0, 8.0]
    """
    ordered = vectors.sort(0).values
    return (ordered[(len(vectors) - 1) // 2] + ordered[len(vectors) // 2]) / 2


def trimmed_mean(vectors: Tensor, cut: int) -> Tensor:
    """The mean [n] of every coordinate without its `cut` smallest and largest values."""
    return vectors.sort(0).values[cut : len(vectors) - cut].mean(0)


def geometric_median(vectors: Tensor, weights: Tensor) -> Tensor:
    """The point [n] with the smallest weighted sum of distances to the vectors, by Weiszfeld's steps.

    The point is a combination of the vectors, so that a step needs only their products with each other.
    """
    centred = vectors - coordinate_median(vectors)
    products = centred @ centred.T
    squares = products.diagonal()
    if not squares.any():  # all vectors are equal
        return vectors[0].clone()
    share = weights / weights.sum()
    smallest = _CLOSE * float(squares[squares > 0].sqrt().median())
    for _ in range(_WEISZFELD_STEPS):
        to_all = products @ share
        distances = (squares - 2 * to_all + share @ to_all).clamp(min=smallest**2).sqrt()
        inverse = weights / distances
        new = inverse / inverse.sum()
        moved = float((new - share).abs().max())
        share = new
        if moved < _CLOSE:
            break
    return share @ vectors


def krum_order(vectors: Tensor, bad: int) -> Tensor:
    """The positions [clients] by Krum's score, the best first: the squared distances to the n - bad - 2 nearest."""
    squared = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = squared.sort(1).values[:, 1 : max(len(vectors) - bad - 2, 1) + 1]  # without the distance to itself
    return nearest.sum(1).argsort(stable=True)


def clipped(vectors: Tensor, factor: float) -> Tensor:
    """The vectors, moved towards their coordinate-wise median to at most `factor` times the median distance from it."""
    centre = coordinate_median(vectors)
    ways = vectors - centre
    lengths = ways.norm(dim=1)
    limit = factor * coordinate_median(lengths.unsqueeze(1))[0]
    scales: Tensor = (limit / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1).unsqueeze(1)
    return centre + ways * scales


class RobustRule:
    """The rules of a [trust] section, and where too few clients contributed for them. See `averages.AverageRule`."""

    def __init__(self, options: TrustSection) -> None:
        self.options = options
        self.too_few_for_models = 0
        """The number of uploads, if it was too small for the rule, otherwise 0."""
        self.too_few_for_classes: dict[int, int] = {}
        """The classes with too few clients for the rule, and how many they have."""
        self.combined: set[str] = set()
        """What was averaged: "weights", "prototypes"."""

    @property
    def changes_weights(self) -> bool:
        return self.options.weights != "mean" or self.options.clip > 0

    @property
    def changes_prototypes(self) -> bool:
        return self.options.prototypes != "mean" or self.options.clip > 0

    def of_prototypes(self, values: Tensor, weights: Tensor) -> Tensor:
        self.combined.add("prototypes")
        combined = values.new_zeros(values.shape[1:], dtype=torch.double)
        for label in weights.any(0).nonzero()[:, 0].tolist():
            has_class = weights[:, label] > 0
            vectors, shares = values[has_class, label].double(), weights[has_class, label].double()
            if self.options.prototypes != "mean" and self.bad(len(vectors)) > tolerated(
                self.options.prototypes, len(vectors)
            ):
                self.too_few_for_classes[label] = len(vectors)
            combined[label] = self.combine(self.options.prototypes, vectors, shares) * shares.sum()
        return combined

    def of_models(self, vectors: Tensor, weights: Tensor) -> Tensor:
        self.combined.add("weights")
        vectors, weights = vectors[weights > 0], weights[weights > 0]
        if self.options.weights != "mean" and self.bad(len(vectors)) > tolerated(self.options.weights, len(vectors)):
            self.too_few_for_models = len(vectors)
        return self.combine(self.options.weights, vectors, weights) * weights.sum()

    def bad(self, uploads: int) -> int:
        """The number of bad uploads that is assumed, of this number of uploads."""
        return math.ceil(self.options.assumed * uploads - 1e-9)

    def combine(self, rule: str, vectors: Tensor, weights: Tensor) -> Tensor:
        """One vector [n] by a rule. Median, trimmed mean and Krum count every client the same."""
        if self.options.clip:
            vectors = clipped(vectors, self.options.clip)
        bad = min(self.bad(len(vectors)), tolerated(rule, len(vectors)))
        if rule == "median":
            return coordinate_median(vectors)
        if rule == "trimmed_mean":
            return trimmed_mean(vectors, bad)
        if rule == "geometric_median":
            return geometric_median(vectors, weights)
        if rule == "krum":
            return vectors[krum_order(vectors, bad)[0]]
        if rule == "multi_krum":
            chosen = krum_order(vectors, bad)[: len(vectors) - bad].sort().values
            vectors, weights = vectors[chosen], weights[chosen]
        return weights / weights.sum() @ vectors


def tolerated(rule: str, uploads: int) -> int:
    """The largest number of bad uploads, of this number of uploads, that a rule withstands."""
    if rule == "mean":
        return 0
    return max((uploads - 3) // 2 if "krum" in rule else (uploads - 1) // 2, 0)
