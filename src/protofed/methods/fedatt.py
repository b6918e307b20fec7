"""FedAtt (Ji et al. 2019): in each layer, clients that moved farther count more."""

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
    """FedAvg with a weight per client and layer, which grows with the distance that the layer moved."""

    step: Annotated[float, Gt(0)] = 1.2
    """ε: step size of the server towards the weighted mean of the clients' layers."""

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        """w_l <- w_l - ε sum_i α_li (w_l - w_li), with α_l the softmax over clients of ||w_l - w_li||."""
        averaged = super().aggregate(site, server, uploads).params
        uploads = [upload for upload in uploads if upload.num_examples] or uploads  # empty clients do not count
        for name, before in server.params.items():
            if site.net.trains(name, before):  # batch norm statistics are averaged: ε > 1 can make a variance negative
                moved = torch.stack([upload.message.params[name] for upload in uploads]).double() - before.double()
                alpha = torch.softmax(moved.flatten(1).norm(dim=1), 0)
                averaged[name] = (before.double() + self.step * torch.tensordot(alpha, moved, 1)).to(before.dtype)
        return Weights(averaged)
