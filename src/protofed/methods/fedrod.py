"""FedROD (Chen & Chao 2022): a balanced head that all clients share, and on top of it a personal head per client."""

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
    Phase,
    Scores,
    Site,
    Trained,
    Upload,
    Weights,
    average_uploads,
    cross_entropy,
)
from protofed.errors import UserError
from protofed.net import ADDED, selected, without_added

WEIGHT, BIAS, HYPER1, HYPER2 = (f"{ADDED}{name}" for name in ("weight", "bias", "hyper1", "hyper2"))
"""The personal head, and the two layers of the hyper-network that can compute it."""
_ABSENT = -1e4
"""Added to the score of a class that a client does not hold, for the logarithm of its share 0."""


class KeptHead(NamedTuple):
    """What a client keeps: its personal head (no parameters with a hyper-network), and its class shares."""

    params: Params
    shares: Tensor  # [classes]: share of each class in the client's examples


@dataclass(frozen=True)
class FedROD(Method[Weights, Weights, Weights, KeptHead]):
    """Clients share a body and a head that is trained as if classes were balanced; each adds a personal head."""

    needs: ClassVar[Needs] = "equal nets"
    sums_uploads: ClassVar[bool] = True
    calls_head: ClassVar[bool] = True

    personal: Literal["together", "after"] = "together"
    """When the personal head trains: `together` with the rest, or `after` it with the body fixed (FedNH's runs)."""
    hyper: Annotated[int, Ge(0)] = 0
    """Units of a shared hyper-network that computes the personal head from the class shares; 0: no hyper-network."""
    weights: Literal["size", "equal"] = "size"
    """Weights of clients in the average: by their training examples (`size`), or `equal`."""

    def start(self, site: Site) -> Weights:
        params = site.fresh_params()
        if self.hyper:
            classes, head_size = site.net.classes, site.net.classes * (site.net.dim + _has_bias(site.net))
            params[HYPER1] = torch.randn(self.hyper, classes, generator=site.generator("hyper")) / classes**0.5
            params[HYPER2] = torch.zeros(head_size, self.hyper)  # at first, personal heads add nothing
        return Weights(params)

    def join(self, client: Client) -> KeptHead:
        net, counts = client.net, client.data.class_counts(client.net.classes).float()
        head = {} if self.hyper else {WEIGHT: torch.zeros(net.classes, net.dim)}
        if head and _has_bias(net):
            head[BIAS] = torch.zeros(net.classes)
        return KeptHead(head, counts / counts.sum().clamp(min=1))

    def receive(self, kept: KeptHead, down: Weights) -> Params:
        return {**down.params, **kept.params}

    def phases(self, epochs: float) -> tuple[Phase, ...]:
        if self.personal == "together":
            return (Phase(epochs, clipped_separately=(ADDED,)),)
        return Phase(epochs, (f"not {ADDED}",)), Phase(epochs, (ADDED,))

    def personal_head(self, params: Params, dim: int, shares: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weight [classes, dim] of the personal head, and its bias [classes] if it has one."""
        if WEIGHT in params:
            return params[WEIGHT], params.get(BIAS)
        computed = (params[HYPER2] @ torch.relu(params[HYPER1] @ shares)).reshape(len(shares), -1)
        return computed[:, :dim], computed[:, dim] if computed.shape[1] > dim else None

    def personal_scores(self, params: Params, z: Tensor, shares: Tensor) -> Tensor:
        """The scores [n, classes] of the personal head."""
        weight, bias = self.personal_head(params, z.shape[-1], shares)
        return z @ weight.T if bias is None else z @ weight.T + bias

    def loss(self, net: Net, params: Params, batch: Batch, down: Weights, kept: KeptHead) -> Loss:
        """Shared head: balanced softmax. Personal head: cross-entropy of both, without a gradient to the rest."""
        z = net.embed(params, batch.x)
        logits = net.head(params, z)
        prior = torch.where(kept.shares > 0, kept.shares.clamp(min=1e-12).log(), _ABSENT)
        both = logits.detach() + self.personal_scores(params, z.detach(), kept.shares)
        return Loss(balanced=cross_entropy(logits + prior, batch), personal=cross_entropy(both, batch))

    def keep(self, trained: Trained[Weights, KeptHead]) -> KeptHead:
        return KeptHead({name: trained.params[name] for name in trained.kept.params}, trained.kept.shares)

    def upload(self, trained: Trained[Weights, KeptHead]) -> Weights:
        private = trained.kept.params
        return Weights({name: value for name, value in trained.params.items() if name not in private})

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        return Weights(average_uploads(uploads, equal=self.weights == "equal"))

    def exportable_params(self, params: Params, kept: KeptHead) -> Params:
        """The sum of both heads, which exists if the shared head is one dense layer."""
        head = selected(params, "head.")
        dim = next((value.shape[1] for value in head.values() if value.dim() == 2), 0)
        personal = {part.shape: part for part in self.personal_head(params, dim, kept.shares) if part is not None}
        if sorted(value.shape for value in head.values()) != sorted(personal):
            raise UserError("fedrod can only export a model whose head is one dense layer. Use such a net.")
        return {**params, **{name: value + personal[value.shape] for name, value in head.items()}}

    def predict(self, net: Net, params: Params, x: Tensor, down: Weights, kept: KeptHead) -> Scores:
        z = net.embed(params, x)
        return {"head": net.head(params, z) + self.personal_scores(params, z, kept.shares)}

    def predict_global(self, net: Net, server: Weights, x: Tensor) -> Scores:
        return {"head": net(without_added(server.params), x)[1]}


def _has_bias(net: Net) -> bool:
    """Whether the personal head has a bias. It has none if the net's head is a dense layer without one, as in FedNH."""
    return [len(shape) for name, shape in net.shapes.items() if name.startswith("head.")] != [2]
