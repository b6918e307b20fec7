"""FedPer (Arivazhagan et al. 2019): the lower layers are everybody's, the upper ones each client's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from protofed.core import Client, Method, Net, Params, Private, Scores, Site, Trained, Upload, Weights, average
from protofed.errors import UserError
from protofed.net import selected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FedPer(Method[Weights, Weights, Weights, Private]):
    """Clients share the body and keep their heads; all of it trains at once."""

    needs: ClassVar = "equal nets"

    shared: Literal["body", "convs"] = "body"
    """What is shared: all but the head, or the convolutions only, as FedProto's tables count it."""

    @property
    def common(self) -> str:
        """The shared part, as phases name it."""
        return "body." if self.shared == "body" else "convs"

    def start(self, site: Site) -> Weights:
        """A whole model: its private part is never sent, and makes the server's model (FedNH, section 4.1)."""
        params = site.net.init(site.generator("init"))
        if not selected(params, self.common):
            raise UserError(f'method.shared: got "{self.shared}", but net {site.net.name} has none. Use "body".')
        if self.common and not self.private(params).params:
            raise UserError(f"net {site.net.name} has no head of its own: nothing would be private. Use fedavg.")
        return Weights(params)

    def broadcast(self, server: Weights, client: int) -> Weights:
        return Weights(selected(server.params, self.common))

    def join(self, client: Client) -> Private:
        return self.private(client.params)

    def private(self, params: Params) -> Private:
        """What a client does not share."""
        common = selected(params, self.common)
        return Private({name: value for name, value in params.items() if name not in common})

    def receive(self, kept: Private, down: Weights) -> Params:
        return {**down.params, **kept.params}

    def keep(self, trained: Trained[Weights, Private]) -> Private:
        return self.private(trained.params)

    def upload(self, trained: Trained[Weights, Private]) -> Weights:
        return Weights(selected(trained.params, self.common))

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        shared = average([upload.message.params for upload in uploads], [upload.examples for upload in uploads])
        return Weights({**server.params, **shared})

    def predict_global(self, net: Net, server: Weights, x: Tensor) -> Scores:
        return {"head": net(server.params, x)[1]}
