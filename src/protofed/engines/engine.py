"""What every engine offers, and what it reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from protofed.core import Upload
    from protofed.engines.scoring import Hits


Split = Literal["test", "validation"]
"""Which of its examples a client is asked about."""


class RoundPlan(NamedTuple):
    """What is out of the ordinary in a round."""

    examined: Collection[int] = ()  # who is asked about the balanced test set as soon as it is trained
    epochs: Mapping[int, int] = {}  # who trains for another number of epochs than planned


ORDINARY = RoundPlan()


class Report(NamedTuple):
    """A client's round: what it sends, and the terms of its loss summed over the examples it saw."""

    upload: Upload[Any]
    terms: dict[str, float]
    seen: float
    hits: Hits
    """of its model on the balanced test set, if it was examined"""


class Evaluation(NamedTuple):
    """A client's test: hits by each way to predict, of how many."""

    client: int
    correct: dict[str, int]
    total: int


class Engine(Protocol):
    """Trains and evaluates clients and holds what they keep; messages go in by client number."""

    def train(self, round: int, downs: Mapping[int, Any], asked: RoundPlan = ORDINARY) -> list[Report]: ...

    def evaluate(self, round: int, downs: Mapping[int, Any], on: Split = "test") -> list[Evaluation]: ...

    def examine(self, round: int, downs: Mapping[int, Any]) -> dict[int, Hits]:
        """Clients on the balanced test set, with what they hold at that moment."""
        ...

    def state(self) -> dict[int, Any]:
        """What each client that has joined keeps."""
        ...

    def restore(self, state: dict[int, Any]) -> None:
        """Put that back."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...
