"""Local: every client trains alone. It is the baseline that sharing must beat; on pooled data, the upper reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from protofed.core import Client, KeptModel, Method, Nothing, Params

if TYPE_CHECKING:
    from protofed.core import Trained


@dataclass(frozen=True)
class Local(Method[Nothing, Nothing, Nothing, KeptModel]):
    """Every client trains its own model and shares nothing; with partition "pooled" it is the centralised reference."""

    initial_weights: Literal["same", "own"] = "own"
    """Initial weights: the `same` for all clients with equal nets (FedNH's runs), or each client's `own`."""

    def join(self, client: Client) -> KeptModel:
        return KeptModel(client.fresh_params(same=self.initial_weights == "same"))

    def receive(self, kept: KeptModel, down: Nothing) -> Params:
        return kept.params

    def keep(self, trained: Trained[Nothing, KeptModel]) -> KeptModel:
        return KeptModel(trained.params)
