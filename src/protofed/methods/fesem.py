"""FeSEM (Xie et al. 2021): several shared models; every client trains the one nearest to its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from protofed.core import Method, Needs, Net, Nothing, Params, Site, Trained, Upload, Weights, average_uploads
from protofed.methods.parts.clusters import kmeans


class Centres(NamedTuple):
    """The server's state: K models, and the model that each client belongs to."""

    models: dict[str, Params]  # "0", "1", ..., "K - 1"
    member: Tensor  # [clients]: the number of each client's model


class WeightsAndClasses(NamedTuple):
    """The message to the server: a model, and with `assign = "classes"` how many classes the client has."""

    params: Params
    num_classes: Tensor  # [1], or [0] if it is not sent


@dataclass(frozen=True)
class FeSEM(Method[Centres, Weights, WeightsAndClasses, Nothing]):
    """Several shared models; every client trains the one nearest to its weights."""

    needs: ClassVar[Needs] = "equal nets"

    centres: Annotated[int, Ge(1)] = 3
    """K: number of models. The papers do not give it. 1 is FedAvg. With `assign = "classes"` there are always 2."""
    assign: Literal["nearest", "classes"] = "nearest"
    """Each client's centre: the `nearest` to its weights, or by its number of `classes` (the code of FedProto's
    authors): the first centre for fewer classes than the mean of the round's clients, else the second."""
    weights: Literal["size", "equal"] = "size"
    """Weights of a centre's clients in its mean: by their training examples (`size`), or `equal`."""

    def start(self, site: Site) -> Centres:
        """All centres start as the same model, and every client belongs to the first."""
        models = {str(k): site.fresh_params() for k in range(2 if self.assign == "classes" else self.centres)}
        return Centres(models, torch.zeros(site.clients, dtype=torch.long))

    def broadcast(self, server: Centres, client: int) -> Weights:
        """The model of the client's centre; a client that joins after the run gets the centre with most members."""
        in_run = client < len(server.member)
        centre = server.member[client] if in_run else server.member.mode().values
        return Weights(server.models[str(int(centre))])

    def receive(self, kept: Nothing, down: Weights) -> Params:
        return down.params

    def upload(self, trained: Trained[Weights, Nothing]) -> WeightsAndClasses:
        count = [float(len(trained.data.labels.unique()))] if self.assign == "classes" else []
        return WeightsAndClasses(trained.params, torch.tensor(count))

    def aggregate(self, site: Site, server: Centres, uploads: Sequence[Upload[WeightsAndClasses]]) -> Centres:
        """E-step: assign uploads to centres. M-step: average the members of each; an empty centre stays.

        A client that took no step has the weights that it was sent: it stays with its centre.
        """
        member, models = server.member.clone(), dict(server.models)
        if self.assign == "classes":
            num_classes = torch.cat([upload.message.num_classes for upload in uploads])
            assigned = (num_classes >= num_classes.mean()).long()
        else:
            assigned = self.nearest_centres(site, server, uploads)
        for upload, centre in zip(uploads, assigned, strict=True):
            if upload.steps or self.assign == "classes":
                member[upload.client] = centre
        for k in models:
            members = [upload for upload in uploads if int(member[upload.client]) == int(k)]
            if members:
                models[k] = average_uploads(members, equal=self.weights == "equal")
        return Centres(models, member)

    def nearest_centres(self, site: Site, server: Centres, uploads: Sequence[Upload[WeightsAndClasses]]) -> Tensor:
        """The centre of each upload [uploads]: the nearest by the L2 distance of all weights.

        As long as every client belongs to the first centre, k-means over the uploads gives the centres.
        """
        member, models = server.member, server.models
        sent = torch.stack([_flatten_weights(site.net, upload.message.params) for upload in uploads])
        centres = torch.stack([_flatten_weights(site.net, models[str(k)]) for k in range(self.centres)])
        not_split_yet = not member.any()
        if not_split_yet and self.centres > 1:
            moved = sent[[upload.steps > 0 for upload in uploads]]
            one_class = torch.zeros(len(moved), dtype=torch.long)
            clusters = kmeans(moved, one_class, 1, self.centres, site.generator("centres"))
            centres = torch.where(clusters.support[0].unsqueeze(1) > 0, clusters.mean[0], centres)
        return torch.cdist(sent, centres).argmin(1)


def _flatten_weights(net: Net, params: Params) -> Tensor:
    """All weights of a model in one vector, without batch norm statistics."""
    return torch.cat([params[name].double().flatten() for name in sorted(params) if net.trains(name, params[name])])
