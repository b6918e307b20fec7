"""FedRep (Collins et al. 2021): clients fit their own heads to the shared body, then the body to their heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from protofed.core import Phase
from protofed.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """Clients share the body and keep their heads; the heads train first, then the body."""

    head_epochs: Annotated[int, Ge(0)] = 10
    """Epochs in which only the private part trains (its paper and FedNH's runs: 10; FedProto's tables: 1)."""

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Its Algorithm 1: the head with the body fixed, then the body with the head fixed."""
        return Phase(self.head_epochs if epochs else 0, (f"not {self.common}",)), Phase(epochs, (self.common,))
