"""FeSEM (Xie et al. 2021): several shared models; every client goes with the one that is nearest to its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from protofed.core import Method, Nothing, Params, Site, Trained, Upload, Weights, average


class Centres(NamedTuple):
    """The server's state: K models, and the number of each client's."""

    models: dict[str, Params]
    member: Tensor  # [clients]


@dataclass(frozen=True)
class FeSEM(Method[Centres, Weights, Weights, Nothing]):
    """Several shared models; every client trains the one that is nearest to its weights."""

    needs: ClassVar = "equal nets"

    centres: Annotated[int, Ge(1)] = 3
    """K: how many models there are; the papers do not say. With 1 it is FedAvg."""
    weights: Literal["size", "equal"] = "size"
    """How a centre's members count in its mean."""

    def start(self, site: Site) -> Centres:
        """Every centre is drawn by itself, and clients begin with any of them."""
        models = {str(k): site.net.init(site.generator("init" if not k else f"init {k}")) for k in range(self.centres)}
        return Centres(models, torch.randint(self.centres, (site.clients,), generator=site.generator("member")))

    def broadcast(self, server: Centres, client: int) -> Weights:
        return Weights(server.models[str(int(server.member[client]))])

    def receive(self, kept: Nothing, down: Weights) -> Params:
        return down.params

    def upload(self, trained: Trained[Weights, Nothing]) -> Weights:
        return Weights(trained.params)

    def aggregate(self, site: Site, server: Centres, uploads: Sequence[Upload[Weights]]) -> Centres:
        """E-step: uploads go to their nearest centre. M-step: a centre is the mean of its own; an empty one stays."""
        member, models = server.member.clone(), dict(server.models)
        for upload in uploads:
            far = torch.stack([apart(upload.message.params, models[str(k)]) for k in range(self.centres)])
            member[upload.client] = far.argmin()
        for k in models:
            own = [upload for upload in uploads if int(member[upload.client]) == int(k)]
            if own:
                sizes = [upload.examples if self.weights == "size" else 1 for upload in own]
                models[k] = average([upload.message.params for upload in own], sizes)
        return Centres(models, member)


def apart(a: Params, b: Params) -> Tensor:
    """The squared L2 distance of two models."""
    return torch.stack([(a[name].double() - b[name].double()).square().sum() for name in sorted(a)]).sum()
