"""Several centres for each class: k-means of all classes at once, DBSCAN (MP-FedCL, Eq. 7), and FINCH (FPL)."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.prototypes import Prototypes

_ROUNDS = 100
"""After so many steps k-means stops, settled or not."""


def kmeans(z: Tensor, y: Tensor, classes: int, k: int, generator: torch.Generator) -> Prototypes:
    """Up to k centres [classes, k, dim] for each class of embeddings [n, dim] with labels [n], and how many each has.

    Starts are drawn as in k-means++. A class with fewer examples than k has as many centres as examples.
    """
    points, there = padded(z, y, classes)
    return lloyd(points, there, _plus_plus(points, there, k, generator))


def padded(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Embeddings by class [classes, most, dim], and which of them are there [classes, most]."""
    counts = torch.bincount(y, minlength=classes)
    order = torch.argsort(y, stable=True)
    place = torch.arange(len(y)) - (counts.cumsum(0) - counts)[y[order]]
    points = z.new_zeros(classes, max(1, int(counts.max()) if classes else 1), z.shape[-1])
    points[y[order], place] = z[order]
    return points, torch.arange(points.shape[1]) < counts.unsqueeze(1)


def _plus_plus(points: Tensor, there: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Starts [classes, k, dim]: the first at random, each next one the likelier the farther from those before."""
    chosen = []
    chance = there.double()
    for _ in range(k):
        total = chance.cumsum(1)
        drawn = torch.rand(len(points), 1, generator=generator, dtype=torch.double) * total[:, -1:]
        place = (total <= drawn).sum(1).clamp(max=points.shape[1] - 1)
        chosen.append(points[torch.arange(len(points)), place])
        apart = (points - chosen[-1].unsqueeze(1)).double().square().sum(-1)
        chance = torch.where(there, torch.minimum(chance, apart) if len(chosen) > 1 else apart, 0)
    return torch.stack(chosen, 1)


def lloyd(points: Tensor, there: Tensor, starts: Tensor) -> Prototypes:
    """From starts [classes, k, dim]: points go to the nearest centre, centres to the mean of theirs, until all stay."""
    k = starts.shape[1]
    centres, before = starts, None
    enough = there.sum(1, keepdim=True) > torch.arange(k)  # no more centres than points
    for _ in range(_ROUNDS):
        apart = torch.cdist(points, centres).masked_fill(~enough.unsqueeze(1), torch.inf)
        nearest = torch.where(there, apart.argmin(-1), k)  # k: nobody's
        member = (nearest.unsqueeze(-1) == torch.arange(k)).to(points.dtype)
        support = member.sum(1)
        means = member.transpose(1, 2) @ points / support.clamp(min=1).unsqueeze(-1)
        centres = torch.where((support > 0).unsqueeze(-1), means, centres)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
    held = support > 0
    return Prototypes(torch.where(held.unsqueeze(-1), centres, 0), support)


def dbscan(z: Tensor, y: Tensor, classes: int, k: int, eps: float, neighbours: int) -> Prototypes:
    """The means of each class's clusters as DBSCAN finds them, the k largest; where it finds none, the class's mean.

    `eps` 0: for each class the median distance of a point to its `neighbours`-th nearest.
    """
    from sklearn.cluster import DBSCAN
    from sklearn.neighbors import NearestNeighbors

    made = Prototypes.empty(classes, z.shape[-1], k)
    for label in y.unique().tolist():
        own = z[y == label].double().numpy()
        if not np.isfinite(own).all():  # a client that has diverged: its mean is not finite either, and is refused
            made.mean[label, 0], made.support[label, 0] = float("nan"), len(own)
            continue
        reach = eps
        if not reach and len(own) > neighbours:
            far = NearestNeighbors(n_neighbors=neighbours + 1).fit(own).kneighbors(own)[0][:, -1]
            reach = float(np.median(far))
        found = DBSCAN(eps=max(reach, 1e-12), min_samples=neighbours).fit_predict(own)
        groups = [own[found == number] for number in range(found.max() + 1)] or [own]
        groups.sort(key=len, reverse=True)
        for place, group in enumerate(groups[:k]):
            made.mean[label, place] = torch.from_numpy(group.mean(0)).to(z.dtype)
            made.support[label, place] = len(group)
    return made


def finch(points: Tensor, last: bool = True) -> Tensor:
    """The group of each of the points [n, dim], by first neighbours (Sarfraz et al. 2019); nearest is by cosine.

    Points with their nearest one, and points with a common nearest one, are together. `last`: the groups' means are
    grouped again, and so on, as long as more than one group is left.
    """
    group = _with_nearest(points)
    while last and (count := int(group.max()) + 1) > 2:
        again = _with_nearest(Prototypes.of(points, group, count).mean[:, 0])
        if not again.any():
            break
        group = again[group]
    return group


def _with_nearest(points: Tensor) -> Tensor:
    """FINCH's first partition: groups [n], numbered from 0."""
    if len(points) == 1:
        return torch.zeros(1, dtype=torch.long)
    unit = F.normalize(points.double(), dim=-1)
    nearest = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(1)
    linked = nearest.unsqueeze(1) == nearest
    linked[torch.arange(len(points)), nearest] = True
    linked |= linked.T.clone()
    group, before = torch.arange(len(points)), None
    while before is None or not torch.equal(group, before):
        group, before = torch.where(linked, group, len(points)).amin(1), group
    numbered: Tensor = group.unique(return_inverse=True)[1]
    return numbered
