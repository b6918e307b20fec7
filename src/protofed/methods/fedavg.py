"""FedAvg (McMahan et al. 2017): clients train the server's model, the server averages what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from protofed.core import Method, Net, Nothing, Params, Scores, Site, Trained, Upload, Weights, average

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FedAvg(Method[Weights, Weights, Weights, Nothing]):
    """Clients train one shared model; the server averages the weights."""

    needs: ClassVar = "equal nets"

    weights: Literal["size", "equal"] = "size"
    """`size`: client i counts |D_i| / N, as in FedProto's Eq. (1). `equal`: every client counts the same."""

    def start(self, site: Site) -> Weights:
        return Weights(site.net.init(site.generator("init")))

    def receive(self, kept: Nothing, down: Weights) -> Params:
        return down.params

    def upload(self, trained: Trained[Weights, Nothing]) -> Weights:
        return Weights(trained.params)

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        sizes = [upload.examples if self.weights == "size" else 1 for upload in uploads]
        return Weights(average([upload.message.params for upload in uploads], sizes))

    def predict_global(self, net: Net, server: Weights, x: Tensor) -> Scores:
        return {"head": net(server.params, x)[1]}
