"""Prototype-guided aggregation (Michieli & Ozay 2021): clients whose prototypes keep a margin count more.

Its paper calls it FedProto, as Tan et al. (2022) call theirs. There is no public code; where the paper is silent
there is an option or a line in docs/methods/protomargin.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from protofed.core import Method, Net, Nothing, Params, Prototypes, Scores, Site, Trained, Upload, Weights, average
from protofed.methods.parts.margins import channels_scaled, same_class, semantic_margins


class Guided(NamedTuple):
    """The server's state: the model, the aggregate prototypes of the last round, and how much each client counted."""

    params: Params
    prototypes: Prototypes
    attention: Tensor  # [clients of the last round]
    margins: Tensor  # [2, clients of the last round]: the sums of Eq. (11), of local and of aggregate margins


class Sent(NamedTuple):
    """What a client sends: its weights, its scaled prototypes, and how they moved in its training."""

    params: Params
    prototypes: Prototypes
    moved: Tensor  # [classes]: the local margins of Eq. (8)


@dataclass(frozen=True)
class ProtoMargin(Method[Guided, Weights, Sent, Nothing]):
    """Clients train one shared model; those whose class prototypes keep a margin count more in the average."""

    needs: ClassVar = "equal nets"

    margins: Literal["both", "local", "aggregate"] = "both"
    """Eq. (13): attention from `both` margins, or (Table 3) from the `local` (Eq. 8) or `aggregate` one (Eq. 9)."""
    deviation: Literal["margin", "distance"] = "margin"
    """What Eq. (11) sums: the `margin` of Eq. (7), or (Table 3) minus the `distance` of the same class, Eq. (5)."""
    absent: Literal["forget", "keep"] = "forget"
    """A class that nobody in a round has: Eq. (10) to the letter has no prototype of it then, or the old one stays."""

    def start(self, site: Site) -> Guided:
        params = site.net.init(site.generator("init"))
        return Guided(params, Prototypes.empty(site.net.classes, site.net.dim), torch.zeros(0), torch.zeros(2, 0))

    def broadcast(self, server: Guided, client: int) -> Weights:
        return Weights(server.params)

    def receive(self, kept: Nothing, down: Weights) -> Params:
        return down.params

    def deviations(self, a: Prototypes, b: Prototypes) -> Tensor:
        """What Eq. (11) sums, for each class [classes]."""
        return semantic_margins(a, b) if self.deviation == "margin" else -same_class(a, b)

    def upload(self, trained: Trained[Weights, Nothing]) -> Sent:
        """Eq. (4) before and after training, scaled over channels, and Eq. (8)."""
        before, after = (
            channels_scaled(Prototypes.of(*trained.features(before), classes=trained.net.classes))
            for before in (True, False)
        )
        return Sent(trained.params, after, self.deviations(before, after))

    def aggregate(self, site: Site, server: Guided, uploads: Sequence[Upload[Sent]]) -> Guided:
        """Eq. (9) to (14)."""
        known, params = server.prototypes, [upload.message.params for upload in uploads]
        attention = self.attention(known, uploads)
        pooled = Prototypes.pool([upload.message.prototypes for upload in uploads], "examples")  # Eq. (10)
        pooled = pooled.or_else(known) if self.absent == "keep" else pooled
        return Guided(average(params, attention.tolist()), pooled, attention, self.sums(known, uploads))

    def sums(self, known: Prototypes, uploads: Sequence[Upload[Sent]]) -> Tensor:
        """What Eq. (11) has in its exponent [2, uploads]: from local margins and from aggregate ones, Eq. (9)."""
        local = [upload.message.moved.sum() for upload in uploads]
        apart = [self.deviations(upload.message.prototypes, known).sum() for upload in uploads]
        return torch.stack([torch.stack(local), torch.stack(apart)])

    def attention(self, known: Prototypes, uploads: Sequence[Upload[Sent]]) -> Tensor:
        """Eq. (11) to (13): how much each upload counts; by examples as long as there are no aggregate prototypes."""
        if not known.support.any():
            sizes = torch.tensor([float(upload.examples) for upload in uploads])
            return sizes / sizes.sum() if sizes.any() else torch.full_like(sizes, 1 / len(sizes))
        local, apart = self.sums(known, uploads)
        used = {"local": [local], "aggregate": [apart], "both": [local, apart]}[self.margins]
        busy = torch.tensor([float(upload.examples > 0) for upload in uploads])
        busy = busy if busy.any() else torch.ones_like(busy)
        clients = [torch.sigmoid(sums) * busy for sums in used]  # Eq. (11); who has no examples does not count
        return torch.stack([client / client.sum() for client in clients]).mean(0)  # Eq. (12), (13)

    def noted(self, server: Guided) -> dict[str, Any]:
        local, aggregate = server.margins.tolist()
        return {"attention": server.attention.tolist(), "margins_local": local, "margins_aggregate": aggregate}

    def predict_global(self, net: Net, server: Guided, x: Tensor) -> Scores:
        return {"head": net(server.params, x)[1]}
