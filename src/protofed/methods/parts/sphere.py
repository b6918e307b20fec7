"""Unit vectors as far apart as possible: the initial prototypes of FedNH (Dai et al. 2023, Eq. 1)."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed import draws

_STARTS = 4
"""Number of random starts of the search; the best result is used."""
_SHARPNESS = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""The search uses these values in order. The higher, the closer the smooth maximum is to the largest cosine."""
_STEPS = 400
"""Number of steps at each sharpness."""


@lru_cache(maxsize=32)
def uniform(classes: int, dim: int, seed: int) -> Tensor:
    """Unit vectors [classes, dim] that maximise the smallest distance between two of them (Eq. 1), randomly rotated.

    Up to dim + 1 of them form a simplex, with every cosine -1 / (classes - 1). More are found by a search: gradient
    descent on a smooth maximum of the cosines, from several starts. The result is cached: do not change it in place.
    """
    if classes <= dim + 1:
        return _simplex(classes, dim, seed)
    candidates = [
        search_directions(classes, dim, draws.generator(seed, "sphere", classes, dim, start))
        for start in range(_STARTS)
    ]
    return min(candidates, key=lambda points: cosine_range(points)[1]).float()


def orthonormal(classes: int, dim: int, seed: int) -> Tensor:
    """Orthonormal rows [classes, dim], as in the authors' code. With classes > dim the rows have unit length only."""
    drawn = _random_rows(classes, dim, max(classes, dim), seed)
    rows = torch.linalg.qr(drawn)[0][:classes] if classes <= dim else F.normalize(drawn)
    return rows.float().contiguous()  # qr returns columns in a row


def _random_rows(classes: int, dim: int, rows: int, seed: int) -> Tensor:
    """Standard normal numbers [rows, dim]. The draw depends on the number of classes."""
    return torch.randn(rows, dim, generator=draws.generator(seed, "sphere", classes, dim), dtype=torch.double)


def _simplex(classes: int, dim: int, seed: int) -> Tensor:
    """Unit vectors [classes, dim] with every cosine -1 / (classes - 1), randomly rotated; classes <= dim + 1."""
    centred = torch.eye(classes, dtype=torch.double) - 1 / classes  # a simplex in a space with one dimension too many
    corners = torch.linalg.eigh(centred)[1][:, 1:]  # [classes, classes - 1]: its coordinates in the eigenspace of 1
    rotation: Tensor = torch.linalg.qr(_random_rows(classes, dim, dim, seed))[0]
    return F.normalize(corners @ rotation[: classes - 1]).float() if classes > 1 else rotation[:1].float()


def search_directions(classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """Unit vectors [classes, dim] in double precision that locally minimise the largest cosine between two of them."""
    points = F.normalize(torch.randn(classes, dim, generator=generator, dtype=torch.double))
    for sharpness in _SHARPNESS:
        velocity = torch.zeros_like(points)
        for step in range(_STEPS):
            scores = (points @ points.T).fill_diagonal_(-torch.inf) * sharpness
            weights = torch.softmax(scores.flatten(), 0).reshape(classes, classes)  # d smooth maximum / d cosines
            grad = 2 * weights @ points
            grad = grad - (grad * points).sum(1, keepdim=True) * points
            scale = grad.norm(dim=1).max().clamp(min=1e-12)
            velocity = 0.9 * velocity - grad / scale * (1 - step / _STEPS) / sharpness**0.5 * 0.1
            points = F.normalize(points + velocity)
    return points


def cosine_range(points: Tensor) -> tuple[float, float]:
    """The smallest and the largest cosine between two different rows; 0 and 0 for a single row."""
    unit = F.normalize(points.double())
    cosines = (unit @ unit.T)[~torch.eye(len(points), dtype=torch.bool)]
    return (float(cosines.min()), float(cosines.max())) if len(cosines) else (0.0, 0.0)
