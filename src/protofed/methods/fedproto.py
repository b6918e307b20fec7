"""FedProto (Tan et al., AAAI 2022): clients keep their models and share only the mean embedding of each class.

Equations and Algorithm 1 are those of the AAAI paper. Michieli & Ozay (2021) use the same name for another method,
which is `protomargin` here. Where the paper and the authors' code differ there is an option; the defaults follow the
authors' code.
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
    Needs,
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
from protofed.errors import UserError
from protofed.methods.parts.class_sums import class_sums, gathered_prototypes
from protofed.methods.parts.distances import Distance, distance
from protofed.methods.parts.pull_schedule import PullSchedule, first_pull, next_pull
from protofed.prototypes import Pooling


class Bank(NamedTuple):
    """The message in both directions."""

    prototypes: Prototypes


class BankWithHolders(NamedTuple):
    """The server's state: the global prototypes, and which classes each client has sent."""

    prototypes: Prototypes
    holds: Tensor  # [clients, classes]: 1: sent, 0: never sent, -1: the client has sent nothing yet


class KeptWithClasses(NamedTuple):
    """What a client keeps: its model, which classes it holds, and λ of its next round if λ changes."""

    params: Params
    classes: Tensor  # [classes], 0 or 1
    pull: dict[str, Tensor] = {}  # {"pull": []} with a schedule, otherwise {}


@dataclass(frozen=True)
class FedProto(Method[BankWithHolders, Bank, Bank, KeptWithClasses]):
    """Clients keep their models and share the mean embedding of each class."""

    needs: ClassVar[Needs] = "equal dim"

    pull: Annotated[float, Ge(0)] = 1.0
    """λ of Eq. (7): weight of the distance between embeddings and global prototypes; 0 is the method local."""
    pull_schedule: PullSchedule = "constant"
    """λ over a client's rounds: `constant`, `linear` (from 0 in ten rounds), `corollary` (at most half of Eq. 17)."""
    pooling: Pooling = "clients"
    """Eq. (6): `clients` (code: plain mean over holders), `examples` (appendix: by |D_ij|), `written` (literally)."""
    distance: Distance = "mse"
    """d of Eq. (8): `mse` (code: squared norm / dim), `squared` (appendix), `l2`, `l1`, `emd` (text); arXiv version 1:
    `cross_entropy`, `relu_l2`."""
    between: Literal["samples", "means"] = "samples"
    """What d compares with global prototypes: single `samples` (code), or the class `means` of the batch (Eq. 8)."""
    prototypes: Literal["gathered", "fresh"] = "gathered"
    """Eq. (3): `gathered` during the last epoch (code: with dropout), or in a `fresh` pass after training."""
    nearest: Literal["own", "all"] = "own"
    """Eq. (4): the nearest prototype among the client's `own` classes (code), or among `all`."""
    send: Literal["all", "own"] = "all"
    """The prototypes sent to a client: of `all` classes (code), or of its `own` classes (Algorithm 1, line 7)."""
    outputs: Literal["all", "own"] = "all"
    """The head's outputs: of `all` classes (code), or of the client's `own` classes (the others do not exist)."""
    initial_weights: Literal["same", "own"] = "own"
    """Initial weights: each client's `own` (code), or the `same` for all clients with equal nets (FedNH's runs)."""

    def start(self, site: Site) -> BankWithHolders:
        """Algorithm 1, server, line 1: no class has a prototype yet."""
        if self.send == "own" and self.nearest == "all":
            raise UserError(
                'method.nearest: got "all", but with method.send = "own" a client has no prototypes of other classes. '
                'Use method.send = "all", or method.nearest = "own".'
            )
        empty = Prototypes.empty(site.net.classes, site.net.dim)
        return BankWithHolders(empty, torch.full((site.clients, site.net.classes), -1.0))

    def broadcast(self, server: BankWithHolders, client: int) -> Bank:
        """Line 7: the prototypes of the client's classes, as far as the server knows them, or of all."""
        unknown = client >= len(server.holds)  # it joins after the run
        if self.send == "all" or unknown:
            return Bank(server.prototypes)
        return Bank(server.prototypes.of_classes(server.holds[client] != 0))

    def join(self, client: Client) -> KeptWithClasses:
        if self.outputs == "own" and not client.net.outputs:
            _check_head_bias(client.net)
        counts = client.data.class_counts(client.net.classes)
        params = client.fresh_params(same=self.initial_weights == "same")
        pull = first_pull(self.pull_schedule, self.pull, client.round)
        return KeptWithClasses(params, (counts > 0).float(), pull)

    def receive(self, kept: KeptWithClasses, down: Bank) -> Params:
        return kept.params

    def loss(self, net: Net, params: Params, batch: Batch, down: Bank, kept: KeptWithClasses) -> Loss:
        """Eq. (7): cross-entropy plus λ times the distance to the global prototypes of the samples' classes."""
        z, logits = self._embed_and_classify(net, params, batch.x, kept)
        matched = net.match(batch, z)
        sums, counts = class_sums(z, matched, net.classes)
        if self.between == "samples":
            target, seen = down.prototypes.lookup(matched.y)
            pull = weighted_mean(distance(z, target, self.distance) * seen, matched.weight)
        else:  # Eq. (8): a sum over the classes that are in the batch and have a global prototype
            local, known = Prototypes.from_sums(sums, counts), down.prototypes
            both = ((local.support > 0) & (known.support > 0)).to(z.dtype)
            pull = (distance(local.mean, known.mean, self.distance) * both).sum()
        observed = (sums, counts) if self.prototypes == "gathered" else ()
        weight = self.pull if self.pull_schedule == "constant" else kept.pull["pull"]
        return Loss(observed, supervised=cross_entropy(logits, batch), pull=weight * pull)

    def keep(self, trained: Trained[Bank, KeptWithClasses]) -> KeptWithClasses:
        pull = next_pull(self.pull_schedule, self.pull, trained, self.loss)
        return KeptWithClasses(trained.params, trained.kept.classes, pull)

    def upload(self, trained: Trained[Bank, KeptWithClasses]) -> Bank:
        """Eq. (3): the mean embedding of each class over the local set."""
        if self.prototypes == "gathered" and trained.observed:
            return Bank(gathered_prototypes(trained))
        return Bank(Prototypes.of(*trained.features(), classes=trained.net.classes))

    def aggregate(self, site: Site, server: BankWithHolders, uploads: Sequence[Upload[Bank]]) -> BankWithHolders:
        """Eq. (6); a class that no client sent in this round keeps its prototype."""
        sent, clients = [upload.message.prototypes for upload in uploads], [upload.client for upload in uploads]
        holds = server.holds.clone()
        holds[clients] = torch.stack([part.support[:, 0] > 0 for part in sent]).float().maximum(holds[clients])
        return BankWithHolders(Prototypes.pool(sent, self.pooling).or_else(server.prototypes), holds)

    def predict(self, net: Net, params: Params, x: Tensor, down: Bank, kept: KeptWithClasses) -> Scores:
        """By the head, and Eq. (4) by the nearest global prototype, in both readings if the client has them all."""
        z, logits = self._embed_and_classify(net, params, x, kept)
        among_all = -down.prototypes.distances(z)
        among_own = among_all.masked_fill(kept.classes == 0, -torch.inf)
        if self.send == "own":
            return {"head": logits, "prototype": among_own}
        if self.nearest == "own":
            return {"head": logits, "prototype": among_own, "prototype_all": among_all}
        return {"head": logits, "prototype": among_all, "prototype_own": among_own}

    def exportable_params(self, params: Params, kept: KeptWithClasses) -> Params:
        """With own outputs only, the bias of every other output is so low that its class is never predicted."""
        biases = [name for name in params if name.startswith("head.") and name.endswith("bias")]
        if self.outputs == "all" or any(len(params[name]) != len(kept.classes) for name in biases):
            return params
        never = torch.finfo(torch.float32).min / 2
        return params | {name: params[name].masked_fill(kept.classes == 0, never) for name in biases}

    def _embed_and_classify(self, net: Net, params: Params, x: Tensor, kept: KeptWithClasses) -> tuple[Tensor, Tensor]:
        """Embeddings and logits; the logit of a class without an output is -inf, so that its probability is 0."""
        z, logits = net(params, x)
        return z, logits if self.outputs == "all" else logits.masked_fill(kept.classes == 0, -torch.inf)


def _check_head_bias(net: Net) -> None:
    """An error if an exported model could not leave out classes: its head must be one linear layer with a bias."""
    if net.linear_head.replace("weight", "bias") not in net.shapes:
        raise UserError(
            f'method.outputs: "own" needs a head with a bias, but that of {net.name} has none. Use net.bias = true, or '
            "a net of your own with one output per class of its client."
        )
