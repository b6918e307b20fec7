"""FedAtt (Ji et al. 2019): layer by layer, clients that have moved farther count more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt

from protofed.core import Site, Upload, Weights
from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAtt(FedAvg):
    """FedAvg with a weight for every client and layer, by how far the layer has moved."""

    step: Annotated[float, Gt(0)] = 1.2
    """ε: how far the server's layer goes towards the weighted mean of the clients'."""

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        """w_l <- w_l - ε sum_i α_li (w_l - w_li), with α_l the softmax over clients of ||w_l - w_li||."""
        averaged = super().aggregate(site, server, uploads).params
        uploads = [upload for upload in uploads if upload.examples] or uploads  # who has no examples does not count
        for name, before in server.params.items():
            if site.net.trains(name, before):  # statistics of batch norm are averaged: ε > 1 makes variances negative
                moved = torch.stack([upload.message.params[name] for upload in uploads]).double() - before.double()
                share = torch.softmax(moved.flatten(1).norm(dim=1), 0)
                averaged[name] = (before.double() + self.step * torch.tensordot(share, moved, 1)).to(before.dtype)
        return Weights(averaged)
