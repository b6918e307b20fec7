"""The loop engine: one client after the other. Slow and plain: it is the specification of every other engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from protofed.core import AnyMethod, Client, Trained, Upload
from protofed.engines.engine import Part, Report, Score
from protofed.local import take_part, tested
from protofed.measures.accuracy import tally

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protofed.data.examples import Examples
    from protofed.local import Outcome, Training
    from protofed.members import Members


class Loop:
    """Clients one by one, in the order of their numbers."""

    def __init__(self, members: Members, method: AnyMethod, training: Training, seed: int) -> None:
        self.members, self.method, self.training, self.seed = members, method, training, seed
        self.kept: dict[int, Any] = {}

    def client(self, number: int, round: int) -> tuple[Client, Any]:
        """A client, joined if it had not yet, and what it keeps."""
        if number not in self.kept:
            self.kept[number] = self.method.join(self.members.client(self.seed, 0, number))
        return self.members.client(self.seed, round, number), self.kept[number]

    def state(self) -> dict[int, Any]:
        return self.kept

    def restore(self, state: dict[int, Any]) -> None:
        self.kept = dict(state)

    def close(self) -> None:
        pass

    def chunks(self, round: int, downs: Mapping[int, Any]) -> list[list[int]]:
        """Who is trained together: nobody."""
        return [[number] for number in downs]

    def train(self, round: int, downs: Mapping[int, Any]) -> list[Report]:
        """Train the clients that were sent something, and return what they send back."""
        chunks = self.chunks(round, downs)
        return [one for chunk in chunks for one in self.train_chunk(round, {number: downs[number] for number in chunk})]

    def train_chunk(self, round: int, downs: Mapping[int, Any]) -> list[Report]:
        """Train clients that are trained together."""
        return [self.train_one(round, number, down) for number, down in downs.items()]

    def train_one(self, round: int, number: int, down: Any) -> Report:
        client, kept = self.client(number, round)
        return self.finished(number, *take_part(self.method, client, kept, down, self.training))

    def finished(self, number: int, trained: Trained[Any, Any], outcome: Outcome) -> Report:
        """What a client keeps stays here; what it sends, and how its training went, is reported."""
        self.kept[number] = self.method.keep(trained)
        upload = Upload(number, trained.examples, outcome.steps, 1.0, self.method.upload(trained))
        return Report(upload, {name: float(value) for name, value in outcome.terms.items()}, outcome.seen)

    @torch.no_grad()
    def evaluate(self, round: int, downs: Mapping[int, Any], on: Part = "test") -> list[Score]:
        """Each client on its own test or validation set with what it holds at that moment."""
        return [self.evaluate_one(round, number, down, on) for number, down in downs.items()]

    def evaluate_one(self, round: int, number: int, down: Any, on: Part) -> Score:
        client, kept = self.client(number, round)
        params = tested(self.method, client, kept, down, self.training)
        examples: Examples = getattr(self.members, on)[number]
        correct = tally(lambda x: self.method.predict(client.net, params, x, down, kept), examples)
        return Score(number, correct, len(examples))
