"""FedProto (Tan et al., AAAI 2022): clients keep their models and share only the mean embedding of each class.

Equations and Algorithm 1 are those of the AAAI paper. Michieli & Ozay (2021) use the same name for another method.
Where the paper and the authors' code differ there is an option; the defaults are the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from protofed.core import (
    Batch,
    Client,
    Loss,
    Method,
    Net,
    Params,
    Prototypes,
    Scores,
    Site,
    Trained,
    Upload,
    cross_entropy,
    weighted_mean,
)
from protofed.prototypes import Pooling


class Bank(NamedTuple):
    """What travels, either way."""

    prototypes: Prototypes


class Own(NamedTuple):
    """What a client keeps: its model, and which classes it has."""

    params: Params
    classes: Tensor  # [classes], 0 or 1


@dataclass(frozen=True)
class FedProto(Method[Bank, Bank, Bank, Own]):
    """Clients keep their models and share the mean embedding of each class."""

    needs: ClassVar = "equal dim"

    pull: Annotated[float, Ge(0)] = 1.0
    """λ of Eq. (7): how strongly embeddings are drawn to the global prototypes; 0 is Local."""
    pooling: Pooling = "clients"
    """Eq. (6): `clients` (code: plain mean over holders), `examples` (appendix: by |D_ij|), `written` (the letter)."""
    distance: Literal["mse", "squared", "l2", "l1", "emd"] = "mse"
    """d of Eq. (8): `mse` (code: squared norm / dim), `squared` (appendix), `l2` (text), `l1`, `emd` (earth mover)."""
    between: Literal["samples", "means"] = "samples"
    """What d compares with the global prototype: each `sample` (code), or the batch's class `means` (Eq. 8)."""
    prototypes: Literal["gathered", "fresh"] = "gathered"
    """Eq. (3): `gathered` in the last epoch's training (code: dropout on), or in a `fresh` pass after it."""
    nearest: Literal["own", "all"] = "own"
    """Eq. (4): the nearest prototype among the client's `own` classes (code), or among `all`."""

    def start(self, site: Site) -> Bank:
        """Algorithm 1, server, line 1: no class has a prototype yet."""
        return Bank(Prototypes.empty(site.net.classes, site.net.dim))

    def join(self, client: Client) -> Own:
        held = torch.bincount(client.data.labels, minlength=client.net.classes)
        return Own(client.params, (held > 0).float())

    def receive(self, kept: Own, down: Bank) -> Params:
        return kept.params

    def loss(self, net: Net, params: Params, batch: Batch, down: Bank, kept: Own) -> Loss:
        """Eq. (7): cross-entropy plus λ times the distance to the global prototypes of the samples' classes."""
        z, logits = net(params, batch.x)
        at = net.match(batch, z)
        sums, counts = class_sums(z, at, net.classes)
        if self.between == "samples":
            target, seen = down.prototypes.lookup(at.y)
            pull = weighted_mean(apart(z, target, self.distance) * seen, at.weight)
        else:  # Eq. (8): a sum over the classes that are in the batch and have a global prototype
            local, known = Prototypes.from_sums(sums, counts), down.prototypes
            both = ((local.support > 0) & (known.support > 0)).to(z.dtype)
            pull = (apart(local.mean, known.mean, self.distance) * both).sum()
        observed = (sums, counts) if self.prototypes == "gathered" else ()
        return Loss(observed, supervised=cross_entropy(logits, batch), pull=self.pull * pull)

    def keep(self, trained: Trained[Bank, Own]) -> Own:
        return Own(trained.params, trained.kept.classes)

    def upload(self, trained: Trained[Bank, Own]) -> Bank:
        """Eq. (3): the mean embedding of each class over the local set."""
        if self.prototypes == "gathered" and trained.observed:
            return Bank(Prototypes.from_sums(*trained.observed))
        return Bank(Prototypes.of(*trained.features(), classes=trained.net.classes))

    def aggregate(self, site: Site, server: Bank, uploads: Sequence[Upload[Bank]]) -> Bank:
        """Eq. (6); a class that nobody sent in this round keeps its prototype."""
        pooled = Prototypes.pool([upload.message.prototypes for upload in uploads], self.pooling)
        return Bank(pooled.or_else(server.prototypes))

    def predict(self, net: Net, params: Params, x: Tensor, down: Bank, kept: Own) -> Scores:
        """By the head, and Eq. (4): by the nearest global prototype; the other reading of it stands beside."""
        z, logits = net(params, x)
        among_all = -down.prototypes.distances(z)
        among_own = among_all.masked_fill(kept.classes == 0, -torch.inf)
        if self.nearest == "own":
            return {"head": logits, "prototype": among_own, "prototype_all": among_all}
        return {"head": logits, "prototype": among_all, "prototype_own": among_own}


def class_sums(z: Tensor, batch: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """The sum of the embeddings [classes, dim] and the number of examples [classes] of each class in a batch."""
    member = (batch.y.unsqueeze(1) == torch.arange(classes, device=z.device)).to(z.dtype) * batch.weight.unsqueeze(1)
    return member.T @ z, member.sum(0)


def apart(a: Tensor, b: Tensor, distance: str) -> Tensor:
    """d(a, b) over the last dimension: [..., dim] and [..., dim] -> [...]."""
    if distance == "emd":
        return (histogram(a).cumsum(-1) - histogram(b).cumsum(-1)).abs().mean(-1)
    if distance == "l2":
        norm: Tensor = torch.linalg.vector_norm(a - b, dim=-1)  # unlike sqrt, its gradient at 0 is 0
        return norm
    if distance == "l1":
        return (a - b).abs().sum(-1)
    squared = (a - b).square()
    return squared.mean(-1) if distance == "mse" else squared.sum(-1)


def histogram(z: Tensor) -> Tensor:
    """An embedding as a distribution over its units: what is positive, scaled to sum 1 (nothing positive: even)."""
    mass = z.clamp(min=0) + 1e-3
    return mass / mass.sum(-1, keepdim=True)
