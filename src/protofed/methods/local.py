"""Local: every client trains alone. The floor that sharing has to beat; pooled data make it the ceiling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protofed.core import Client, Method, Nothing, Params, Private

if TYPE_CHECKING:
    from protofed.core import Trained


@dataclass(frozen=True)
class Local(Method[Nothing, Nothing, Nothing, Private]):
    """Every client trains its own model and shares nothing; with partition "pooled" it is the centralised reference."""

    def join(self, client: Client) -> Private:
        return Private(client.params)

    def receive(self, kept: Private, down: Nothing) -> Params:
        return kept.params

    def keep(self, trained: Trained[Nothing, Private]) -> Private:
        return Private(trained.params)
