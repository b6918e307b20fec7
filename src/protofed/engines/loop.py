"""The loop engine: one client after the other. It is simple and slow, and the specification of every other engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from protofed.contract import checked, is_ours
from protofed.core import AnyMethod, Client, Params, Trained, Upload
from protofed.devices import moved
from protofed.engines.engine import (
    ORDINARY,
    Clients,
    Evaluation,
    Report,
    RoundPlan,
    Split,
    hold_in_memory,
    ignore_progress,
)
from protofed.engines.loss_check import check_loss
from protofed.engines.replay import PATIENCE, Replayed
from protofed.engines.scoring import (
    Hits,
    class_hits,
    client_scores,
    pixel_counts,
    tally,
    with_head_among,
    with_input_shape,
)
from protofed.training import Bind, Outcome, TrainSection, params_for_testing, take_part

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from torch import Tensor

    from protofed.core import Net, Scores
    from protofed.examples import Examples


_LARGEST_RECORDED = 500e6
"""Multiplications per step above which Python's share of a step is too small for a recording."""
Step = Callable[..., Any]
"""One step of a client, or of all clients of a stack."""


class Loop:
    """Trains clients one by one, in the order of their numbers.

    `patience`: how many steps of a kind run as they are before one is recorded and replayed; None: none is recorded.
    """

    failures: Mapping[int, str] = {}  # clients in this process do not fail one by one

    def __init__(
        self,
        clients: Clients,
        method: AnyMethod,
        training: TrainSection,
        seed: int,
        patience: int | None = PATIENCE,
    ) -> None:
        self.clients, self.method, self.training, self.seed = clients, method, training, seed
        self.patience = patience
        self.steps: dict[Any, Replayed] = {}
        self.kept: MutableMapping[int, Any] = {}
        """What the clients keep that have trained."""
        self.tried: set[tuple[int, bool]] = set()
        """The nets on which the loss of another author was tried, and whether for a stack."""
        self.on_trained: Callable[[int], None] = ignore_progress
        self.hold: Callable[[Report], Report] = hold_in_memory

    def client(self, number: int, round: int) -> tuple[Client, Any]:
        """A client and what it keeps. A client that has never trained joins again each time: it keeps nothing yet."""
        client = self.clients.client(self.seed, round, number)
        if number in self.kept:
            return client, self.kept[number]
        return client, self.state_before_training(self.clients.client(self.seed, 0, number))

    def state_before_training(self, client: Client) -> Any:
        """What a client keeps that has not trained yet."""
        return checked(self.method, "join", self.method.join(client))

    def state(self) -> Mapping[int, Any]:
        return self.kept

    def update(self, kept: Mapping[int, Any]) -> None:
        self.kept.update(kept)

    def restore(self, kept: MutableMapping[int, Any]) -> None:
        self.kept = kept

    def close(self) -> None:
        pass

    def groups(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[list[int]]:
        """Every client trains alone."""
        return [[number] for number in downs]

    def train(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[Report]:
        """Train all clients that were sent a message, and return what they send back."""
        reports: list[Report] = []
        for group in self.groups(round, downs, plan):
            reports += map(self.hold, self.train_group(round, {number: downs[number] for number in group}, plan))
            self.on_trained(len(group))
        return reports

    def train_group(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[Report]:
        """Train the clients of one group."""
        return [self.train_one(round, number, down, plan) for number, down in downs.items()]

    def train_one(self, round: int, number: int, down: Any, plan: RoundPlan) -> Report:
        """Train one client."""
        client, kept = self.client(number, round)
        self.try_loss(client, kept, down)
        training = self.training.with_work(self.work(number, plan))
        return self.finish(number, *take_part(self.method, client, kept, down, training, self.binder(client.net)), plan)

    def binder(self, net: Net) -> Bind:
        """How `train_client` binds its gradient: it is recorded if the net is small and follows the rules of stacks."""
        can_be_traced = is_ours(self.method) and not net.trains_alone
        if self.patience is None or not can_be_traced or net.cost * self.training.batch > _LARGEST_RECORDED:
            return partial

        def bind(gradient: Callable[..., Any], *fixed: Any) -> Callable[..., Any]:
            return self.step_for(("gradient", id(net)), lambda: gradient).bound(*fixed)

        return bind

    def step_for(self, key: Any, build: Callable[[], Step]) -> Replayed:
        """The step of a kind: built once, then used again."""
        if key not in self.steps:
            self.steps[key] = Replayed(build(), PATIENCE if self.patience is None else self.patience)
        return self.steps[key]

    def try_loss(self, client: Client, kept: Any, down: Any, stacked: bool = False) -> None:
        """Raise an error if the loss of another author draws or, in a stack, is impure or counts padding."""
        key = (id(client.net), stacked)
        if is_ours(self.method) or key in self.tried:
            return
        start, prepared = self.method.receive(kept, down), checked(self.method, "prepare", self.method.prepare(down))
        client.net.check(start)
        if check_loss(self.method, client, start, prepared, kept, stacked):
            self.tried.add(key)

    def work(self, number: int, plan: RoundPlan) -> float:
        """How much a client trains: steps if the experiment counts them, or epochs."""
        return plan.work.get(number, self.training.work)

    def finish(self, number: int, trained: Trained[Any, Any], outcome: Outcome, plan: RoundPlan) -> Report:
        """Store what a client keeps, and report what it uploads and how its training went."""
        kept = self.kept[number] = checked(self.method, "keep", self.method.keep(trained))
        work = self.work(number, plan) / self.training.work if self.training.work else 0.0
        message = checked(self.method, "upload", self.method.upload(trained))
        upload = Upload(number, trained.num_examples, outcome.steps, work, message, trained.round)
        terms = {name: float(value) for name, value in outcome.terms.items()}
        hits = self.hits(trained, trained.params, trained.down, kept) if number in plan.examined else {}
        return Report(upload, terms, outcome.examples_seen, hits)

    def hits(self, client: Client, params: Params, down: Any, kept: Any) -> Hits:
        """The correct predictions of a model on the balanced test set."""
        net, parts = client.net, with_input_shape(self.clients.balanced, client.net.shape)
        params, down, kept = moved((params, down, kept), client.data.for_steps.device)
        return class_hits(client_scores(self.method, net, params, down, kept), parts, net.classes)

    def examine(self, round: int, downs: Mapping[int, Any]) -> dict[int, Hits]:
        """Evaluate clients on the balanced test set, with the models they hold at that moment."""
        hits = {}
        for number, down in downs.items():
            client, kept = self.client(number, round)
            params = params_for_testing(self.method, client, kept, down, self.training)
            hits[number] = self.hits(client, params, down, kept)
        return hits

    @torch.no_grad()
    def evaluate(self, round: int, downs: Mapping[int, Any], on: Split = "test") -> list[Evaluation]:
        """Evaluate clients on their own test or validation sets, with the models they hold at that moment."""
        return [self.evaluate_one(round, number, down, on) for number, down in downs.items()]

    def evaluate_one(self, round: int, number: int, down: Any, on: Split) -> Evaluation:
        """Evaluate one client."""
        client, kept = self.client(number, round)
        params = params_for_testing(self.method, client, kept, down, self.training)
        params, down, kept = moved((params, down, kept), client.data.for_steps.device)
        net, own = client.net, client.data.class_counts(client.net.classes) > 0  # the classes it trains on

        def predict(x: Tensor) -> Scores:
            scores = with_head_among(self.method.predict(net, params, x, down, kept), own)
            return net.at_image_size(scores, len(x))

        examples: Examples = (self.clients.test if on == "test" else self.clients.validation)[number]
        if examples.mask is None:
            return Evaluation(number, tally(predict, examples), len(examples))
        pixels = pixel_counts(predict, [examples], net.classes)
        correct = {way: sum(row[label] for label, row in enumerate(counts)) for way, counts in pixels.items()}
        return Evaluation(number, correct, int(examples.class_counts(net.classes).sum()), pixels)
