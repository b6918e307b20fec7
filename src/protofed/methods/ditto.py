"""Ditto (Li et al. 2021): beside FedAvg's model every client trains one of its own, drawn to the shared one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge

from protofed.core import (
    Batch,
    Client,
    Loss,
    Method,
    Net,
    Params,
    Private,
    Scores,
    Site,
    Trained,
    Upload,
    Weights,
    average,
    cross_entropy,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ditto(Method[Weights, Weights, Weights, Private]):
    """FedAvg, and for every client a model of its own that is drawn to the shared one."""

    needs: ClassVar = "equal nets"

    pull: Annotated[float, Ge(0)] = 0.75
    """λ: how strongly the personal model is drawn to the shared one; 0 is Local."""

    def start(self, site: Site) -> Weights:
        return Weights(site.net.init(site.generator("init")))

    def join(self, client: Client) -> Private:
        return Private(client.params)

    def receive(self, kept: Private, down: Weights) -> Params:
        """Both models: the shared one, and the client's own as "own.*"."""
        return {**down.params, **{f"own.{name}": value for name, value in kept.params.items()}}

    def loss(self, net: Net, params: Params, batch: Batch, down: Weights, kept: Private) -> Loss:
        """The shared model's cross-entropy, and its Eq. (Ditto): the own one's plus λ/2 ||v - w_t||^2."""
        own = owned(params)
        moving = [name for name in sorted(own) if net.trains(name, own[name])]
        near = torch.stack([(own[name] - down.params[name]).square().sum() for name in moving]).sum()
        return Loss(
            personal=cross_entropy(net(own, batch.x)[1], batch),
            near=self.pull / 2 * near,
            supervised=cross_entropy(net(params, batch.x)[1], batch),
        )

    def keep(self, trained: Trained[Weights, Private]) -> Private:
        return Private(owned(trained.params))

    def upload(self, trained: Trained[Weights, Private]) -> Weights:
        return Weights({name: value for name, value in trained.params.items() if not name.startswith("own.")})

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        return Weights(average([upload.message.params for upload in uploads], [upload.examples for upload in uploads]))

    def single(self, params: Params, kept: Private) -> Params:
        return owned(params)

    def predict(self, net: Net, params: Params, x: Tensor, down: Weights, kept: Private) -> Scores:
        return {"head": net(owned(params), x)[1]}

    def predict_global(self, net: Net, server: Weights, x: Tensor) -> Scores:
        return {"head": net(server.params, x)[1]}


def owned(params: Params) -> Params:
    """The personal model."""
    return {name.removeprefix("own."): value for name, value in params.items() if name.startswith("own.")}
