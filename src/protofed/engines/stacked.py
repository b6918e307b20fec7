"""The stacked engine: clients that share a net train at once. It gives what `loop` gives, up to rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofed.engines.engine import ORDINARY, Report, RoundPlan
from protofed.engines.loop import Loop
from protofed.engines.stack_training import Trainee, train_together
from protofed.engines.trees import tree_shapes
from protofed.training import as_trained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protofed.core import Client, Phase

LARGEST_STACK = 10
"""Clients per stack. It is fixed, so that results do not depend on the number of processes."""


class Stacked(Loop):
    """Trains clients with equal nets in stacks of up to 10. Nets with batch norm train alone: it would see padding."""

    def groups(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[list[int]]:
        """Clients with the same net, and equal shapes of what they receive and keep, dealt evenly into stacks."""
        alike: dict[Any, list[int]] = {}
        for number, down in downs.items():
            client, kept = self.client(number, round)
            alone = number if client.net.trains_alone else None
            phases = tuple(phase._replace(epochs=0) for phase in self.phases(client, plan))
            alike.setdefault((id(client.net), alone, phases, tree_shapes(down), tree_shapes(kept)), []).append(number)
        stacks = []
        for numbers in alike.values():
            count = -(-len(numbers) // LARGEST_STACK)
            by_size = sorted(numbers, key=lambda number: (-len(self.clients.train[number]), number))
            turns = [*range(count), *reversed(range(count))]  # back and forth: every stack gets large and small clients
            stacks += [
                [number for position, number in enumerate(by_size) if turns[position % (2 * count)] == stack]
                for stack in range(count)
            ]
        return stacks

    def train_group(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[Report]:
        """Train one stack."""
        if len(downs) == 1:
            return super().train_group(round, downs, plan)
        clients, kepts = zip(*(self.client(number, round) for number in downs), strict=True)
        for client, kept, down in zip(clients, kepts, downs.values(), strict=True):
            self.try_loss(client, kept, down, stacked=True)
        starts = [self.method.receive(kept, down) for kept, down in zip(kepts, downs.values(), strict=True)]
        for client, start in zip(clients, starts, strict=True):
            client.net.check(start)
        different = {id(down): down for down in downs.values()}
        prepared = {key: self.method.prepare(down) for key, down in different.items()}
        trainees = [
            Trainee(client, start, prepared[id(down)], kept, self.phases(client, plan))
            for client, start, kept, down in zip(clients, starts, kepts, downs.values(), strict=True)
        ]
        outcomes = train_together(self.method, trainees, self.training, self.step_for)
        reports = []
        for number, client, kept, start, outcome in zip(downs, clients, kepts, starts, outcomes, strict=True):
            trained = as_trained(client, kept, downs[number], start, outcome, self.training)
            reports.append(self.finish(number, trained, outcome, plan))
        return reports

    def phases(self, client: Client, plan: RoundPlan) -> tuple[Phase, ...]:
        """The phases of a client's training."""
        assert client.client is not None
        training = self.training.with_work(self.work(client.client, plan))
        return self.method.phases(training.local_epochs(client.num_examples, client.net.has_batch_norm))
