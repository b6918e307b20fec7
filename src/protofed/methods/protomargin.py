"""Prototype-guided aggregation (Michieli & Ozay 2021): the margins of clients' prototypes say how much they count.

The paper calls the method FedProto, the name that Tan et al. (2022) use for theirs; here it is `protomargin`. There is
no public code. Where the paper is silent there is an option, or a line in docs/methods/protomargin.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core import Method, Needs, Nothing, Params, Prototypes, Site, Trained, Upload, Weights, average
from protofed.methods.parts.margins import channels_scaled, same_class_distances, semantic_margins
from protofed.methods.parts.shared_model import SharedModel


class GuidedServer(NamedTuple):
    """The server's state: the model, and from the last round the prototypes and how much each client counted."""

    params: Params
    prototypes: Prototypes
    attention: Tensor  # [clients of the last round]
    margins: Tensor  # [2, clients of the last round]: the sums of Eq. (11), of local and of aggregate margins


class GuidedUpload(NamedTuple):
    """What a client sends: its weights, its scaled prototypes, and its local margins."""

    params: Params
    prototypes: Prototypes
    local_margins: Tensor  # [classes]: Eq. (8)


@dataclass(frozen=True)
class ProtoMargin(SharedModel, Method[GuidedServer, Weights, GuidedUpload, Nothing]):
    """Clients train one shared model; the margins of their class prototypes decide how much each of them counts."""

    needs: ClassVar[Needs] = "equal nets"

    margins: Literal["both", "local", "aggregate"] = "both"
    """Eq. (13): attention from `both` margins, or (Table 3) from the `local` (Eq. 8) or `aggregate` one (Eq. 9)."""
    attention: Literal["margin", "deviation"] = "margin"
    """Which clients count more: those that keep a `margin` (Eq. (11) as printed), or those that deviate (its text)."""
    exponent: Literal["margin", "distance"] = "margin"
    """What Eq. (11) sums: the `margin` of Eq. (7), or (Table 3) the `distance` d+ within a class, Eq. (5)."""
    single: Literal["zero", "minus_one"] = "zero"
    """The margin of the only class that two sets of prototypes share: `zero`, or `minus_one` (d- of Eq. (6) is 0)."""
    absent: Literal["forget", "keep"] = "forget"
    """Prototype of a class that no client of a round holds: `forget` it (Eq. (10) has none), or `keep` the old one."""

    def start(self, site: Site) -> GuidedServer:
        no_prototypes = Prototypes.empty(site.net.classes, site.net.dim)
        return GuidedServer(site.fresh_params(), no_prototypes, torch.zeros(0), torch.zeros(2, 0))

    def broadcast(self, server: GuidedServer, client: int) -> Weights:
        return Weights(server.params)

    def closeness(self, a: Prototypes, b: Prototypes) -> Tensor:
        """Per class [classes] the margin of Eq. (7), or minus the distance of Eq. (5); larger: less moved."""
        return semantic_margins(a, b, self.single) if self.exponent == "margin" else -same_class_distances(a, b)

    def upload(self, trained: Trained[Weights, Nothing]) -> GuidedUpload:
        """Eq. (4) before and after training, scaled over channels, and Eq. (8)."""
        before, after = (
            channels_scaled(Prototypes.of(*trained.features(before), classes=trained.net.classes))
            for before in (True, False)
        )
        return GuidedUpload(trained.params, after, self.closeness(before, after))

    def aggregate(self, site: Site, server: GuidedServer, uploads: Sequence[Upload[GuidedUpload]]) -> GuidedServer:
        """Eq. (9) to (14)."""
        sums = self.margin_sums(server.prototypes, uploads)
        attention = self.client_weights(server.prototypes, sums, uploads)
        params = average([upload.message.params for upload in uploads], attention.tolist())  # Eq. (14)
        pooled = Prototypes.pool([upload.message.prototypes for upload in uploads], "examples")  # Eq. (10)
        if self.absent == "keep":
            pooled = pooled.or_else(server.prototypes)
        return GuidedServer(params, pooled, attention, sums)

    def margin_sums(self, aggregate: Prototypes, uploads: Sequence[Upload[GuidedUpload]]) -> Tensor:
        """The sums of Eq. (11) [2, uploads]: of the local margins, and of the aggregate ones, Eq. (9)."""
        of_local = [upload.message.local_margins.sum() for upload in uploads]
        of_aggregate = [self.closeness(upload.message.prototypes, aggregate).sum() for upload in uploads]
        return torch.stack([torch.stack(of_local), torch.stack(of_aggregate)])

    def client_weights(self, aggregate: Prototypes, sums: Tensor, uploads: Sequence[Upload[GuidedUpload]]) -> Tensor:
        """Eq. (11) to (13): the weight of each upload. Without aggregate prototypes, weights are by examples."""
        if not aggregate.support.any():
            sizes = torch.tensor([float(upload.num_examples) for upload in uploads])
            return sizes / sizes.sum() if sizes.any() else torch.full_like(sizes, 1 / len(sizes))
        of_local, of_aggregate = sums
        used = {"local": [of_local], "aggregate": [of_aggregate], "both": [of_local, of_aggregate]}[self.margins]
        is_empty = torch.tensor([upload.num_examples == 0 for upload in uploads])  # such clients do not count
        sign = 1 if self.attention == "margin" else -1
        logs = [F.logsigmoid(sign * exponents.double()) for exponents in used]  # of Eq. (11): it may be tiny
        logs = [log if is_empty.all() else log.masked_fill(is_empty, -torch.inf) for log in logs]
        return torch.stack([log.softmax(0) for log in logs]).mean(0).float()  # Eq. (12), (13)

    def model_state(self, server: GuidedServer) -> GuidedServer:
        """The model alone."""
        classes, _, dim = server.prototypes.mean.shape
        return GuidedServer(server.params, Prototypes.empty(classes, dim), torch.zeros(0), torch.zeros(2, 0))

    def log_entries(self, server: GuidedServer) -> dict[str, Any]:
        local, aggregate = server.margins.tolist()
        return {"attention": server.attention.tolist(), "margins_local": local, "margins_aggregate": aggregate}

    def compared_embeddings(self, z: Tensor) -> None:
        """The prototypes are scaled channel by channel, so that embeddings cannot be compared with them."""
        return
