"""FedTGP (Zhang et al., AAAI 2024): FedProto with global prototypes that the server trains to keep a margin.

The names follow the paper's "adaptive-margin-enhanced contrastive learning": the server trains a vector per class and
a small network F that turns the vectors into prototypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from protofed.averages import current_rule
from protofed.core import Batch, Client, Loss, Method, Needs, Net, Params, Prototypes, Scores, Site, Trained, Upload
from protofed.methods.fedproto import Bank, FedProto, KeptWithClasses


class TrainableBank(NamedTuple):
    """The server's state: the global prototypes, and the parameters that they are computed from."""

    bank: Bank
    generator: Params  # "vectors" [classes, dim], and the two dense layers of F: "weight1", "bias1", "weight2", "bias2"


@dataclass(frozen=True)
class FedTGP(Method[TrainableBank, Bank, Bank, KeptWithClasses]):
    """FedProto with global prototypes that the server trains: near the clients' ones, and classes apart by a margin."""

    needs: ClassVar[Needs] = "equal dim"

    pull: Annotated[float, Ge(0)] = 10.0
    """λ: weight of the distance between embeddings and global prototypes."""
    margin: Annotated[float, Gt(0)] = 100.0
    """τ: upper bound of the margin. The margin is the largest nearest-neighbour distance of class means, at most τ."""
    epochs: Annotated[int, Ge(0)] = 100
    """Epochs per round of the server's training on the uploaded prototypes."""
    lr: Annotated[float, Gt(0)] = 0.01
    """Learning rate of the server's training."""
    batch: Annotated[int, Ge(1)] = 10
    """Uploaded prototypes per batch of the server's training."""

    @property
    def client(self) -> FedProto:
        """Clients do what FedProto's clients do, with prototypes from a pass after training."""
        return FedProto(pull=self.pull, prototypes="fresh", nearest="all")

    def start(self, site: Site) -> TrainableBank:
        dim, draw = site.net.dim, site.generator("maker")
        generator = {"vectors": torch.randn(site.net.classes, dim, generator=draw)}
        for name, size in (("weight1", (dim, dim)), ("weight2", (dim, dim)), ("bias1", (dim,)), ("bias2", (dim,))):
            generator[name] = (2 * torch.rand(size, generator=draw) - 1) / dim**0.5  # torch's init of a dense layer
        return TrainableBank(Bank(Prototypes.empty(site.net.classes, dim)), generator)

    def broadcast(self, server: TrainableBank, client: int) -> Bank:
        return server.bank

    def join(self, client: Client) -> KeptWithClasses:
        return self.client.join(client)

    def receive(self, kept: KeptWithClasses, down: Bank) -> Params:
        return kept.params

    def loss(self, net: Net, params: Params, batch: Batch, down: Bank, kept: KeptWithClasses) -> Loss:
        return self.client.loss(net, params, batch, down, kept)

    def keep(self, trained: Trained[Bank, KeptWithClasses]) -> KeptWithClasses:
        return self.client.keep(trained)

    def upload(self, trained: Trained[Bank, KeptWithClasses]) -> Bank:
        return self.client.upload(trained)

    def aggregate(self, site: Site, server: TrainableBank, uploads: Sequence[Upload[Bank]]) -> TrainableBank:
        """Train F and the vectors on all uploaded prototypes; a class that was never uploaded has no prototype.

        A robust rule combines the prototypes of a class first: else an attacker's would be points like all others.
        """
        uploaded = [upload.message.prototypes for upload in uploads]
        class_means, rule = Prototypes.pool(uploaded), current_rule()
        trained_on = [class_means] if rule and rule.changes_prototypes else uploaded
        client, label = torch.stack([prototypes.support[:, 0] for prototypes in trained_on]).nonzero(as_tuple=True)
        points = torch.stack([prototypes.mean[:, 0] for prototypes in trained_on])[client, label]
        margin = min(largest_gap(class_means), self.margin)  # δ(t)
        generator = self.train_generator(server.generator, points, label, margin, site.generator("batches"))
        support = class_means.or_else(server.bank.prototypes).support
        mean = torch.where(support > 0, generated_prototypes(generator), 0).unsqueeze(1)
        return TrainableBank(Bank(Prototypes(mean, support)), generator)

    def train_generator(
        self, generator: Params, points: Tensor, label: Tensor, margin: float, draw: torch.Generator
    ) -> Params:
        """The parameters after SGD on `margin_loss`, from points [n, dim] with labels [n]."""
        with torch.enable_grad():
            params = {name: value.clone().requires_grad_() for name, value in generator.items()}
            optimiser = torch.optim.SGD(list(params.values()), self.lr)
            for _ in range(self.epochs):
                for rows in torch.randperm(len(points), generator=draw).split(self.batch):
                    optimiser.zero_grad()
                    margin_loss(points[rows], label[rows], generated_prototypes(params), margin).backward()
                    optimiser.step()
        return {name: value.detach() for name, value in params.items()}

    def predict(self, net: Net, params: Params, x: Tensor, down: Bank, kept: KeptWithClasses) -> Scores:
        return self.client.predict(net, params, x, down, kept)


def generated_prototypes(generator: Params) -> Tensor:
    """The global prototypes [classes, dim]: F of the class vectors."""
    hidden = torch.relu(generator["vectors"] @ generator["weight1"].T + generator["bias1"])
    return hidden @ generator["weight2"].T + generator["bias2"]


def margin_loss(points: Tensor, label: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """The mean over points [n, dim] of -log softmax(-distances), with `margin` added to the distance of their class."""
    distances = torch.cdist(points, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    return F.cross_entropy(-(distances + margin * F.one_hot(label, len(prototypes))), label)


def largest_gap(class_means: Prototypes) -> float:
    """The largest distance of a class mean to its nearest neighbour; 0 with fewer than two classes."""
    seen = class_means.mean[class_means.support[:, 0] > 0, 0]
    if len(seen) < 2:
        return 0.0
    distances = torch.cdist(seen, seen).fill_diagonal_(torch.inf)
    return float(distances.min(1).values.max())
