"""FedBABU (Oh et al. 2022): only the body is trained and shared; the head keeps its initial values until a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from protofed.core import (
    Client,
    KeptModel,
    Method,
    Needs,
    Params,
    Phase,
    Site,
    Trained,
    Upload,
    Weights,
    average_uploads,
)
from protofed.errors import UserError
from protofed.methods.parts.shared_model import SharedModel
from protofed.net import selected


@dataclass(frozen=True)
class FedBABU(SharedModel, Method[Weights, Weights, Weights, KeptModel]):
    """Only the body is trained and shared; before a test, each client fine-tunes the complete model."""

    needs: ClassVar[Needs] = "equal nets"
    sums_uploads: ClassVar[bool] = True

    weights: Literal["size", "equal"] = "size"
    """Weights of clients in the average: by their training examples (`size`), or `equal`."""
    fine_tune: Annotated[int, Ge(0)] = 5
    """Epochs of fine-tuning on a client's own data before a test, including the head; discarded afterwards."""
    tune_from: Literal["server", "client"] = "server"
    """Fine-tuning starts from the current body of the `server` (paper), or from the `client`'s last one (FedNH)."""

    def start(self, site: Site) -> Weights:
        params = site.fresh_params()
        if not selected(params, "head."):
            raise UserError(f"fedbabu keeps the head fixed, but net {site.net.name} has no head. Use fedavg.")
        if not selected(params, "body."):
            raise UserError(f"fedbabu trains the layers below the head, but net {site.net.name} has none. Use fedavg.")
        return Weights(params)

    def join(self, client: Client) -> KeptModel:
        return KeptModel(selected(client.fresh_params(same=True), "body.") if self.tune_from == "client" else {})

    def phases(self, epochs: float) -> tuple[Phase, ...]:
        """Local update: the head does not train."""
        return (Phase(epochs, ("body.",)),)

    def keep(self, trained: Trained[Weights, KeptModel]) -> KeptModel:
        return KeptModel(selected(trained.params, "body.") if self.tune_from == "client" else {})

    def upload(self, trained: Trained[Weights, KeptModel]) -> Weights:
        return Weights(selected(trained.params, "body."))

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        return Weights({**server.params, **average_uploads(uploads, equal=self.weights == "equal")})

    def tune(self, epochs: float) -> tuple[Phase, ...]:
        """Personalisation: all layers train."""
        return (Phase(self.fine_tune),) if self.fine_tune else ()

    def tune_start(self, kept: KeptModel, down: Weights) -> Params:
        return {**down.params, **kept.params}
