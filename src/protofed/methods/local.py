"""Local: every client trains alone. It is the baseline that sharing must beat; on pooled data, the upper reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protofed.core import Client, KeptModel, Method, Nothing, Params

if TYPE_CHECKING:
    from protofed.core import Trained


@dataclass(frozen=True)
class Local(Method[Nothing, Nothing, Nothing, KeptModel]):
    """Every client trains its own model and shares nothing; with partition "pooled" it is the centralised reference."""

    def join(self, client: Client) -> KeptModel:
        return KeptModel(client.fresh_params())

    def receive(self, kept: KeptModel, down: Nothing) -> Params:
        return kept.params

    def keep(self, trained: Trained[Nothing, KeptModel]) -> KeptModel:
        return KeptModel(trained.params)
