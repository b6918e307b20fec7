"""CReFF (Shang et al. 2022): the server retrains the head on features that reproduce the clients' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from protofed.core import (
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
    Weights,
    average_uploads,
)
from protofed.methods.parts.shared_model import SharedModel
from protofed.net import selected


class RetrainingServer(NamedTuple):
    """The server's state: FedAvg's model, the head retrained on federated features, and these features."""

    params: Params
    head: Params
    features: Tensor  # [classes, each, dim]


class GradientUpload(NamedTuple):
    """What a client sends: its weights, and per class that it holds the mean gradient of the head that it was sent."""

    params: Params
    gradients: Prototypes  # [classes, 1, classes x dim (+ classes)]


@dataclass(frozen=True)
class CReFF(SharedModel, Method[RetrainingServer, Weights, GradientUpload, Nothing]):
    """FedAvg whose server retrains the head on balanced features that reproduce the clients' gradients."""

    needs: ClassVar[Needs] = "equal nets"

    each: Annotated[int, Ge(1)] = 100
    """Federated features per class."""
    match_steps: Annotated[int, Ge(0)] = 100
    """Steps per round in which the features are fitted to the clients' gradients."""
    match_lr: Annotated[float, Gt(0)] = 0.1
    """Learning rate of these steps (its paper). With few clients per round 0.01 is more stable (FedNH's runs)."""
    head_epochs: Annotated[int, Ge(0)] = 300
    """Epochs per round in which the head is retrained on the features."""
    head_batch: Annotated[int, Ge(0)] = 0
    """Features per batch of the retraining; 0: all, one step per epoch (public code: the clients' batch size)."""
    head_start: Literal["averaged", "new"] = "averaged"
    """The head that is retrained: the `averaged` one (our choice), or a `new` one per round (public code, FedNH)."""
    head_lr: Annotated[float, Gt(0)] = 0.01
    """Learning rate of the retraining."""

    def start(self, site: Site) -> RetrainingServer:
        params = site.fresh_params()
        features = torch.randn(site.net.classes, self.each, site.net.dim, generator=site.generator("features"))
        head = {name: value.clone() for name, value in selected(params, "head.").items()}
        return RetrainingServer(params, head, features)

    def broadcast(self, server: RetrainingServer, client: int) -> Weights:
        """The averaged model: the retrained head is used for tests only."""
        return Weights(server.params)

    def upload(self, trained: Trained[Weights, Nothing]) -> GradientUpload:
        """Per class of the client the mean gradient of the head, at the model that it was sent."""
        z, y = trained.features(before=True)
        head = selected(trained.start, "head.")
        size = sum(value.numel() for value in _trainable_head(trained.net, head).values())
        gradients = Prototypes.empty(trained.net.classes, size)
        for label in y.unique().tolist():
            of_class = y == label
            gradients.mean[label, 0] = head_gradient(trained.net, head, z[of_class], y[of_class]).detach()
            gradients.support[label, 0] = int(of_class.sum())
        return GradientUpload(trained.params, gradients)

    def aggregate(
        self, site: Site, server: RetrainingServer, uploads: Sequence[Upload[GradientUpload]]
    ) -> RetrainingServer:
        """Average the weights, fit the features to the mean gradients, and retrain the head on the features."""
        params = average_uploads(uploads)
        wanted = Prototypes.pool([upload.message.gradients for upload in uploads])
        sent_head = selected(server.params, "head.")  # the clients' gradients are those of this head
        features = self.match_features(site.net, sent_head, server.features, wanted)
        start = params if self.head_start == "averaged" else site.net.init(site.generator("head"))
        head = self.retrain_head(site.net, selected(start, "head."), features, site.generator("head batches"))
        return RetrainingServer(params, head, features)

    def match_features(self, net: Net, head: Params, features: Tensor, wanted: Prototypes) -> Tensor:
        """Features [classes, each, dim] after steps on the sum over classes of 1 - cosine(their gradient, wanted)."""
        seen = wanted.support[:, 0].nonzero()[:, 0].tolist()
        with torch.enable_grad():
            features = features.clone().requires_grad_()
            optimiser = torch.optim.SGD([features], self.match_lr)
            for _ in range(self.match_steps if seen else 0):
                optimiser.zero_grad()
                losses = []
                for label in seen:
                    gradient = head_gradient(net, head, features[label], torch.full((self.each,), label))
                    losses.append(1 - F.cosine_similarity(gradient, wanted.mean[label, 0], 0))
                torch.stack(losses).sum().backward()
                optimiser.step()
        return features.detach()

    def retrain_head(self, net: Net, head: Params, features: Tensor, draw: torch.Generator) -> Params:
        """The head after SGD on the features, which are balanced."""
        x, y = features.flatten(0, 1), torch.arange(len(features)).repeat_interleave(self.each)
        with torch.enable_grad():
            moving = {name: value.clone().requires_grad_() for name, value in _trainable_head(net, head).items()}
            optimiser = torch.optim.SGD(list(moving.values()), self.head_lr)
            for _ in range(self.head_epochs):
                order = torch.randperm(len(x), generator=draw) if self.head_batch else torch.arange(len(x))
                for rows in order.split(self.head_batch or len(x)):
                    optimiser.zero_grad()
                    F.cross_entropy(net.head({**head, **moving}, x[rows]), y[rows]).backward()
                    optimiser.step()
        return {**head, **{name: value.detach() for name, value in moving.items()}}

    def predict_global(self, net: Net, server: RetrainingServer, x: Tensor) -> Scores:
        return {"head": net({**server.params, **server.head}, x)[1]}


def _trainable_head(net: Net, head: Params) -> Params:
    """The tensors of a head that train, sorted by name."""
    return {name: head[name] for name in sorted(head) if net.trains(name, head[name])}


def head_gradient(net: Net, head: Params, z: Tensor, y: Tensor) -> Tensor:
    """The gradient [size of the head] of the mean cross-entropy of embeddings [n, dim] with labels [n]."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in _trainable_head(net, head).items()}
        loss = F.cross_entropy(net.head({**head, **leaves}, z), y)
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        return torch.cat([gradient.flatten() for gradient in gradients])
