"""FedAtt (Ji et al. 2019): in each layer, clients that moved farther count more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from protofed.averages import refuse_rule_for_weights
from protofed.core import Site, Upload, Weights
from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAtt(FedAvg):
    """FedAvg with a weight per client and layer, which grows with the distance that the layer moved."""

    sums_uploads: ClassVar[bool] = False  # the weights of a layer need the distances of all clients
    step: Annotated[float, Gt(0)] = 1.2
    """ε: step size of the server towards the weighted mean of the clients' layers."""
    norm: Literal["spectral", "frobenius"] = "spectral"
    """how far a layer has moved: `spectral`: the largest singular value (its code); `frobenius`: L2 over all entries"""

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        """w_l <- w_l - ε sum_i α_li (w_l - w_li), with α_l the softmax over clients of ||w_l - w_li||."""
        refuse_rule_for_weights("fedatt weighs every layer of a client by how far it moved, which is not an average.")
        averaged = super().aggregate(site, server, uploads).params
        uploads = [upload for upload in uploads if upload.num_examples] or uploads  # empty clients do not count
        for name, before in server.params.items():
            if site.net.trains(name, before):  # batch norm statistics are averaged: ε > 1 can make a variance negative
                moved = torch.stack([upload.message.params[name] for upload in uploads]).double() - before.double()
                alpha = torch.softmax(self.lengths(moved), 0)
                averaged[name] = (before.double() + self.step * torch.tensordot(alpha, moved, 1)).to(before.dtype)
        return Weights(averaged)

    def lengths(self, moved: Tensor) -> Tensor:
        """The norms [clients] of one layer's ways [clients, ...]. Both norms of a vector are its Euclidean length.

        For the spectral norm, a tensor of more than two dimensions is a matrix with one row per output unit.
        """
        squares: Tensor  # of the norms
        if self.norm == "frobenius" or moved.dim() <= 2:
            squares = moved.reshape(len(moved), -1).square().sum(1)
        else:
            matrices = moved.flatten(2)
            rows, columns = matrices.shape[1:]
            gram = matrices @ matrices.mT if rows <= columns else matrices.mT @ matrices
            squares = torch.linalg.eigvalsh(gram)[:, -1].clamp(min=0)  # the largest; rounding can make 0 negative
        return squares.sqrt()
