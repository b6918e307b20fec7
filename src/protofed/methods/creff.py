"""CReFF (Shang et al. 2022): the server retrains the head on features that reproduce the clients' gradients.

Where a choice has to be made, the defaults follow its authors' public code.
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
)
from protofed.errors import UserError
from protofed.methods.parts.shared_model import SharedModel
from protofed.net import selected


class RetrainingServer(NamedTuple):
    """The server's state: FedAvg's model, the head retrained on federated features, and these features."""

    params: Params
    head: Params
    features: Tensor  # [classes, each, dim]


class ModelAndRetrainedHead(NamedTuple):
    """What a client is sent: FedAvg's model, which it trains, and the head at which it computes gradients."""

    params: Params
    head: Params


class GradientUpload(NamedTuple):
    """What a client sends: its weights, and for each class that it has the mean gradient of the retrained head."""

    params: Params
    gradients: Prototypes  # [classes, 1, size of the head]


@dataclass(frozen=True)
class CReFF(SharedModel, Method[RetrainingServer, ModelAndRetrainedHead, GradientUpload, Nothing]):
    """FedAvg whose server retrains the head on balanced features that reproduce the clients' gradients."""

    needs: ClassVar[Needs] = "equal nets"
    calls_head: ClassVar[bool] = True

    weights: Literal["size", "equal"] = "size"
    """`size`: client i counts |D_i| / N in the average of the models. `equal`: all clients count the same (FedNH)."""
    each: Annotated[int, Ge(1)] = 100
    """Federated features per class."""
    match_steps: Annotated[int, Ge(0)] = 100
    """Steps per round in which the features are fitted to the clients' gradients."""
    match_lr: Annotated[float, Gt(0)] = 0.1
    """Learning rate of these steps. With few clients per round 0.01 is more stable (FedNH's runs)."""
    head_epochs: Annotated[int, Ge(0)] = 300
    """Epochs per round in which the head is retrained on the features."""
    head_batch: Annotated[int, Ge(0)] = 32
    """Features per batch of the retraining (public code: the clients' batch size). 0: all, one step per epoch."""
    head_start: Literal["new", "averaged"] = "new"
    """The head that is retrained: a `new` one in every round (public code), or FedAvg's, the `averaged` one."""
    head_lr: Annotated[float, Gt(0)] = 0.01
    """Learning rate of the retraining."""

    def start(self, site: Site) -> RetrainingServer:
        params = site.fresh_params()
        if not _trainable_head(site.net, selected(params, "head.")):
            raise UserError(f"creff retrains the head, but net {site.net.name} has none that trains. Use fedavg.")
        features = torch.randn(site.net.classes, self.each, site.net.dim, generator=site.generator("features"))
        head = {name: value.clone() for name, value in selected(params, "head.").items()}
        return RetrainingServer(params, head, features)

    def broadcast(self, server: RetrainingServer, client: int) -> ModelAndRetrainedHead:
        """FedAvg's model and the retrained head; before the first retraining, that is the initial head."""
        return ModelAndRetrainedHead(server.params, server.head)

    def upload(self, trained: Trained[ModelAndRetrainedHead, Nothing]) -> GradientUpload:
        """For each class of the client the mean gradient of the retrained head, on the body that it was sent."""
        z, y = trained.features(before=True)
        head = trained.down.head
        size = sum(value.numel() for value in _trainable_head(trained.net, head).values())
        gradients = Prototypes.empty(trained.net.classes, size)
        for label in y.unique().tolist():
            of_class = y == label
            gradients.mean[label, 0] = head_gradient(trained.net, head, z[of_class], y[of_class]).detach()
            gradients.support[label, 0] = 1  # only that it has the class: the number of its examples is not sent
        return GradientUpload(trained.params, gradients)

    def aggregate(
        self, site: Site, server: RetrainingServer, uploads: Sequence[Upload[GradientUpload]]
    ) -> RetrainingServer:
        """Average the weights, fit the features to the mean gradients, and retrain the head on the features."""
        params = average_uploads(uploads, equal=self.weights == "equal")
        wanted = Prototypes.pool([upload.message.gradients for upload in uploads])  # each client counts the same
        features = self.match_features(site.net, server.head, server.features, wanted)
        start = params if self.head_start == "averaged" else site.net.init(site.generator("head"))
        head = self.retrain_head(site.net, selected(start, "head."), features, site.generator("head batches"))
        return RetrainingServer(params, head, features)

    def match_features(self, net: Net, head: Params, features: Tensor, wanted: Prototypes) -> Tensor:
        """Features [classes, each, dim] after steps on the sum over classes of the distance to the wanted gradients."""
        seen = wanted.support[:, 0].nonzero()[:, 0]
        labels = seen.unsqueeze(1).expand(-1, self.each)
        shapes = [value.shape for value in _trainable_head(net, head).values()]

        def distance(features: Tensor) -> Tensor:
            gradients = torch.vmap(lambda z, y: head_gradient(net, head, z, y))(features[seen], labels)
            return row_distance(gradients, wanted.mean[seen, 0], shapes)

        for _ in range(self.match_steps if len(seen) else 0):
            features = features - self.match_lr * torch.func.grad(distance)(features)
        return features

    def retrain_head(self, net: Net, head: Params, features: Tensor, draw: torch.Generator) -> Params:
        """The head after SGD on the features, which are balanced."""
        x, y = features.flatten(0, 1), torch.arange(len(features)).repeat_interleave(self.each)
        batch = self.head_batch or len(x)
        with torch.enable_grad():
            moving = {name: value.clone().requires_grad_() for name, value in _trainable_head(net, head).items()}
            weights = list(moving.values())
            for _ in range(self.head_epochs):
                order = torch.randperm(len(x), generator=draw) if self.head_batch else torch.arange(len(x))
                for batch_x, batch_y in zip(x[order].split(batch), y[order].split(batch), strict=True):
                    loss = F.cross_entropy(net.head({**head, **moving}, batch_x), batch_y)
                    slopes = torch.autograd.grad(loss, weights)
                    with torch.no_grad():
                        for weight, slope in zip(weights, slopes, strict=True):
                            weight.sub_(slope, alpha=self.head_lr)
        return {**head, **{name: value.detach() for name, value in moving.items()}}

    def predict_global(self, net: Net, server: RetrainingServer, x: Tensor) -> Scores:
        return {"head": net({**server.params, **server.head}, x)[1]}

    def model_state(self, server: RetrainingServer) -> RetrainingServer:
        """Without the features."""
        return server._replace(features=server.features[:, :0])


def _trainable_head(net: Net, head: Params) -> Params:
    """The tensors of a head that train, sorted by name."""
    return {name: head[name] for name in sorted(head) if net.trains(name, head[name])}


def head_gradient(net: Net, head: Params, z: Tensor, y: Tensor) -> Tensor:
    """The gradient [size of the head] of the mean cross-entropy of embeddings [n, dim] with labels [n]."""

    def loss(weights: Params) -> Tensor:
        return F.cross_entropy(net.head({**head, **weights}, z), y)

    gradients = torch.func.grad(loss)(_trainable_head(net, head))
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


def row_distance(gradients: Tensor, wanted: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
    """The sum of 1 - cosine over the rows of gradients [..., size of the head], for tensors of these shapes.

    A row belongs to one output unit of a layer; a bias, like any tensor of one dimension, is one row. As in the public
    code 1e-6 is added to the product of the lengths, so that rows with very small gradients count little.
    """
    sizes = [shape.numel() for shape in shapes]
    distances = []
    for shape, got, aim in zip(shapes, gradients.split(sizes, -1), wanted.split(sizes, -1), strict=True):
        rows = (shape[0] if len(shape) > 1 else 1, -1)
        got, aim = got.unflatten(-1, rows), aim.unflatten(-1, rows)
        cosine = (got * aim).sum(-1) / (got.norm(dim=-1) * aim.norm(dim=-1) + 1e-6)
        distances.append((1 - cosine).sum())
    return torch.stack(distances).sum()
