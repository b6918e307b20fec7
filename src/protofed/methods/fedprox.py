"""FedProx (Li et al. 2020): FedAvg whose clients are drawn to the model they were sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge

from protofed.core import Batch, Loss, Net, Nothing, Params, Weights, cross_entropy
from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term; partial work counts ([system] late = "keep")."""

    mu: Annotated[float, Ge(0)] = 0.1
    """μ: how strongly weights are drawn to those of the server; 0 is FedAvg."""

    def loss(self, net: Net, params: Params, batch: Batch, down: Weights, kept: Nothing) -> Loss:
        """Eq. (2) of its paper: cross-entropy plus μ/2 ||w - w_t||^2."""
        moving = [name for name in sorted(params) if net.trains(name, params[name])]
        near = torch.stack([(params[name] - down.params[name]).square().sum() for name in moving]).sum()
        return Loss(supervised=cross_entropy(net(params, batch.x)[1], batch), proximal=self.mu / 2 * near)
