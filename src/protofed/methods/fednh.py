"""FedNH (Dai et al., AAAI 2023): the head is not trained but made of prototypes, uniform at first, then smoothed in.

Equations and Algorithm 1 are those of the AAAI paper. Where the paper and the authors' code differ there is an option;
the defaults are the paper, but for s, which starts at 1 and learns, as in its experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Gt, Le
from torch import Tensor, nn

from protofed.core import (
    Batch,
    Loss,
    Method,
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
    average,
    cross_entropy,
)
from protofed.errors import UserError
from protofed.methods.parts import sphere

SCALE = "own.scale"


class Sent(NamedTuple):
    """What a client sends: its body, the scale if it learns, and the mean embedding of each class it holds."""

    params: Params
    prototypes: Prototypes


@dataclass(frozen=True)
class FedNH(Method[Weights, Weights, Sent, Nothing]):
    """The head is a set of prototypes that start far apart and slowly take in the clients' class means."""

    needs: ClassVar = "equal nets"

    rho: Annotated[float, Gt(0), Le(1)] = 0.9
    """ρ of Eq. (4): how much of a prototype stays in a round; at 1 prototypes never move."""
    initial: Literal["uniform", "orthonormal"] = "uniform"
    """Where prototypes start: `uniform` solves Eq. (1), as far apart as possible; `orthonormal` is the code's."""
    scale: Annotated[float, Gt(0)] = 1.0
    """s of Eq. (2), or where it starts if it learns. The code: 1 for its CNN, 20 for ResNet18; the paper names 30."""
    learn_scale: bool = True
    """Does s learn, and is it averaged with the body (both the code and appendix A.2)? Else it is fixed."""
    weights: Literal["equal", "count"] = "equal"
    """α of Eq. (4): `equal`: 1/|S| of all clients in the round (paper); `count`: by examples, over holders (code)."""
    unit_means: bool = False
    """Are class means scaled to length 1 before they are sent (code)? Eq. (3) sends them as they are."""

    def start(self, site: Site) -> Weights:
        """Initialisation: a fresh body; the head's weight is W of Eq. (1)."""
        params = site.net.init(site.generator("init"))
        heads = [name for name in params if name.startswith("head.")]
        layers = [layer for layer in site.net.module["head"].modules() if not list(layer.children())]
        others = [layer for layer in layers if not isinstance(layer, nn.Dropout | nn.Identity)]
        if len(others) != 1 or not isinstance(others[0], nn.Linear):
            told = ", ".join(type(layer).__name__ for layer in others) or "none"
            raise UserError(
                f"fednh puts prototypes in the place of a head that is one linear layer; {site.net.name} has {told}. "
                "Use another net."
            )
        spread = sphere.uniform if self.initial == "uniform" else sphere.orthonormal
        fresh = {name: torch.zeros_like(params[name]) for name in heads}  # a bias stays 0
        fresh[head_of(params)] = spread(site.net.classes, site.net.dim, site.seed).clone()
        return Weights(params | fresh | ({SCALE: torch.tensor(self.scale)} if self.learn_scale else {}))

    def receive(self, kept: Nothing, down: Weights) -> Params:
        """Algorithm 1, line 12."""
        return down.params

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Algorithm 1, line 13: the head is fixed."""
        return (Phase(epochs, ("body.", "own.")),)

    def logits(self, net: Net, params: Params, x: Tensor) -> Tensor:
        """Eq. (2): s times the cosine between the embedding and each prototype."""
        return params.get(SCALE, self.scale) * F.normalize(net.embed(params, x), dim=-1) @ params[head_of(params)].T

    def loss(self, net: Net, params: Params, batch: Batch, down: Weights, kept: Nothing) -> Loss:
        """Eq. (2)."""
        return Loss(supervised=cross_entropy(self.logits(net, params, batch.x), batch))

    def upload(self, trained: Trained[Weights, Nothing]) -> Sent:
        """Eq. (3): the mean of the normalised embeddings of each class the client has."""
        z, y = trained.features()
        means = Prototypes.of(F.normalize(z, dim=-1), y, classes=trained.net.classes)
        if self.unit_means:
            means = means._replace(mean=F.normalize(means.mean, dim=-1))
        return Sent({name: value for name, value in trained.params.items() if not name.startswith("head.")}, means)

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Sent]]) -> Weights:
        """Algorithm 1, lines 7 to 9."""
        name = head_of(server.params)
        before = server.params[name]
        if self.weights == "equal":  # a client without a class counts with 0, as in Eq. (3)
            means = torch.stack([upload.message.prototypes.mean[:, 0] for upload in uploads]).double().mean(0)
        else:
            pooled = Prototypes.pool([upload.message.prototypes for upload in uploads], "examples")
            means = torch.where(pooled.support > 0, pooled.mean[:, 0], before).double()
        after = F.normalize(self.rho * before.double() + (1 - self.rho) * means, dim=-1)  # Eq. (4), line 8
        body = average([upload.message.params for upload in uploads], [1] * len(uploads))  # line 9
        return Weights(server.params | body | {name: after.float()})

    def known(self, server: Weights) -> Prototypes:
        """The head's rows."""
        rows = server.params[head_of(server.params)].unsqueeze(1)
        return Prototypes(rows, torch.ones(rows.shape[:2]))

    def predict(self, net: Net, params: Params, x: Tensor, down: Weights, kept: Nothing) -> Scores:
        return {"head": self.logits(net, params, x)}

    def predict_global(self, net: Net, server: Weights, x: Tensor) -> Scores:
        return {"head": self.logits(net, server.params, x)}


def head_of(params: Params) -> str:
    """The name of the head's weight [classes, dim], which holds the prototypes."""
    return next(name for name in sorted(params) if name.startswith("head.") and params[name].dim() == 2)
