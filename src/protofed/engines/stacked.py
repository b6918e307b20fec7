"""The stacked engine: clients that share a net train at once. It gives what `loop` gives, to rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofed.engines.engine import ORDINARY, Report, RoundPlan
from protofed.engines.loop import Loop
from protofed.engines.replay import Replayed
from protofed.engines.stack_training import Step, train_together, tree_shapes
from protofed.training import as_trained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protofed.core import AnyMethod
    from protofed.experiment.members import Members
    from protofed.training import TrainSection

LARGEST_STACK = 10
"""How many clients are stacked: a fixed rule, so that results do not depend on how many processes there are."""


class Stacked(Loop):
    """Clients with equal nets in stacks of up to ten; those with batch norm alone, as padding would enter it."""

    def __init__(
        self, members: Members, method: AnyMethod, training: TrainSection, seed: int, compiled: bool = False
    ) -> None:
        super().__init__(members, method, training, seed)
        self.steps: dict[Any, Step] = {}
        self.compiled = compiled

    def chunks(self, round: int, downs: Mapping[int, Any], asked: RoundPlan = ORDINARY) -> list[list[int]]:
        """Who is trained together: by net and by the shapes of what they receive and keep, then dealt out evenly."""
        groups: dict[Any, list[int]] = {}
        for number, down in downs.items():
            client, kept = self.client(number, round)
            alone = number if client.net.alone else None
            trains = tuple(phase.trains for phase in self.method.phases(self.epochs(number, asked)))
            groups.setdefault((id(client.net), alone, trains, tree_shapes(down), tree_shapes(kept)), []).append(number)
        made = []
        for members in groups.values():
            count = -(-len(members) // LARGEST_STACK)
            largest = sorted(members, key=lambda number: (-len(self.members.train[number]), number))
            turns = [*range(count), *reversed(range(count))]  # back and forth: every stack gets large and small ones
            made += [
                [number for place, number in enumerate(largest) if turns[place % (2 * count)] == stack]
                for stack in range(count)
            ]
        return made

    def train_chunk(self, round: int, downs: Mapping[int, Any], asked: RoundPlan = ORDINARY) -> list[Report]:
        """Train one stack."""
        if len(downs) == 1:
            return super().train_chunk(round, downs, asked)
        clients, kepts = zip(*(self.client(number, round) for number in downs), strict=True)
        starts = [self.method.receive(kept, down) for kept, down in zip(kepts, downs.values(), strict=True)]
        for client, start in zip(clients, starts, strict=True):
            client.net.check(start)
        ready = {id(down): self.method.prepare(down) for down in {id(down): down for down in downs.values()}.values()}
        phases = [self.method.phases(self.epochs(number, asked)) for number in downs]
        outcomes = train_together(
            self.method,
            clients,
            starts,
            [ready[id(down)] for down in downs.values()],
            kepts,
            phases,
            self.training,
            self.step_for,
        )
        return [
            self.finished(
                number, as_trained(client, kept, downs[number], start, outcome, self.training), outcome, asked
            )
            for number, client, kept, start, outcome in zip(downs, clients, kepts, starts, outcomes, strict=True)
        ]

    def step_for(self, key: Any, build: Callable[[], Step]) -> Step:
        """The step for stacks of a kind."""
        if key not in self.steps:
            self.steps[key] = Replayed(build(), self.compiled)
        return self.steps[key]
