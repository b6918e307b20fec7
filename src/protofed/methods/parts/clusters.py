"""Clustering of embeddings: k-means of all classes at once and DBSCAN (MP-FedCL, Eq. 7), and FINCH (FPL)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.prototypes import Prototypes

Starts = Literal["kmeans++", "random"]
"""How the first centres of k-means are drawn: far from each other, or k points with equal probabilities."""
_ITERATIONS = 100
"""The largest number of iterations of k-means."""


def kmeans(
    z: Tensor,
    y: Tensor,
    classes: int,
    k: int,
    generator: torch.Generator,
    starts: Starts = "kmeans++",
    tries: int = 1,
) -> Prototypes:
    """Up to k centres per class, [classes, k, dim], of embeddings [n, dim] with labels [n].

    The support of a centre is the number of its embeddings. A class with fewer than k examples has one centre per
    example. Of several `tries`, each class keeps the one with the smallest sum of squared distances.
    """
    points, exists = padded_by_class(z, y, classes)
    draw = _plus_plus if starts == "kmeans++" else random_points
    results = [lloyd(points, exists, draw(points, exists, k, generator)) for _ in range(tries)]
    if tries == 1:
        return results[0]
    best = torch.stack([_squared_distances(points, exists, centres) for centres in results]).argmin(0)  # [classes]
    mean, support = (torch.stack(parts)[best, torch.arange(classes)] for parts in zip(*results, strict=True))
    return Prototypes(mean, support)


def padded_by_class(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Embeddings by class [classes, rows, dim], padded with zeros, and which rows are embeddings [classes, rows]."""
    counts = torch.bincount(y, minlength=classes)
    order = torch.argsort(y, stable=True)
    row = torch.arange(len(y)) - (counts.cumsum(0) - counts)[y[order]]
    points = z.new_zeros(classes, max(1, int(counts.max()) if classes else 1), z.shape[-1])
    points[y[order], row] = z[order]
    return points, torch.arange(points.shape[1]) < counts.unsqueeze(1)


def _plus_plus(points: Tensor, exists: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """The starts [classes, k, dim] of k-means++.

    The first start is a random point. Every next one is drawn with probability proportional to the squared distance to
    the nearest start before it.
    """
    starts = []
    weight = exists.double()
    for _ in range(k):
        cumulated = weight.cumsum(1)
        drawn = torch.rand(len(points), 1, generator=generator, dtype=torch.double) * cumulated[:, -1:]
        row = (cumulated <= drawn).sum(1).clamp(max=points.shape[1] - 1)
        starts.append(points[torch.arange(len(points)), row])
        distances = (points - starts[-1].unsqueeze(1)).double().square().sum(-1)
        weight = torch.where(exists, torch.minimum(weight, distances) if len(starts) > 1 else distances, 0)
    return torch.stack(starts, 1)


def random_points(points: Tensor, exists: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Starts [classes, k, dim]: k different points of each class. If a class has fewer, the rest is not used."""
    keys = torch.rand(exists.shape, generator=generator).masked_fill(~exists, -1)
    row = keys.argsort(dim=1, descending=True, stable=True)[:, torch.arange(k).clamp(max=points.shape[1] - 1)]
    return points[torch.arange(len(points)).unsqueeze(1), row]


def _squared_distances(points: Tensor, exists: Tensor, centres: Prototypes) -> Tensor:
    """Per class [classes], the sum over its points of the squared distance to the nearest centre."""
    exact = torch.cdist(points, centres.mean, compute_mode="donot_use_mm_for_euclid_dist")  # also far from the origin
    distances = exact.masked_fill(centres.support.unsqueeze(1) == 0, torch.inf)
    return torch.where(exists, distances.amin(-1).square(), 0).sum(1)


def lloyd(points: Tensor, exists: Tensor, starts: Tensor) -> Prototypes:
    """Lloyd's algorithm from starts [classes, k, dim].

    Every point is assigned to the nearest centre and every centre is moved to the mean of its points, until no
    assignment changes. Centres that are some thousand times closer to each other than to the middle of the class are
    not told apart, because squared lengths have single precision.
    """
    k = starts.shape[1]
    counts = exists.sum(1, keepdim=True)
    middle = (points.sum(1) / counts.clamp(min=1)).unsqueeze(1)  # around it, squared lengths are small and precise
    points, centres, previous = points - middle, starts - middle, None
    is_used = counts > torch.arange(k)  # [classes, k]: no more centres than points
    for _ in range(_ITERATIONS):
        lengths = centres.square().sum(-1).masked_fill(~is_used, torch.inf)
        scores = torch.baddbmm(lengths.unsqueeze(1), points, centres.mT, alpha=-2)  # |x - c|² without |x|²
        nearest = torch.where(exists, scores.argmin(-1), k)  # k: padding, assigned to no centre
        member = (nearest.unsqueeze(-1) == torch.arange(k)).to(points.dtype)
        support = member.sum(1)
        means = member.transpose(1, 2) @ points / support.clamp(min=1).unsqueeze(-1)
        centres = torch.where((support > 0).unsqueeze(-1), means, centres)
        if previous is not None and torch.equal(nearest, previous):
            break
        previous = nearest
    return Prototypes(torch.where((support > 0).unsqueeze(-1), centres + middle, 0), support)


def dbscan(z: Tensor, y: Tensor, classes: int, k: int, eps: float, neighbours: int) -> Prototypes:
    """Per class the means of the k largest clusters that DBSCAN finds; the mean of the class if it finds none.

    `eps` is the radius of DBSCAN; 0: per class the median distance of a point to its `neighbours`-th nearest point.
    """
    from sklearn.cluster import DBSCAN
    from sklearn.neighbors import NearestNeighbors

    prototypes = Prototypes.empty(classes, z.shape[-1], k)
    for label in y.unique().tolist():
        points = z[y == label].double().numpy()
        if not np.isfinite(points).all():  # the client has diverged; the guard rejects prototypes with NaN
            prototypes.mean[label, 0], prototypes.support[label, 0] = float("nan"), len(points)
            continue
        radius = eps
        if not radius and len(points) > neighbours:
            distances = NearestNeighbors(n_neighbors=neighbours + 1).fit(points).kneighbors(points)[0][:, -1]
            radius = float(np.median(distances))
        cluster_of = DBSCAN(eps=max(radius, 1e-12), min_samples=neighbours).fit_predict(points)  # -1: noise
        groups = [points[cluster_of == number] for number in range(cluster_of.max() + 1)] or [points]
        groups.sort(key=len, reverse=True)
        for mode, group in enumerate(groups[:k]):
            prototypes.mean[label, mode] = torch.from_numpy(group.mean(0)).to(z.dtype)
            prototypes.support[label, mode] = len(group)
    return prototypes


def finch(points: Tensor, last: bool = True) -> Tensor:
    """The group [n] of each of the points [n, dim], by first neighbours under cosine similarity (Sarfraz et al. 2019).

    A point and its nearest point are in the same group, and so are two points with the same nearest point. `last`: the
    means of the groups are grouped again, repeatedly, until the next step would leave only one group.
    """
    group = _first_partition(points)
    while last and (count := int(group.max()) + 1) > 2:
        group_of_groups = _first_partition(Prototypes.of(points, group, count).mean[:, 0])
        if not group_of_groups.any():
            break
        group = group_of_groups[group]
    return group


def _first_partition(points: Tensor) -> Tensor:
    """The first partition of FINCH: the group [n] of each point, numbered from 0."""
    if len(points) == 1:
        return torch.zeros(1, dtype=torch.long)
    unit = F.normalize(points.double(), dim=-1)
    nearest = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(1)
    linked = nearest.unsqueeze(1) == nearest
    linked[torch.arange(len(points)), nearest] = True
    linked |= linked.T.clone()
    group, previous = torch.arange(len(points)), None
    while previous is None or not torch.equal(group, previous):
        group, previous = torch.where(linked, group, len(points)).amin(1), group
    numbered: Tensor = group.unique(return_inverse=True)[1]
    return numbered
