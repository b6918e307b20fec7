"""MP-FedCL (Qiao et al.): several prototypes per class and client, pooled, and a contrastive loss against the pool.

There is no public code; where the paper is silent or contradicts itself there is an option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from protofed.core import (
    Batch,
    Loss,
    Method,
    Net,
    Nothing,
    Params,
    Prototypes,
    Scores,
    Site,
    Trained,
    Upload,
    average,
    cross_entropy,
    weighted_mean,
)
from protofed.methods.parts import clusters


class Shared(NamedTuple):
    """What travels, either way: weights, and prototypes [classes, modes, dim]; a client sends its own k modes."""

    params: Params
    prototypes: Prototypes


class Server(NamedTuple):
    """The model, the pool U of Eq. (8), with the modes of client i at i k .. (i + 1) k, and what is sent of it."""

    params: Params
    pool: Prototypes
    merged: Prototypes  # no modes where no cap is exceeded: then the pool itself is sent


class Slots(NamedTuple):
    """The pool as Eq. (11) reads it: for each (client, k) one prototype of every class."""

    vectors: Tensor  # [classes, slots, dim]
    seen: Tensor  # [classes]: has anybody a prototype of it?


@dataclass(frozen=True)
class MpFedCL(Method[Server, Shared, Shared, Nothing]):
    """Clients share weights and several prototypes per class, and contrast their embeddings with everybody's."""

    needs: ClassVar = "equal nets"

    k: Annotated[int, Ge(1)] = 2
    """K of Eq. (7): prototypes per class and client; of `dbscan` the largest so many."""
    clustering: Literal["kmeans", "mean", "dbscan"] = "kmeans"
    """Eq. (7): `kmeans` is MP-FedCL, `mean` (one prototype) SP-FedCL, `dbscan` DP-FedCL."""
    temperature: Annotated[float, Gt(0)] = 0.07
    """τ of Eq. (11)."""
    contrast: Annotated[float, Ge(0)] = 1.0
    """The weight of L_R in Eq. (12); the paper has 1."""
    positives: Literal["own", "letter"] = "own"
    """P(y) of Eq. (11): the sample's `own` class, as the text wants it, or to the `letter` all labels but it."""
    unit: bool = True
    """Are embeddings and prototypes scaled to length 1 in Eq. (11)? The paper does not say."""
    cap: Annotated[int, Ge(0)] = 0
    """The most prototypes per class that are sent: a larger pool is merged by k-means; 0: all, as in the paper."""
    eps: Annotated[float, Ge(0)] = 0.0
    """Of `dbscan`: the radius; 0: the median distance to the `neighbours`-th nearest, class by class."""
    neighbours: Annotated[int, Ge(1)] = 4
    """Of `dbscan`: how many neighbours make a core point."""

    @property
    def modes(self) -> int:
        return 1 if self.clustering == "mean" else self.k

    def start(self, site: Site) -> Server:
        classes, dim = site.net.classes, site.net.dim
        pool = Prototypes.empty(classes, dim, site.clients * self.modes)
        merged = Prototypes.empty(classes, dim, self.cap if site.clients * self.modes > self.cap else 0)
        return Server(site.net.init(site.generator("init")), pool, merged)

    def broadcast(self, server: Server, client: int) -> Shared:
        return Shared(server.params, server.merged if server.merged.support.numel() else server.pool)

    def receive(self, kept: Nothing, down: Shared) -> Params:
        return down.params

    def prepare(self, down: Shared) -> Slots:
        """Eq. (9), (10): where a client has fewer than k prototypes of a class, all k are the class's mean."""
        known = down.prototypes
        classes, modes = known.support.shape
        held = (known.support > 0).to(known.mean.dtype)
        centre = known.mean.sum(1) / held.sum(1).clamp(min=1).unsqueeze(-1)  # Eq. (9)
        group = self.modes if modes % self.modes == 0 and not self.cap else 1
        full = held.reshape(classes, -1, group).amin(-1).repeat_interleave(group, 1)
        vectors = torch.where(full.unsqueeze(-1) > 0, known.mean, centre.unsqueeze(1))
        return Slots(F.normalize(vectors, dim=-1) if self.unit else vectors, held.amax(1))

    def loss(self, net: Net, params: Params, batch: Batch, down: Slots, kept: Nothing) -> Loss:
        """Eq. (12): cross-entropy plus the contrast with the pool."""
        z, logits = net(params, batch.x)
        at = net.match(batch, z)
        return Loss(supervised=cross_entropy(logits, batch), contrast=self.contrast * self.against(z, at, down))

    def against(self, z: Tensor, batch: Batch, pool: Slots) -> Tensor:
        """Eq. (11): in every slot the log-probability of the positives among the classes; the mean over slots."""
        classes, slots, dim = pool.vectors.shape
        v = (F.normalize(z, dim=-1) if self.unit else z) / self.temperature
        floor = ((pool.seen - 1) * 1e9).repeat_interleave(slots)  # what nobody has is neither positive nor negative
        scores = torch.addmm(floor, v, pool.vectors.reshape(-1, dim).T).reshape(-1, classes, slots)
        chances = scores.log_softmax(1).mean(-1)  # [n, classes]
        own = (batch.y.unsqueeze(1) == torch.arange(classes, device=z.device)).to(z.dtype)
        wanted = (own if self.positives == "own" else 1 - own) * pool.seen
        found = (chances * wanted).sum(-1) / wanted.sum(-1).clamp(min=1)
        return -weighted_mean(found, batch.weight)

    def upload(self, trained: Trained[Shared, Nothing]) -> Shared:
        """Eq. (6), (7)."""
        z, y = trained.features()
        classes = trained.net.classes
        if self.clustering == "mean":
            found = Prototypes.of(z, y, classes)
        elif self.clustering == "kmeans":
            found = clusters.kmeans(z, y, classes, self.k, trained.generator("clusters"))
        else:
            found = clusters.dbscan(z, y, classes, self.k, self.eps, self.neighbours)
        return Shared(trained.params, found)

    def aggregate(self, site: Site, server: Server, uploads: Sequence[Upload[Shared]]) -> Server:
        """Algorithm 1: weights by |D_i| / |D|; Eq. (8), in which clients of earlier rounds keep their modes."""
        pool = Prototypes(server.pool.mean.clone(), server.pool.support.clone())
        for upload in uploads:
            own = slice(upload.client * self.modes, (upload.client + 1) * self.modes)
            pool.mean[:, own], pool.support[:, own] = upload.message.prototypes
        sizes = [upload.examples for upload in uploads]
        too_many = server.merged.support.numel()
        merged = merge(pool, self.cap, site.generator("merge")) if too_many else server.merged
        return Server(average([upload.message.params for upload in uploads], sizes), pool, merged)

    def predict(self, net: Net, params: Params, x: Tensor, down: Shared, kept: Nothing) -> Scores:
        """By the head, and Eq. (13): the class of the nearest prototype of the pool."""
        z, logits = net(params, x)
        return {"head": logits, "prototype": -down.prototypes.distances(z)}

    def predict_global(self, net: Net, server: Server, x: Tensor) -> Scores:
        return self.predict(net, server.params, x, self.broadcast(server, 0), ())


def merge(pool: Prototypes, most: int, generator: torch.Generator) -> Prototypes:
    """At most so many prototypes per class, by k-means over those of the pool; supports are numbers of these."""
    label, mode = pool.support.nonzero(as_tuple=True)
    return clusters.kmeans(pool.mean[label, mode], label, len(pool.mean), most, generator)
