"""FedPer (Arivazhagan et al. 2019): clients share the lower layers and keep their own upper layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from protofed.core import Client, KeptModel, Method, Needs, Params, Site, Trained, Upload, Weights, average_uploads
from protofed.errors import UserError
from protofed.methods.parts.shared_model import SharedModel
from protofed.net import selected


@dataclass(frozen=True)
class FedPer(SharedModel, Method[Weights, Weights, Weights, KeptModel]):
    """Clients share the body and keep their heads; all layers train together."""

    needs: ClassVar[Needs] = "equal nets"
    sums_uploads: ClassVar[bool] = True

    shared: Literal["body", "convs"] = "body"
    """Shared layers: `body` is everything but the head, `convs` only the convolutions, as FedProto's tables count."""
    initial_weights: Literal["same", "own"] = "own"
    """Initial weights of the private layers: the `same` for all clients (FedNH's runs), or each client's `own`."""
    weights: Literal["size", "equal"] = "size"
    """Weights of clients in the average: by their training examples (`size`), or `equal`."""

    @property
    def shared_part(self) -> str:
        """The shared layers, as phases name them."""
        return "body." if self.shared == "body" else "convs"

    def start(self, site: Site) -> Weights:
        """A complete model. Its private part is never sent; it completes the server's model (FedNH, section 4.1)."""
        params = site.fresh_params()
        if not selected(params, "body."):
            raise UserError(f"net {site.net.name} has no layers below its head that could be shared. Use fedavg.")
        if not selected(params, self.shared_part):
            raise UserError(
                f'method.shared: got "{self.shared}", but net {site.net.name} has no such layers. Use "body".'
            )
        if not self.private(params).params:
            raise UserError(f"net {site.net.name} has no head, so that clients would share everything. Use fedavg.")
        return Weights(params)

    def broadcast(self, server: Weights, client: int) -> Weights:
        return Weights(selected(server.params, self.shared_part))

    def join(self, client: Client) -> KeptModel:
        return self.private(client.fresh_params(same=self.initial_weights == "same"))

    def private(self, params: Params) -> KeptModel:
        """The parameters that a client does not share."""
        return KeptModel(selected(params, f"not {self.shared_part}"))

    def receive(self, kept: KeptModel, down: Weights) -> Params:
        return {**down.params, **kept.params}

    def keep(self, trained: Trained[Weights, KeptModel]) -> KeptModel:
        return self.private(trained.params)

    def upload(self, trained: Trained[Weights, KeptModel]) -> Weights:
        return Weights(selected(trained.params, self.shared_part))

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        return Weights({**server.params, **average_uploads(uploads, equal=self.weights == "equal")})
