"""FedBABU (Oh et al. 2022): only the body is trained and shared; the head stays as drawn until a client is tested."""

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
    """Only the body is trained and shared; before a client is tested it tunes the whole model."""

    fine_tune: Annotated[int, Ge(0)] = 5
    """Epochs on a client's own data before it is tested, head and all; forgotten afterwards."""

    def start(self, site: Site) -> Weights:
        server = super().start(site)
        if not selected(server.params, "head."):
            raise UserError(f"net {site.net.name} has no head of its own: nothing would stay as drawn. Use fedavg.")
        return server

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Local update: the head is never touched."""
        return (Phase(epochs, ("body.",)),)

    def tune(self, epochs: int) -> tuple[Phase, ...]:
        """Personalisation: from the server's current body."""
        return (Phase(self.fine_tune),) if self.fine_tune else ()

    def upload(self, trained: Trained[Weights, Nothing]) -> Weights:
        return Weights(selected(trained.params, "body."))

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        return Weights({**server.params, **super().aggregate(site, server, uploads).params})
