"""FedROD (Chen & Chao 2022): a balanced head for everybody, and on top of it a head of each client's own."""

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
    Phase,
    Scores,
    Site,
    Trained,
    Upload,
    Weights,
    average,
    cross_entropy,
)
from protofed.errors import UserError
from protofed.net import selected

HYPER = "own.hyper"
ABSENT = -1e4
"""Added to the score of a class that a client has not: its share is 0."""


class Own(NamedTuple):
    """What a client keeps: its head ("own.weight", "own.bias"; none with a hyper-network), and its classes."""

    params: Params
    shares: Tensor  # [classes]: of its examples


@dataclass(frozen=True)
class FedROD(Method[Weights, Weights, Weights, Own]):
    """Clients share a body and a head that is trained as if classes were balanced; each adds a head of its own."""

    needs: ClassVar = "equal nets"

    personal: Literal["together", "after"] = "together"
    """When the own head trains: `together` with the rest, or `after` it with the body fixed (FedNH's runs)."""
    hyper: Annotated[int, Ge(0)] = 0
    """Units of a shared hyper-network that makes the own head from a client's class shares; 0: each trains its own."""

    def start(self, site: Site) -> Weights:
        params = site.net.init(site.generator("init"))
        if self.hyper:
            classes, size = site.net.classes, site.net.classes * (site.net.dim + 1)
            draw = site.generator("hyper")
            params[f"{HYPER}1"] = torch.randn(self.hyper, classes, generator=draw) / classes**0.5
            params[f"{HYPER}2"] = torch.zeros(size, self.hyper)  # at first there is nothing on top of the shared head
        return Weights(params)

    def join(self, client: Client) -> Own:
        net, counts = client.net, torch.bincount(client.data.labels, minlength=client.net.classes).float()
        head = {"own.weight": torch.zeros(net.classes, net.dim), "own.bias": torch.zeros(net.classes)}
        return Own({} if self.hyper else head, counts / counts.sum().clamp(min=1))

    def receive(self, kept: Own, down: Weights) -> Params:
        return {**down.params, **kept.params}

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        if self.personal == "together":
            return (Phase(epochs),)
        return Phase(epochs, ("not own.",)), Phase(epochs, ("own.",))

    def own_head(self, params: Params, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Its weight [classes, dim] and bias [classes]."""
        if "own.weight" in params:
            return params["own.weight"], params["own.bias"]
        made = (params[f"{HYPER}2"] @ torch.relu(params[f"{HYPER}1"] @ shares)).reshape(len(shares), -1)
        return made[:, :-1], made[:, -1]

    def on_top(self, params: Params, z: Tensor, shares: Tensor) -> Tensor:
        """The own head's scores [n, classes]."""
        weight, bias = self.own_head(params, shares)
        return z @ weight.T + bias

    def loss(self, net: Net, params: Params, batch: Batch, down: Weights, kept: Own) -> Loss:
        """The shared head: balanced softmax. The own one: cross-entropy of both, with no way back into the rest."""
        z = net.embed(params, batch.x)
        logits = net.head(params, z)
        prior = torch.where(kept.shares > 0, kept.shares.clamp(min=1e-12).log(), ABSENT)
        both = logits.detach() + self.on_top(params, z.detach(), kept.shares)
        return Loss(balanced=cross_entropy(logits + prior, batch), personal=cross_entropy(both, batch))

    def keep(self, trained: Trained[Weights, Own]) -> Own:
        return Own({name: trained.params[name] for name in trained.kept.params}, trained.kept.shares)

    def upload(self, trained: Trained[Weights, Own]) -> Weights:
        private = trained.kept.params
        return Weights({name: value for name, value in trained.params.items() if name not in private})

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        return Weights(average([upload.message.params for upload in uploads], [upload.examples for upload in uploads]))

    def single(self, params: Params, kept: Own) -> Params:
        """The own head is added to the shared one, if that is one dense layer with a bias."""
        weight, bias = self.own_head(params, kept.shares)
        head = selected(params, "head.")
        if sorted(value.shape for value in head.values()) != sorted((weight.shape, bias.shape)):
            raise UserError("method fedrod: a head that is not one dense layer with a bias cannot be exported.")
        return {**params, **{name: value + (weight if value.dim() == 2 else bias) for name, value in head.items()}}

    def predict(self, net: Net, params: Params, x: Tensor, down: Weights, kept: Own) -> Scores:
        z = net.embed(params, x)
        return {"head": net.head(params, z) + self.on_top(params, z, kept.shares)}

    def predict_global(self, net: Net, server: Weights, x: Tensor) -> Scores:
        return {"head": net(selected(server.params, "not own."), x)[1]}
