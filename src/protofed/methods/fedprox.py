"""FedProx (Li et al. 2020): FedAvg with a term that keeps clients near the model that they were sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from protofed.core import Batch, Loss, Net, Nothing, Params, Weights, cross_entropy
from protofed.methods.fedavg import FedAvg
from protofed.methods.parts.proximal import squared_distance


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term; partial work counts ([system] late = "keep")."""

    mu: Annotated[float, Ge(0)] = 0.1
    """μ: weight of the squared distance to the server's weights; 0 is FedAvg."""
    term: Literal["gradient", "constant"] = "gradient"
    """Whether the term has a `gradient` (its paper), or is a `constant` in training (the code of FedProto's authors):
    it is then logged, and training is FedAvg's."""

    def loss(self, net: Net, params: Params, batch: Batch, down: Weights, kept: Nothing) -> Loss:
        """Eq. (2) of its paper: cross-entropy plus μ/2 ||w - w_t||^2."""
        proximal = self.mu / 2 * squared_distance(net, params, down.params)
        if self.term == "constant":
            proximal = proximal.detach()
        return Loss(supervised=cross_entropy(net(params, batch.x)[1], batch), proximal=proximal)
