"""Directions as far apart as possible: where FedNH's prototypes start (Dai et al. 2023, Eq. 1)."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed import draws

_STARTS = 4
"""How many times the search begins anew; the best is taken."""
_SHARPNESS = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""The search's objective is ever closer to the largest cosine alone."""
_STEPS = 400
"""Steps at each sharpness."""


@lru_cache(maxsize=32)
def uniform(classes: int, dim: int, seed: int) -> Tensor:
    """Unit vectors [classes, dim] whose smallest distance is largest (Eq. 1), turned at random; do not change them.

    Up to dim + 1 of them are a simplex, with every cosine -1 / (classes - 1). More are found by a search: gradient
    descent on a smooth maximum of the cosines, from several starts.
    """
    if classes <= dim + 1:
        return _simplex(classes, dim, seed)
    found = [search(classes, dim, draws.generator(seed, "sphere", classes, dim, start)) for start in range(_STARTS)]
    return min(found, key=lambda points: cosines(points)[1]).float()


def orthonormal(classes: int, dim: int, seed: int) -> Tensor:
    """Orthonormal rows [classes, dim], as the authors' code starts; more than dim of them cannot be."""
    drawn = _drawn_rows(classes, dim, max(classes, dim), seed)
    return torch.linalg.qr(drawn)[0][:classes].float() if classes <= dim else F.normalize(drawn).float()


def _drawn_rows(classes: int, dim: int, rows: int, seed: int) -> Tensor:
    """Normal numbers [rows, dim] for so many classes."""
    return torch.randn(rows, dim, generator=draws.generator(seed, "sphere", classes, dim), dtype=torch.double)


def _simplex(classes: int, dim: int, seed: int) -> Tensor:
    """Unit vectors [classes, dim] with every cosine -1 / (classes - 1), turned at random; classes <= dim + 1."""
    centred = torch.eye(classes, dtype=torch.double) - 1 / classes  # a simplex, in a space of one dimension too many
    corners = torch.linalg.eigh(centred)[1][:, 1:]  # its coordinates there: the directions of eigenvalue 1
    turned: Tensor = torch.linalg.qr(_drawn_rows(classes, dim, dim, seed))[0]
    return F.normalize(corners @ turned[: classes - 1]).float() if classes > 1 else turned[:1].float()


def search(classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """Unit vectors [classes, dim], double, with a locally smallest largest cosine."""
    points = F.normalize(torch.randn(classes, dim, generator=generator, dtype=torch.double))
    for sharpness in _SHARPNESS:
        velocity = torch.zeros_like(points)
        for step in range(_STEPS):
            near = (points @ points.T).fill_diagonal_(-torch.inf) * sharpness
            pull = torch.softmax(near.flatten(), 0).reshape(classes, classes)  # d smooth maximum / d cosines
            grad = 2 * pull @ points
            grad = grad - (grad * points).sum(1, keepdim=True) * points
            scale = grad.norm(dim=1).max().clamp(min=1e-12)
            velocity = 0.9 * velocity - grad / scale * (1 - step / _STEPS) / sharpness**0.5 * 0.1
            points = F.normalize(points + velocity)
    return points


def cosines(points: Tensor) -> tuple[float, float]:
    """The smallest and the largest cosine between two different rows."""
    unit = F.normalize(points.double())
    near = (unit @ unit.T)[~torch.eye(len(points), dtype=torch.bool)]
    return (float(near.min()), float(near.max())) if len(near) else (0.0, 0.0)
