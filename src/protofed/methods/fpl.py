"""FPL (Huang et al., CVPR 2023): for domain shift, a few cluster prototypes per class, not one mean of all clients.

Where the paper and the authors' code differ there is an option; the defaults are the authors' code.
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
from protofed.methods.fedproto import apart, class_sums
from protofed.methods.mpfedcl import Shared
from protofed.methods.parts import clusters


class Guides(NamedTuple):
    """What a client makes of the cluster prototypes before it trains."""

    directions: Tensor  # [classes, modes, dim]: the cluster prototypes at length 1
    there: Tensor  # [classes, modes], 0 or 1
    unbiased: Prototypes  # [classes, 1, dim]: the mean of each class's clusters, however many clients are in each


@dataclass(frozen=True)
class FPL(Method[Shared, Shared, Shared, Nothing]):
    """FedAvg whose clients draw embeddings to prototypes that are clustered by domain, and to their unbiased mean."""

    needs: ClassVar = "equal nets"

    temperature: Annotated[float, Gt(0)] = 0.02
    """τ of the contrast with the cluster prototypes."""
    contrast: Annotated[float, Ge(0)] = 1.0
    """The weight of the contrast; the paper has 1."""
    pull: Annotated[float, Ge(0)] = 1.0
    """The weight of the distance to the unbiased prototype; the paper has 1."""
    distance: Literal["mse", "squared"] = "mse"
    """That distance: squared norm / dim (`mse`, code), or the squared norm (`squared`, paper)."""
    clusters: Literal["last", "first"] = "last"
    """FINCH's partition: the `last` with more than one cluster (code), or the `first` (the paper's equation)."""
    prototypes: Literal["gathered", "fresh"] = "gathered"
    """A client's class means: `gathered` in the last epoch's training (code), or in a `fresh` pass after it."""

    def start(self, site: Site) -> Shared:
        """A cluster has two clients at least: there are never more than half as many as clients."""
        modes = max(1, site.clients // 2)
        return Shared(site.net.init(site.generator("init")), Prototypes.empty(site.net.classes, site.net.dim, modes))

    def receive(self, kept: Nothing, down: Shared) -> Params:
        return down.params

    def prepare(self, down: Shared) -> Guides:
        known = down.prototypes
        there = (known.support > 0).to(known.mean.dtype)
        return Guides(F.normalize(known.mean, dim=-1), there, Prototypes.from_sums(known.mean.sum(1), there.sum(1)))

    def loss(self, net: Net, params: Params, batch: Batch, down: Guides, kept: Nothing) -> Loss:
        z, logits = net(params, batch.x)
        at = net.match(batch, z)
        target, seen = down.unbiased.lookup(at.y)
        pull = weighted_mean(apart(z, target, self.distance) * seen, at.weight)
        contrast = weighted_mean(self.among(z, at.y, down) * seen, at.weight)
        return Loss(
            class_sums(z, at, net.classes) if self.prototypes == "gathered" else (),
            supervised=cross_entropy(logits, batch),
            contrast=self.contrast * contrast,
            pull=self.pull * pull,
        )

    def among(self, z: Tensor, y: Tensor, down: Guides) -> Tensor:
        """For each sample [n] -log of the share of its class's clusters among all, by exp(cosine / τ)."""
        cosines = F.normalize(z, dim=-1) @ down.directions.flatten(0, 1).T
        scores = (cosines / self.temperature).unflatten(1, down.there.shape).masked_fill(down.there == 0, -1e9)
        by_class = scores.logsumexp(-1)  # [n, classes]
        own = by_class.gather(1, y.unsqueeze(1)).squeeze(1)
        lost: Tensor = by_class.logsumexp(-1) - own
        return lost

    def upload(self, trained: Trained[Shared, Nothing]) -> Shared:
        if self.prototypes == "gathered" and trained.observed:
            return Shared(trained.params, Prototypes.from_sums(*trained.observed))
        return Shared(trained.params, Prototypes.of(*trained.features(), classes=trained.net.classes))

    def aggregate(self, site: Site, server: Shared, uploads: Sequence[Upload[Shared]]) -> Shared:
        """Weights by |D_i|; each class's prototypes are clustered; a class that nobody sent keeps its clusters."""
        sent = [upload.message.prototypes for upload in uploads]
        made = Prototypes(server.prototypes.mean.clone(), server.prototypes.support.clone())
        for label in torch.stack([one.support[:, 0] for one in sent]).sum(0).nonzero()[:, 0].tolist():
            own = torch.stack([one.mean[label, 0] for one in sent if one.support[label] > 0])
            found = Prototypes.of(own, group := clusters.finch(own, self.clusters == "last"), int(group.max()) + 1)
            made.mean[label], made.support[label] = 0, 0
            made.mean[label, : len(found.mean)] = found.mean[:, 0]
            made.support[label, : len(found.mean)] = found.support[:, 0]
        sizes = [upload.examples for upload in uploads]
        return Shared(average([upload.message.params for upload in uploads], sizes), made)

    def predict(self, net: Net, params: Params, x: Tensor, down: Shared, kept: Nothing) -> Scores:
        """By the head, as in the paper; the nearest cluster prototype stands beside."""
        z, logits = net(params, x)
        return {"head": logits, "prototype": -down.prototypes.distances(z)}

    def predict_global(self, net: Net, server: Shared, x: Tensor) -> Scores:
        return self.predict(net, server.params, x, server, ())
