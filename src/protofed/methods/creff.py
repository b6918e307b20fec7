"""CReFF (Shang et al. 2022): the server retrains the head on features made up to give the clients' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from protofed.core import Method, Net, Nothing, Params, Prototypes, Scores, Site, Trained, Upload, Weights, average
from protofed.net import selected


class Server(NamedTuple):
    """FedAvg's model, the head retrained on federated features, and these features."""

    params: Params
    head: Params
    features: Tensor  # [classes, each, dim]


class Sent(NamedTuple):
    """What a client sends: its weights, and for each of its classes the mean gradient of the head it was sent."""

    params: Params
    gradients: Prototypes  # [classes, 1, classes x dim (+ classes)]


@dataclass(frozen=True)
class CReFF(Method[Server, Weights, Sent, Nothing]):
    """FedAvg whose server retrains the head on balanced features made to give the clients' gradients."""

    needs: ClassVar = "equal nets"

    each: Annotated[int, Ge(1)] = 100
    """Federated features per class."""
    match_steps: Annotated[int, Ge(0)] = 100
    """Steps a round in which the features are fitted to the clients' gradients."""
    match_lr: Annotated[float, Gt(0)] = 0.1
    """Its paper's; with few clients a round 0.01 is stabler (FedNH's runs)."""
    head_epochs: Annotated[int, Ge(0)] = 300
    """Epochs a round in which the head is retrained on the features."""
    head_batch: Annotated[int, Ge(0)] = 0
    """Features in a batch of theirs; 0: all, one step an epoch (its code has the clients' batches: many more steps)."""
    head_start: Literal["averaged", "new"] = "averaged"
    """What is retrained: the averaged head (its code), or a new one (as FedNH's authors put it)."""
    head_lr: Annotated[float, Gt(0)] = 0.01
    """Their learning rate."""

    def start(self, site: Site) -> Server:
        params = site.net.init(site.generator("init"))
        drawn = torch.randn(site.net.classes, self.each, site.net.dim, generator=site.generator("features"))
        return Server(params, {name: value.clone() for name, value in selected(params, "head.").items()}, drawn)

    def broadcast(self, server: Server, client: int) -> Weights:
        """The plain averaged model: the retrained head is for tests only."""
        return Weights(server.params)

    def receive(self, kept: Nothing, down: Weights) -> Params:
        return down.params

    def upload(self, trained: Trained[Weights, Nothing]) -> Sent:
        """With the model as it came, for each class of the client the mean gradient of the head."""
        z, y = trained.features(before=True)
        classes = trained.net.classes
        head = selected(trained.start, "head.")
        means = Prototypes.empty(classes, sum(value.numel() for value in trainable(trained.net, head).values()))
        for label in y.unique().tolist():
            own = z[y == label]
            means.mean[label, 0] = head_gradient(trained.net, head, own, torch.full((len(own),), label)).detach()
            means.support[label, 0] = len(own)
        return Sent(trained.params, means)

    def aggregate(self, site: Site, server: Server, uploads: Sequence[Upload[Sent]]) -> Server:
        """Average, fit the features to the mean gradients, retrain the head on them."""
        params = average([upload.message.params for upload in uploads], [upload.examples for upload in uploads])
        wanted = Prototypes.pool([upload.message.gradients for upload in uploads])
        sent = selected(server.params, "head.")  # the head that the clients' gradients are of
        features = self.matched(site.net, sent, server.features, wanted)
        fresh = params if self.head_start == "averaged" else site.net.init(site.generator("head"))
        head = self.retrained(site.net, selected(fresh, "head."), features, site.generator("head batches"))
        return Server(params, head, features)

    def matched(self, net: Net, head: Params, features: Tensor, wanted: Prototypes) -> Tensor:
        """Features [classes, each, dim] whose gradients point where the clients' do: 1 - cosine, class by class."""
        seen = wanted.support[:, 0].nonzero()[:, 0].tolist()
        with torch.enable_grad():
            moving = features.clone().requires_grad_()
            optimiser = torch.optim.SGD([moving], self.match_lr)
            for _ in range(self.match_steps if seen else 0):
                optimiser.zero_grad()
                apart = []
                for label in seen:
                    found = head_gradient(net, head, moving[label], torch.full((self.each,), label))
                    apart.append(1 - F.cosine_similarity(found, wanted.mean[label, 0], 0))
                torch.stack(apart).sum().backward()
                optimiser.step()
        return moving.detach()

    def retrained(self, net: Net, head: Params, features: Tensor, draw: torch.Generator) -> Params:
        """The head after training on the features, which are balanced."""
        x, y = features.flatten(0, 1), torch.arange(len(features)).repeat_interleave(self.each)
        with torch.enable_grad():
            own = {name: value.clone().requires_grad_() for name, value in trainable(net, head).items()}
            optimiser = torch.optim.SGD(list(own.values()), self.head_lr)
            for _ in range(self.head_epochs):
                order = torch.randperm(len(x), generator=draw) if self.head_batch else torch.arange(len(x))
                for rows in order.split(self.head_batch or len(x)):
                    optimiser.zero_grad()
                    F.cross_entropy(net.head({**head, **own}, x[rows]), y[rows]).backward()
                    optimiser.step()
        return {**head, **{name: value.detach() for name, value in own.items()}}

    def predict_global(self, net: Net, server: Server, x: Tensor) -> Scores:
        return {"head": net({**server.params, **server.head}, x)[1]}


def trainable(net: Net, head: Params) -> Params:
    """Those of a head's tensors that can move, in order."""
    return {name: head[name] for name in sorted(head) if net.trains(name, head[name])}


def head_gradient(net: Net, head: Params, z: Tensor, y: Tensor) -> Tensor:
    """The gradient [size of the head] of the mean cross-entropy of embeddings [n, dim] with labels [n]."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in trainable(net, head).items()}
        loss = F.cross_entropy(net.head({**head, **leaves}, z), y)
        return torch.cat(
            [grad.flatten() for grad in torch.autograd.grad(loss, list(leaves.values()), create_graph=True)]
        )
