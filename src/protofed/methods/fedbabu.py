"""FedBABU (Oh et al. 2022): only the body is trained and shared; the head keeps its initial values until a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from protofed.core import Nothing, Phase, Site, Trained, Upload, Weights
from protofed.errors import UserError
from protofed.methods.fedavg import FedAvg
from protofed.net import selected


@dataclass(frozen=True)
class FedBABU(FedAvg):
    """Only the body is trained and shared; before a test, each client fine-tunes the complete model."""

    fine_tune: Annotated[int, Ge(0)] = 5
    """Epochs of fine-tuning on a client's own data before a test, including the head; discarded afterwards."""

    def start(self, site: Site) -> Weights:
        server = super().start(site)
        if not selected(server.params, "head."):
            raise UserError(f"fedbabu keeps the head fixed, but net {site.net.name} has no head. Use fedavg.")
        return server

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Local update: the head does not train."""
        return (Phase(epochs, ("body.",)),)

    def tune(self, epochs: int) -> tuple[Phase, ...]:
        """Personalisation: from the server's current body."""
        return (Phase(self.fine_tune),) if self.fine_tune else ()

    def upload(self, trained: Trained[Weights, Nothing]) -> Weights:
        return Weights(selected(trained.params, "body."))

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        return Weights({**server.params, **super().aggregate(site, server, uploads).params})
