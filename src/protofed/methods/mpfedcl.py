"""MP-FedCL (Qiao et al.): several prototypes per class and client, pooled, and a contrastive loss against the pool.

There is no public code. Where the paper is silent or contradicts itself there is an option.
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
    Needs,
    Net,
    Nothing,
    Params,
    Prototypes,
    Scores,
    Site,
    Trained,
    Upload,
    average_uploads,
    cross_entropy,
    weighted_mean,
)
from protofed.methods.parts import clusters
from protofed.methods.parts.model_with_prototypes import ModelWithPrototypes
from protofed.methods.parts.shared_model import SharedModel


class PoolingServer(NamedTuple):
    """The server's state: the model, the pool U of Eq. (8), and the merged pool if the pool is too large to be sent.

    The prototypes of client i are in the slots i K, ..., (i + 1) K - 1 of the pool.
    """

    params: Params
    pool: Prototypes
    merged: dict[str, Prototypes]  # {"merged": ...} if a class has more than `cap` prototypes, otherwise {}


class PooledModel(NamedTuple):
    """The message to clients: the model, and the prototypes under a name that says whether they were merged."""

    params: Params
    prototypes: dict[str, Prototypes]  # {"pool": ...} or {"merged": ...}

    @property
    def pool(self) -> Prototypes:
        """The prototypes, merged or not."""
        return next(iter(self.prototypes.values()))


class Candidates(NamedTuple):
    """The pool as Eq. (11) reads it: for each (client i, k) one prototype per class."""

    u: Tensor  # [classes, slots, dim]; one slot per (i, k)
    seen: Tensor  # [classes]: whether any client has sent a prototype of the class


@dataclass(frozen=True)
class MpFedCL(SharedModel, Method[PoolingServer, PooledModel, ModelWithPrototypes, Nothing]):
    """Clients share weights and several prototypes per class, and contrast their embeddings with all prototypes."""

    needs: ClassVar[Needs] = "equal nets"
    compares_classes: ClassVar[bool] = True

    k: Annotated[int, Ge(1)] = 2
    """K of Eq. (7): prototypes per class and client; with `dbscan`, the largest number of clusters that is sent."""
    clustering: Literal["kmeans", "mean", "dbscan"] = "kmeans"
    """Eq. (7): `kmeans` is MP-FedCL, `mean` (one prototype) SP-FedCL, `dbscan` DP-FedCL."""
    starts: clusters.Starts = "kmeans++"
    """First centres of `kmeans`: far from each other (`kmeans++`), or `random` examples, as in the paper."""
    tries: Annotated[int, Ge(1)] = 1
    """Tries of `kmeans` from different starts; the one with the smallest sum of squared distances is used."""
    padding: Literal["client", "slot"] = "client"
    """Eq. (10), fewer than K: the mean replaces all of the `client`'s (paper), or per `slot` those missing."""
    temperature: Annotated[float, Gt(0)] = 0.07
    """τ of Eq. (11)."""
    contrast: Annotated[float, Ge(0)] = 1.0
    """Weight of L_R in Eq. (12); the paper has 1."""
    reduction: Literal["mean", "sum"] = "mean"
    """Eq. (11) over the examples of a batch: their `mean`, like the cross-entropy, or their `sum`, as written."""
    positives: Literal["own", "letter"] = "own"
    """P(y) of Eq. (11): the sample's `own` class, as the text says, or literally (`letter`) all labels except it."""
    unit: bool = True
    """Whether embeddings and prototypes have unit length in Eq. (11). The paper does not say."""
    cap: Annotated[int, Ge(0)] = 0
    """Largest number of prototypes per class that clients are sent; a larger pool is merged. 0: no limit (paper)."""
    eps: Annotated[float, Ge(0)] = 0.0
    """Radius of `dbscan`; 0: the median distance to the `neighbours`-th nearest point, per class."""
    neighbours: Annotated[int, Ge(1)] = 4
    """Number of neighbours that make a core point of `dbscan`."""

    @property
    def modes(self) -> int:
        """Prototypes per class and client."""
        return 1 if self.clustering == "mean" else self.k

    def start(self, site: Site) -> PoolingServer:
        pool = Prototypes.empty(site.net.classes, site.net.dim, site.clients * self.modes)
        return PoolingServer(site.fresh_params(), pool, {})

    def merge(self, pool: Prototypes, site: Site) -> dict[str, Prototypes]:
        """If a class has more than `cap` prototypes: up to `cap` centres per class. Their supports count prototypes."""
        held = pool.support > 0
        if not self.cap or held.sum(1).max() <= self.cap:
            return {}
        label, slot = held.nonzero(as_tuple=True)
        centres = clusters.kmeans(pool.mean[label, slot], label, len(held), self.cap, site.generator("merge"))
        return {"merged": centres}

    def broadcast(self, server: PoolingServer, client: int) -> PooledModel:
        return PooledModel(server.params, server.merged or {"pool": server.pool})

    def prepare(self, down: PooledModel) -> Candidates:
        """Eq. (9), (10): where a client has fewer than K prototypes of a class, the mean of the class replaces them.

        By slot, it replaces only missing ones, and a (client, k) without a prototype of any class is left out.
        """
        u, held = down.pool.mean, down.pool.support > 0
        class_mean = u.sum(1) / held.sum(1).clamp(min=1).unsqueeze(-1)  # Eq. (9): [classes, dim]
        by_slot = self.padding == "slot" or "merged" in down.prototypes  # merged prototypes belong to no client
        together = 1 if by_slot else self.modes
        complete = held.unflatten(1, (-1, together)).all(-1).repeat_interleave(together, 1)
        filled = torch.where(complete.unsqueeze(-1), u, class_mean.unsqueeze(1))  # Eq. (10)
        if self.padding == "slot":
            filled = filled[:, held.any(0) | ~held.any()]  # all slots while the pool is empty
        return Candidates(self.scaled(filled), held.any(1))

    def scaled(self, vectors: Tensor) -> Tensor:
        """Vectors [..., dim] as Eq. (11) multiplies them."""
        return F.normalize(vectors, dim=-1) if self.unit else vectors

    def loss(self, net: Net, params: Params, batch: Batch, down: Candidates, kept: Nothing) -> Loss:
        """Eq. (12): cross-entropy plus the contrast with the pool."""
        z, logits = net(params, batch.x)
        contrast = self.contrastive_loss(z, net.match(batch, z), down)
        return Loss(supervised=cross_entropy(logits, batch), contrast=self.contrast * contrast)

    def contrastive_loss(self, z: Tensor, batch: Batch, pool: Candidates) -> Tensor:
        """Eq. (11): per slot (i, k) the log-probability of the positives among the classes; averaged over slots."""
        classes, slots, dim = pool.u.shape
        v = self.scaled(z) / self.temperature
        excluded = torch.where(pool.seen, 0.0, -1e9).to(z.dtype).repeat_interleave(slots)  # classes that nobody sent
        scores = torch.addmm(excluded, v, pool.u.reshape(-1, dim).T).reshape(-1, classes, slots)  # v · u / τ
        log_probability = scores.log_softmax(1).mean(-1)  # [n, classes]
        is_own = batch.y.unsqueeze(1) == torch.arange(classes, device=z.device)
        positive = ((is_own if self.positives == "own" else ~is_own) & pool.seen).to(z.dtype)  # P(y)
        mean_positive = (log_probability * positive).sum(-1) / positive.sum(-1).clamp(min=1)
        over_batch = weighted_mean if self.reduction == "mean" else torch.dot  # padding has weight 0
        return -over_batch(mean_positive, batch.weight)

    def upload(self, trained: Trained[PooledModel, Nothing]) -> ModelWithPrototypes:
        """Eq. (6), (7)."""
        z, y = trained.features()
        classes = trained.net.classes
        if self.clustering == "mean":
            prototypes = Prototypes.of(z, y, classes)
        elif self.clustering == "kmeans":
            draw = trained.generator("clusters")
            prototypes = clusters.kmeans(z, y, classes, self.k, draw, self.starts, self.tries)
        else:
            prototypes = clusters.dbscan(z, y, classes, self.k, self.eps, self.neighbours)
        return ModelWithPrototypes(trained.params, prototypes)

    def aggregate(
        self, site: Site, server: PoolingServer, uploads: Sequence[Upload[ModelWithPrototypes]]
    ) -> PoolingServer:
        """Algorithm 1: weights by |D_i| / |D|, and Eq. (8). The prototypes of absent clients stay in the pool."""
        pool = Prototypes(server.pool.mean.clone(), server.pool.support.clone())
        for upload in uploads:
            slots = slice(upload.client * self.modes, (upload.client + 1) * self.modes)
            pool.mean[:, slots], pool.support[:, slots] = upload.message.prototypes
        return PoolingServer(average_uploads(uploads), pool, self.merge(pool, site))

    def predict(self, net: Net, params: Params, x: Tensor, down: PooledModel, kept: Nothing) -> Scores:
        """By the head, and Eq. (13): the class of the nearest prototype of the pool."""
        z, logits = net(params, x)
        return {"head": logits, "prototype": -down.pool.distances(z)}

    def predict_global(self, net: Net, server: PoolingServer, x: Tensor) -> Scores:
        return self.predict(net, server.params, x, self.broadcast(server, 0), ())

    def model_state(self, server: PoolingServer) -> PoolingServer:
        """With the prototypes that clients are sent: if they were merged, without the pool of all clients'."""
        classes, _, dim = server.pool.mean.shape
        return server._replace(pool=Prototypes.empty(classes, dim)) if server.merged else server
