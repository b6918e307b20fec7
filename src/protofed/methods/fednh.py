"""FedNH (Dai et al., AAAI 2023): the head consists of prototypes, which start uniformly spread and are then smoothed.

Equations and Algorithm 1 are those of the AAAI paper. Where the paper and the authors' code differ there is an option;
the defaults follow the paper, except for s, which starts at 1 and is learned, as in its experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Gt, Le
from torch import Tensor

from protofed.core import (
    Batch,
    Loss,
    Method,
    Needs,
    Net,
    Nothing,
    Params,
    Phase,
    Prototypes,
    Scores,
    Site,
    Trained,
    Upload,
    Weights,
    average_uploads,
    cross_entropy,
)
from protofed.methods.parts.model_with_prototypes import ModelWithPrototypes
from protofed.methods.parts.shared_model import SharedModel
from protofed.methods.parts.sphere import orthonormal, uniform
from protofed.net import ADDED, selected
from protofed.prototypes import mean_over_clients

_SCALE = f"{ADDED}scale"


@dataclass(frozen=True)
class FedNH(SharedModel, Method[Weights, Weights, ModelWithPrototypes, Nothing]):
    """The head consists of prototypes that start far apart and slowly move to the clients' class means."""

    needs: ClassVar[Needs] = "equal nets"
    calls_head: ClassVar[bool] = True

    rho: Annotated[float, Gt(0), Le(1)] = 0.9
    """ρ of Eq. (4): the share of the old prototype that is kept per round; with 1, prototypes never move."""
    initial: Literal["uniform", "orthonormal"] = "uniform"
    """Initial prototypes: `uniform` solves Eq. (1), as far apart as possible; `orthonormal` is the authors' code."""
    scale: Annotated[float, Gt(0)] = 1.0
    """s of Eq. (2), or its initial value if it is learned. Code: 1 for its CNN, 20 for ResNet18. The paper names 30."""
    learn_scale: bool = True
    """Whether s is learned and averaged with the body (code and appendix A.2), or fixed."""
    weights: Literal["equal", "count"] = "equal"
    """α of Eq. (4): `equal`: 1/|S| (paper); `count`: by examples over holders, their mean scaled to length 1 (code)."""
    unit_means: bool = False
    """Whether class means are scaled to unit length before they are sent (code). Eq. (3) sends them as they are."""

    def start(self, site: Site) -> Weights:
        """Initialisation: a fresh body; the head's weight is W of Eq. (1), and its bias 0."""
        params = site.fresh_params()
        spread = uniform if self.initial == "uniform" else orthonormal
        head = {name: torch.zeros_like(value) for name, value in selected(params, "head.").items()}
        head[site.net.linear_head] = spread(site.net.classes, site.net.dim, site.seed).clone()
        return Weights(params | head | ({_SCALE: torch.tensor(self.scale)} if self.learn_scale else {}))

    def phases(self, epochs: float) -> tuple[Phase, ...]:
        """Algorithm 1, line 13: the head is fixed."""
        return (Phase(epochs, ("body.", ADDED)),)

    def logits(self, net: Net, params: Params, x: Tensor) -> Tensor:
        """Eq. (2): s times the cosine between the embedding and each prototype."""
        unit_z = self.compared_embeddings(net.embed(params, x))
        return params.get(_SCALE, self.scale) * unit_z @ params[net.linear_head].T

    def compared_embeddings(self, z: Tensor) -> Tensor:
        """Prototypes are compared with embeddings of unit length."""
        return F.normalize(z, dim=-1)

    def loss(self, net: Net, params: Params, batch: Batch, down: Weights, kept: Nothing) -> Loss:
        """Eq. (2)."""
        return Loss(supervised=cross_entropy(self.logits(net, params, batch.x), batch))

    def upload(self, trained: Trained[Weights, Nothing]) -> ModelWithPrototypes:
        """The body and s, and Eq. (3): the mean of the unit embeddings of each class the client has."""
        z, y = trained.features()
        class_means = Prototypes.of(self.compared_embeddings(z), y, classes=trained.net.classes)
        if self.unit_means:
            class_means = class_means._replace(mean=F.normalize(class_means.mean, dim=-1))
        return ModelWithPrototypes(selected(trained.params, "not head."), class_means)

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[ModelWithPrototypes]]) -> Weights:
        """Algorithm 1, lines 7 to 9."""
        old = server.params[site.net.linear_head]
        uploaded = [upload.message.prototypes for upload in uploads]
        if self.weights == "equal":  # a client without a class counts with 0, as in Eq. (3)
            class_means = mean_over_clients(uploaded)
        else:
            pooled = Prototypes.pool(uploaded, "examples")
            class_means = torch.where(pooled.support > 0, F.normalize(pooled.mean[:, 0].double(), dim=-1), old)
        new = F.normalize(self.rho * old.double() + (1 - self.rho) * class_means, dim=-1)  # Eq. (4), line 8
        body = average_uploads(uploads, equal=True)  # line 9
        return Weights(server.params | body | {site.net.linear_head: new.float()})

    def server_prototypes(self, net: Net, server: Weights) -> Prototypes:
        """The rows of the head."""
        rows = server.params[net.linear_head].unsqueeze(1)
        return Prototypes(rows, torch.ones(rows.shape[:2]))

    def predict(self, net: Net, params: Params, x: Tensor, down: Weights, kept: Nothing) -> Scores:
        return {"head": self.logits(net, params, x)}

    def predict_global(self, net: Net, server: Weights, x: Tensor) -> Scores:
        return {"head": self.logits(net, server.params, x)}
