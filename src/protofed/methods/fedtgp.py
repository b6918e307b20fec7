"""FedTGP (Zhang et al., AAAI 2024): FedProto whose global prototypes are trained on the server to keep apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from protofed.core import Batch, Client, Loss, Method, Net, Params, Prototypes, Scores, Site, Trained, Upload
from protofed.methods.fedproto import Bank, FedProto, Own


class Trainable(NamedTuple):
    """The server's state: the global prototypes, and what makes them: a vector per class and two dense layers."""

    bank: Bank
    maker: Params


@dataclass(frozen=True)
class FedTGP(Method[Trainable, Bank, Bank, Own]):
    """FedProto with global prototypes that the server trains: near to the clients', and classes apart by a margin."""

    needs: ClassVar = "equal dim"

    pull: Annotated[float, Ge(0)] = 10.0
    """λ: how strongly embeddings are drawn to the global prototypes."""
    margin: Annotated[float, Gt(0)] = 100.0
    """τ: the largest margin; below it, it is as wide as the classes are apart."""
    epochs: Annotated[int, Ge(0)] = 100
    """Epochs a round in which the server trains, over what the clients sent."""
    lr: Annotated[float, Gt(0)] = 0.01
    """Their learning rate."""
    batch: Annotated[int, Ge(1)] = 10
    """Clients' prototypes in a batch of theirs."""

    @property
    def client(self) -> FedProto:
        """What a client does is FedProto's, with prototypes from a pass after training."""
        return FedProto(pull=self.pull, prototypes="fresh", nearest="all")

    def start(self, site: Site) -> Trainable:
        dim, draw = site.net.dim, site.generator("maker")
        maker = {"class": torch.randn(site.net.classes, dim, generator=draw)}
        for name, size in (("one", (dim, dim)), ("two", (dim, dim)), ("bias one", (dim,)), ("bias two", (dim,))):
            maker[name] = (2 * torch.rand(size, generator=draw) - 1) / dim**0.5  # as torch starts a dense layer
        return Trainable(self.client.start(site), maker)

    def broadcast(self, server: Trainable, client: int) -> Bank:
        return server.bank

    def join(self, client: Client) -> Own:
        return self.client.join(client)

    def receive(self, kept: Own, down: Bank) -> Params:
        return kept.params

    def loss(self, net: Net, params: Params, batch: Batch, down: Bank, kept: Own) -> Loss:
        return self.client.loss(net, params, batch, down, kept)

    def keep(self, trained: Trained[Bank, Own]) -> Own:
        return self.client.keep(trained)

    def upload(self, trained: Trained[Bank, Own]) -> Bank:
        return self.client.upload(trained)

    def aggregate(self, site: Site, server: Trainable, uploads: Sequence[Upload[Bank]]) -> Trainable:
        """Train the maker on all prototypes that came; classes that nobody has sent yet have none."""
        sent = [upload.message.prototypes for upload in uploads]
        client, label = torch.stack([one.support[:, 0] for one in sent]).nonzero(as_tuple=True)
        points = torch.stack([one.mean[:, 0] for one in sent])[client, label]
        pooled = Prototypes.pool(sent)
        margin = min(gap(pooled), self.margin)
        maker = self.trained(server.maker, points, label, margin, site.generator("batches"))
        seen = pooled.or_else(server.bank.prototypes).support
        mean = torch.where(seen > 0, made(maker), 0).unsqueeze(1)
        return Trainable(Bank(Prototypes(mean, seen)), maker)

    def trained(self, maker: Params, points: Tensor, label: Tensor, margin: float, draw: torch.Generator) -> Params:
        """Contrast with a margin: each point's own class counts as if it were that much farther away."""
        with torch.enable_grad():
            own = {name: value.clone().requires_grad_() for name, value in maker.items()}
            optimiser = torch.optim.SGD(list(own.values()), self.lr)
            for _ in range(self.epochs):
                for rows in torch.randperm(len(points), generator=draw).split(self.batch):
                    optimiser.zero_grad()
                    contrast(points[rows], label[rows], made(own), margin).backward()
                    optimiser.step()
        return {name: value.detach() for name, value in own.items()}

    def predict(self, net: Net, params: Params, x: Tensor, down: Bank, kept: Own) -> Scores:
        return self.client.predict(net, params, x, down, kept)


def made(maker: Params) -> Tensor:
    """The prototypes [classes, dim] that a maker gives."""
    hidden = torch.relu(maker["class"] @ maker["one"].T + maker["bias one"])
    return hidden @ maker["two"].T + maker["bias two"]


def contrast(points: Tensor, label: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """The mean over points [n, dim] of -log softmax of minus the distances, the own class's widened by the margin."""
    apart = torch.cdist(points, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    return F.cross_entropy(-(apart + margin * F.one_hot(label, len(prototypes))), label)


def gap(centres: Prototypes) -> float:
    """How far the class that is most apart is from its nearest other class; 0 with fewer than two classes."""
    known = centres.mean[centres.support[:, 0] > 0, 0]
    if len(known) < 2:
        return 0.0
    apart = torch.cdist(known, known).fill_diagonal_(torch.inf)
    return float(apart.min(1).values.max())
