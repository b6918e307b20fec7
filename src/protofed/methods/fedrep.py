"""FedRep (Collins et al. 2021): clients first fit their heads to the shared body, then the body to their heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from protofed.core import Phase
from protofed.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """Clients share the body and keep their heads; the head trains first, then the body."""

    head_epochs: Annotated[int, Ge(0)] = 10
    """Epochs in which only the private part trains (its paper and FedNH's runs: 10)."""

    def phases(self, epochs: float) -> tuple[Phase, ...]:
        """Its Algorithm 1: the head with the body fixed, then the body with the head fixed."""
        head_epochs = self.head_epochs if epochs else 0  # a client that does no work trains nothing
        return Phase(head_epochs, (f"not {self.shared_part}",)), Phase(epochs, (self.shared_part,))
