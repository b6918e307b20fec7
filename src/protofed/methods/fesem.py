"""FeSEM (Xie et al. 2021): several shared models; every client goes with the one that is nearest to its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from protofed.core import Method, Net, Nothing, Params, Site, Trained, Upload, Weights, average
from protofed.methods.parts.clusters import kmeans


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
        """All centres are one and the same model, and everybody is with the first."""
        models = {str(k): site.net.init(site.generator("init")) for k in range(self.centres)}
        return Centres(models, torch.zeros(site.clients, dtype=torch.long))

    def broadcast(self, server: Centres, client: int) -> Weights:
        """A client's centre; who was not there in the run gets the one with the most members."""
        known = client < len(server.member)
        return Weights(server.models[str(int(server.member[client] if known else server.member.mode().values))])

    def receive(self, kept: Nothing, down: Weights) -> Params:
        return down.params

    def upload(self, trained: Trained[Weights, Nothing]) -> Weights:
        return Weights(trained.params)

    def aggregate(self, site: Site, server: Centres, uploads: Sequence[Upload[Weights]]) -> Centres:
        """E-step: uploads go to their nearest centre. M-step: a centre is the mean of its own; an empty one stays.

        As long as everybody is with the first centre, centres are those that k-means finds among the uploads.
        """
        member, models = server.member.clone(), dict(server.models)
        sent = torch.stack([flat(site.net, upload.message.params) for upload in uploads])
        centres = torch.stack([flat(site.net, models[str(k)]) for k in range(self.centres)])
        if not member.any() and self.centres > 1:
            found = kmeans(sent, torch.zeros(len(sent), dtype=torch.long), 1, self.centres, site.generator("centres"))
            centres = torch.where(found.support[0].unsqueeze(1) > 0, found.mean[0], centres)
        member[[upload.client for upload in uploads]] = torch.cdist(sent, centres).argmin(1)
        for k in models:
            own = [upload for upload in uploads if int(member[upload.client]) == int(k)]
            if own:
                sizes = [upload.examples if self.weights == "size" else 1 for upload in own]
                models[k] = average([upload.message.params for upload in own], sizes)
        return Centres(models, member)


def flat(net: Net, params: Params) -> Tensor:
    """All weights of a model in a row; statistics of batch norm are none."""
    return torch.cat([params[name].double().flatten() for name in sorted(params) if net.trains(name, params[name])])
