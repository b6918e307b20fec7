"""The clients of a round. They are drawn from the seed and the number of the round alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from protofed import draws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofed.experiment.config import Config
    from protofed.experiment.members import Members

_TESTED_PER_ROUND = 1000
"""Tests of clients per round, on average, that `run.eval_every = 0` allows."""


class Roster(NamedTuple):
    """The clients that take part in one round, in the order of their numbers."""

    sampled: list[int]  # the clients that get the server's message
    clients: list[int]  # the clients that train: the sampled ones, without slow ones if these are dropped
    slow: dict[int, float]  # the epochs (or steps, with train.steps) of each slow client that trains

    def columns_of_slow_clients(self) -> dict[str, Any]:
        """The columns of rounds.jsonl about slow clients."""
        return {
            "slow": {str(client): amount for client, amount in self.slow.items()},
            "late": [client for client in self.sampled if client not in self.clients],
        }


def draw_roster(config: Config, members: Members, number: int) -> Roster:
    """The clients of round `number`; the first round is 0."""
    sampled, system = draw_clients(config, members, number), config.system
    generator = draws.generator(config.run.seed, "slow", number, None)
    positions = torch.randperm(len(sampled), generator=generator)[: round(system.slow * len(sampled))].tolist()
    planned = config.train.work
    amounts = torch.randint(math.ceil(planned) + 1, (len(positions),), generator=generator).tolist()
    slow = {
        sampled[position]: min(amount, planned) for position, amount in sorted(zip(positions, amounts, strict=True))
    }
    if system.late == "drop":
        return Roster(sampled, [client for client in sampled if client not in slow], {})
    return Roster(sampled, sampled, slow)


def clients_per_round(config: Config, clients: int) -> int:
    """The number of clients per round, of `clients` clients in all."""
    sample = config.run.sample
    return sample if isinstance(sample, int) else max(1, round(sample * clients))


def trained_per_round(config: Config, clients: int) -> int:
    """The number of clients that train per round, of `clients` in all: without slow ones if these are dropped."""
    sampled, system = clients_per_round(config, clients), config.system
    return sampled - round(system.slow * sampled) if system.late == "drop" else sampled


def clients_to_test(config: Config, clients: int) -> Sequence[int]:
    """The clients that are tested, of `clients` in all. They are the same in every round and for all methods."""
    sampled = config.eval.clients_sampled
    count = sampled if isinstance(sampled, int) else max(1, round(sampled * clients))
    if count >= clients:
        return range(clients)
    generator = draws.generator(config.run.seed, "tested", None, None)
    return sorted(torch.randperm(clients, generator=generator)[:count].tolist())


def sample_problems(config: Config, clients: int) -> list[str]:
    """What is wrong with the numbers of clients that are sampled, of `clients` clients in all."""
    numbers = {"run.sample": config.run.sample, "eval.clients_sampled": config.eval.clients_sampled}
    return [
        f"{key}: got {number}, but there are {clients} clients. Use {clients} or fewer."
        for key, number in numbers.items()
        if isinstance(number, int) and number > clients
    ]


def rounds_between_tests(config: Config, clients: int) -> int:
    """The number of rounds from one test to the next that `run.eval_every = 0` stands for."""
    return max(1, len(clients_to_test(config, clients)) // _TESTED_PER_ROUND)


def draw_clients(config: Config, members: Members, number: int) -> list[int]:
    """The sampled clients of round `number`, with equal probabilities or in proportion to their training examples.

    In proportion to their examples, a client without examples is never drawn, unless no client has any.
    """
    clients, count = len(members), clients_per_round(config, len(members))
    generator = draws.generator(config.run.seed, "sample", number, None)
    uniform = config.run.sampling == "uniform"
    sizes = torch.zeros(0) if uniform else torch.tensor(list(map(len, members.train)), dtype=torch.double)
    if uniform or not sizes.any():
        return sorted(torch.randperm(clients, generator=generator)[:count].tolist())
    return sorted(torch.multinomial(sizes, min(count, int((sizes > 0).sum())), generator=generator).tolist())
