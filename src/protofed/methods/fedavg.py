"""FedAvg (McMahan et al. 2017): clients train the server's model, and the server averages the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from protofed.core import Method, Needs, Nothing, Site, Trained, Upload, Weights, average_uploads
from protofed.methods.parts.shared_model import SharedModel


@dataclass(frozen=True)
class FedAvg(SharedModel, Method[Weights, Weights, Weights, Nothing]):
    """Clients train one shared model; the server averages the weights."""

    needs: ClassVar[Needs] = "equal nets"
    sums_uploads: ClassVar[bool] = True

    weights: Literal["size", "equal"] = "size"
    """`size`: client i counts |D_i| / N, as in FedProto's Eq. (1). `equal`: every client counts the same."""

    def start(self, site: Site) -> Weights:
        return Weights(site.fresh_params())

    def upload(self, trained: Trained[Weights, Nothing]) -> Weights:
        return Weights(trained.params)

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        return Weights(average_uploads(uploads, equal=self.weights == "equal"))
