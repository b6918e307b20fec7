"""FPL (Huang et al., CVPR 2023): for domain shift, a few cluster prototypes per class instead of one mean.

Where the paper and the authors' code differ there is an option; the defaults follow the authors' code.
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
from protofed.methods.parts.class_sums import class_sums, gathered_prototypes
from protofed.methods.parts.clusters import finch
from protofed.methods.parts.distances import distance
from protofed.methods.parts.model_with_prototypes import ModelWithPrototypes
from protofed.methods.parts.shared_model import SharedModel


class ClusterTargets(NamedTuple):
    """What a client computes from the cluster prototypes before it trains."""

    directions: Tensor  # [classes, modes, dim]: the cluster prototypes at unit length
    exists: Tensor  # [classes, modes], 0 or 1
    unbiased: Prototypes  # [classes, 1, dim]: the mean of each class's clusters, not weighted by their sizes


@dataclass(frozen=True)
class FPL(SharedModel, Method[ModelWithPrototypes, ModelWithPrototypes, ModelWithPrototypes, Nothing]):
    """FedAvg with embeddings pulled to prototypes that are clustered by domain, and to their unbiased mean."""

    needs: ClassVar[Needs] = "equal nets"
    compares_classes: ClassVar[bool] = True

    temperature: Annotated[float, Gt(0)] = 0.02
    """τ of the contrast with the cluster prototypes."""
    contrast: Annotated[float, Ge(0)] = 1.0
    """Weight of the contrast; the paper has 1."""
    pull: Annotated[float, Ge(0)] = 1.0
    """Weight of the distance to the unbiased prototype; the paper has 1."""
    distance: Literal["mse", "squared"] = "mse"
    """That distance: squared norm / dim (`mse`, code), or the squared norm (`squared`, paper)."""
    clusters: Literal["last", "first"] = "last"
    """FINCH's partition: the `last` with more than one cluster (code), or the `first` (the paper's equation)."""
    prototypes: Literal["gathered", "fresh"] = "gathered"
    """A client's class means: `gathered` during the last epoch (code), or in a `fresh` pass after training."""

    def start(self, site: Site) -> ModelWithPrototypes:
        """A cluster has at least two clients, so that there are at most half as many clusters as clients."""
        modes = max(1, site.clients // 2)
        return ModelWithPrototypes(site.fresh_params(), Prototypes.empty(site.net.classes, site.net.dim, modes))

    def prepare(self, down: ModelWithPrototypes) -> ClusterTargets:
        clustered = down.prototypes
        exists = (clustered.support > 0).to(clustered.mean.dtype)
        unbiased = Prototypes.from_sums(clustered.mean.sum(1), exists.sum(1))
        return ClusterTargets(F.normalize(clustered.mean, dim=-1), exists, unbiased)

    def loss(self, net: Net, params: Params, batch: Batch, down: ClusterTargets, kept: Nothing) -> Loss:
        """Cross-entropy, the contrast with the cluster prototypes, and the distance to the unbiased prototype."""
        z, logits = net(params, batch.x)
        matched = net.match(batch, z)
        target, seen = down.unbiased.lookup(matched.y)
        pull = weighted_mean(distance(z, target, self.distance) * seen, matched.weight)
        contrast = weighted_mean(self.contrastive_loss(z, matched.y, down) * seen, matched.weight)
        return Loss(
            class_sums(z, matched, net.classes) if self.prototypes == "gathered" else (),
            supervised=cross_entropy(logits, batch),
            contrast=self.contrast * contrast,
            pull=self.pull * pull,
        )

    def contrastive_loss(self, z: Tensor, y: Tensor, down: ClusterTargets) -> Tensor:
        """Per sample [n], -log of the share of its class's clusters among all clusters, by exp(cosine / τ)."""
        cosines = F.normalize(z, dim=-1) @ down.directions.flatten(0, 1).T
        scores = (cosines / self.temperature).unflatten(1, down.exists.shape).masked_fill(down.exists == 0, -1e9)
        by_class = scores.logsumexp(-1)  # [n, classes]
        own_class = by_class.gather(1, y.unsqueeze(1)).squeeze(1)
        loss: Tensor = by_class.logsumexp(-1) - own_class
        return loss

    def upload(self, trained: Trained[ModelWithPrototypes, Nothing]) -> ModelWithPrototypes:
        if self.prototypes == "gathered" and trained.observed:
            return ModelWithPrototypes(trained.params, gathered_prototypes(trained))
        return ModelWithPrototypes(trained.params, Prototypes.of(*trained.features(), classes=trained.net.classes))

    def aggregate(
        self, site: Site, server: ModelWithPrototypes, uploads: Sequence[Upload[ModelWithPrototypes]]
    ) -> ModelWithPrototypes:
        """Weights by |D_i|. Prototypes are clustered per class; a class that no client sent keeps its clusters."""
        uploaded = [upload.message.prototypes for upload in uploads]
        clustered = Prototypes(server.prototypes.mean.clone(), server.prototypes.support.clone())
        for label in torch.stack([part.support[:, 0] for part in uploaded]).sum(0).nonzero()[:, 0].tolist():
            points = torch.stack([part.mean[label, 0] for part in uploaded if part.support[label] > 0])
            group = finch(points, self.clusters == "last")
            centres = Prototypes.of(points, group, int(group.max()) + 1)
            clustered.mean[label], clustered.support[label] = 0, 0
            clustered.mean[label, : len(centres.mean)] = centres.mean[:, 0]
            clustered.support[label, : len(centres.mean)] = centres.support[:, 0]
        return ModelWithPrototypes(average_uploads(uploads), clustered)

    def predict(self, net: Net, params: Params, x: Tensor, down: ModelWithPrototypes, kept: Nothing) -> Scores:
        """By the head, as in the paper, and by the nearest cluster prototype."""
        z, logits = net(params, x)
        return {"head": logits, "prototype": -down.prototypes.distances(z)}

    def predict_global(self, net: Net, server: ModelWithPrototypes, x: Tensor) -> Scores:
        return self.predict(net, server.params, x, server, ())
