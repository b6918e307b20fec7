"""What an engine offers, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from protofed.core import AnyMethod, Client, Upload
    from protofed.engines.scoring import Counts, Hits
    from protofed.examples import Examples

Split = Literal["test", "validation"]
"""The examples that a client is evaluated on."""


class Clients(Protocol):
    """What an engine needs to know of the federation; `experiment.members.Members` provides it."""

    @property
    def train(self) -> Sequence[Examples]: ...

    @property
    def test(self) -> Sequence[Examples]: ...

    @property
    def validation(self) -> Sequence[Examples]: ...

    @property
    def balanced(self) -> Sequence[Examples]: ...

    def client(self, seed: int, round: int, number: int) -> Client:
        """The site where the hooks of a client run."""
        ...


class RoundPlan(NamedTuple):
    """Exceptions for single clients in a round."""

    examined: Collection[int] = ()  # clients whose model is scored on the balanced test set right after training
    work: Mapping[int, float] = {}  # clients that do another number of epochs, or of steps, than [train] says


ORDINARY = RoundPlan()


def ignore_progress(trained: int) -> None:
    """What an engine calls while nobody observes its progress."""


class Report(NamedTuple):
    """A client's round: what it uploads, and the terms of its loss, summed over the examples it trained on."""

    upload: Upload[Any]
    terms: dict[str, float]
    examples_seen: float
    hits: Hits
    """correct predictions on the balanced test set, if the client was examined"""


def hold_in_memory(report: Report) -> Report:
    """What an engine does with reports while nobody limits its memory."""
    return report


class Evaluation(NamedTuple):
    """A client's test: the number of correct predictions per way of predicting, out of `total`.

    If every pixel has a label, both count pixels, and `pixels` has them by true and predicted class.
    """

    client: int
    correct: dict[str, int]
    total: int
    pixels: dict[str, Counts] = {}


class Engine(Protocol):
    """Trains and evaluates clients, and holds what they keep. Messages are given by client number."""

    on_trained: Callable[[int], None]
    """called during `train` with the number of clients that have just been trained"""
    hold: Callable[[Report], Report]
    """called during `train` with every report as soon as it is there; it may replace the upload by one on disk"""

    @property
    def failures(self) -> Mapping[int, str]:
        """The clients that the last call of `train` has no report of, and why; {} if clients cannot fail."""
        ...

    def train(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[Report]:
        """Train all clients that were sent a message, and return what they send back."""
        ...

    def evaluate(self, round: int, downs: Mapping[int, Any], on: Split = "test") -> list[Evaluation]:
        """Evaluate clients on their own test or validation sets, with the models they hold at that moment."""
        ...

    def examine(self, round: int, downs: Mapping[int, Any]) -> dict[int, Hits]:
        """Evaluate clients on the balanced test set, with the models they hold at that moment."""
        ...

    def state(self) -> Mapping[int, Any]:
        """What each client that has trained keeps."""
        ...

    def restore(self, kept: MutableMapping[int, Any]) -> None:
        """Replace what all clients keep. The engine writes to this mapping from now on."""
        ...

    def close(self) -> None:
        """Release processes and memory."""
        ...


class GroupEngine(Engine, Protocol):
    """An engine whose work can be given out in groups of clients, as `Pool` does."""

    @property
    def method(self) -> AnyMethod: ...

    def groups(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[list[int]]:
        """Which clients are trained together. Results depend on it, so it must not depend on the number of workers."""
        ...

    def train_group(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[Report]:
        """Train the clients of one group."""
        ...

    def update(self, kept: Mapping[int, Any]) -> None:
        """Replace what these clients keep."""
        ...
