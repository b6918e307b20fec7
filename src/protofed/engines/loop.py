"""The loop engine: one client after the other. Slow and plain: it is the specification of every other engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from protofed.core import AnyMethod, Client, Params, Trained, Upload
from protofed.engines.engine import ORDINARY, Evaluation, Report, RoundPlan, Split
from protofed.engines.memory import keep_freed_memory
from protofed.engines.scoring import Hits, class_hits, fitting, tally
from protofed.training import params_for_testing, take_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protofed.examples import Examples
    from protofed.experiment.members import Members
    from protofed.training import Outcome, TrainSection


class Loop:
    """Clients one by one, in the order of their numbers."""

    def __init__(self, members: Members, method: AnyMethod, training: TrainSection, seed: int) -> None:
        self.members, self.method, self.training, self.seed = members, method, training, seed
        self.kept: dict[int, Any] = {}
        keep_freed_memory()

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

    def chunks(self, round: int, downs: Mapping[int, Any], asked: RoundPlan = ORDINARY) -> list[list[int]]:
        """Who is trained together: nobody."""
        return [[number] for number in downs]

    def train(self, round: int, downs: Mapping[int, Any], asked: RoundPlan = ORDINARY) -> list[Report]:
        """Train the clients that were sent something, and return what they send back."""
        chunks = [{number: downs[number] for number in chunk} for chunk in self.chunks(round, downs, asked)]
        return [report for chunk in chunks for report in self.train_chunk(round, chunk, asked)]

    def train_chunk(self, round: int, downs: Mapping[int, Any], asked: RoundPlan = ORDINARY) -> list[Report]:
        """Train clients that are trained together."""
        return [self.train_one(round, number, down, asked) for number, down in downs.items()]

    def train_one(self, round: int, number: int, down: Any, asked: RoundPlan) -> Report:
        client, kept = self.client(number, round)
        training = replace(self.training, epochs=self.epochs(number, asked))
        return self.finished(number, *take_part(self.method, client, kept, down, training), asked)

    def epochs(self, number: int, asked: RoundPlan) -> int:
        """How long a client trains."""
        return asked.epochs.get(number, self.training.epochs)

    def finished(self, number: int, trained: Trained[Any, Any], outcome: Outcome, asked: RoundPlan) -> Report:
        """What a client keeps stays here; what it sends, and how its training went, is reported."""
        kept = self.kept[number] = self.method.keep(trained)
        work = self.epochs(number, asked) / max(1, self.training.epochs)
        upload = Upload(number, trained.examples, outcome.steps, work, self.method.upload(trained))
        terms = {name: float(value) for name, value in outcome.terms.items()}
        hits = self.hits(trained, trained.params, trained.down, kept) if number in asked.examined else {}
        return Report(upload, terms, outcome.seen, hits)

    def hits(self, client: Client, params: Params, down: Any, kept: Any) -> Hits:
        """A model on the balanced test set."""
        net, parts = client.net, fitting(self.members.balanced, client.net.shape)
        return class_hits(lambda x: self.method.predict(net, params, x, down, kept), parts, net.classes)

    @torch.no_grad()
    def evaluate(self, round: int, downs: Mapping[int, Any], on: Split = "test") -> list[Evaluation]:
        """Each client on its own test or validation set with what it holds at that moment."""
        return [self.evaluate_one(round, number, down, on) for number, down in downs.items()]

    def examine(self, round: int, downs: Mapping[int, Any]) -> dict[int, Hits]:
        """Each client on the balanced test set with what it holds at that moment."""
        found = {}
        for number, down in downs.items():
            client, kept = self.client(number, round)
            found[number] = self.hits(
                client, params_for_testing(self.method, client, kept, down, self.training), down, kept
            )
        return found

    def evaluate_one(self, round: int, number: int, down: Any, on: Split) -> Evaluation:
        client, kept = self.client(number, round)
        params = params_for_testing(self.method, client, kept, down, self.training)
        examples: Examples = getattr(self.members, on)[number]
        correct = tally(lambda x: self.method.predict(client.net, params, x, down, kept), examples)
        return Evaluation(number, correct, len(examples))
