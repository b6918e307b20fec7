"""Ditto (Li et al. 2021): FedAvg, and next to it every client trains a personal model near the shared one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge

from protofed.core import (
    Batch,
    Client,
    KeptModel,
    Loss,
    Method,
    Needs,
    Net,
    Params,
    Phase,
    Scores,
    Site,
    Trained,
    Upload,
    Weights,
    average_uploads,
    cross_entropy,
)
from protofed.methods.parts.proximal import squared_distance
from protofed.methods.parts.shared_model import SharedModel
from protofed.net import ADDED, added, without_added

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ditto(SharedModel, Method[Weights, Weights, Weights, KeptModel]):
    """FedAvg, and for every client a personal model that is kept near the shared one."""

    needs: ClassVar[Needs] = "equal nets"
    sums_uploads: ClassVar[bool] = True

    pull: Annotated[float, Ge(0)] = 0.75
    """λ: weight of the squared distance of the personal model to the shared one; 0 is Local."""
    initial_weights: Literal["same", "own"] = "same"
    """Initial weights of the personal models: the `same` as the shared model's (code), or each client's `own`."""
    weights: Literal["size", "equal"] = "size"
    """Weights of clients in the shared model: by their training examples (`size`), or `equal`."""

    def start(self, site: Site) -> Weights:
        return Weights(site.fresh_params())

    def join(self, client: Client) -> KeptModel:
        return KeptModel(client.fresh_params(same=self.initial_weights == "same"))

    def receive(self, kept: KeptModel, down: Weights) -> Params:
        """Both models: the shared one, and the personal one as parameters that the method adds."""
        return {**down.params, **{f"{ADDED}{name}": value for name, value in kept.params.items()}}

    def phases(self, epochs: float) -> tuple[Phase, ...]:
        """Both models train in the same steps, but do not influence each other's gradient clipping."""
        return (Phase(epochs, clipped_separately=(ADDED,)),)

    def loss(self, net: Net, params: Params, batch: Batch, down: Weights, kept: KeptModel) -> Loss:
        """The cross-entropy of both models, and for the personal one (Eq. Ditto) λ/2 ||v - w_t||^2."""
        shared = cross_entropy(net(params, batch.x)[1], batch)  # first, so that it has the dropout masks of fedavg
        personal = added(params)
        return Loss(
            personal=cross_entropy(net(personal, batch.x)[1], batch),
            near=self.pull / 2 * squared_distance(net, personal, down.params),
            supervised=shared,
        )

    def keep(self, trained: Trained[Weights, KeptModel]) -> KeptModel:
        return KeptModel(added(trained.params))

    def upload(self, trained: Trained[Weights, KeptModel]) -> Weights:
        return Weights(without_added(trained.params))

    def aggregate(self, site: Site, server: Weights, uploads: Sequence[Upload[Weights]]) -> Weights:
        return Weights(average_uploads(uploads, equal=self.weights == "equal"))

    def exportable_params(self, params: Params, kept: KeptModel) -> Params:
        return added(params)

    def predict(self, net: Net, params: Params, x: Tensor, down: Weights, kept: KeptModel) -> Scores:
        return {"head": net(added(params), x)[1]}
