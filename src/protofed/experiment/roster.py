"""The clients of a round. They are drawn from the seed and the number of the round alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from protofed import draws

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.members import Members


class Roster(NamedTuple):
    """The clients that take part in one round, in the order of their numbers."""

    sampled: list[int]  # the clients that get the server's message
    clients: list[int]  # the clients that train: the sampled ones, without slow ones if these are dropped
    slow: dict[int, float]  # the epochs (or steps, with train.steps) of each slow client that trains


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


def draw_clients(config: Config, members: Members, number: int) -> list[int]:
    """The sampled clients of round `number`, with equal probabilities or in proportion to their training examples.

    In proportion to their examples, a client without examples is never drawn, unless no client has any.
    """
    clients, count = len(members), clients_per_round(config, len(members))
    generator = draws.generator(config.run.seed, "sample", number, None)
    sizes = torch.tensor([len(train) for train in members.train], dtype=torch.double)
    if config.run.sampling == "uniform" or not sizes.any():
        return sorted(torch.randperm(clients, generator=generator)[:count].tolist())
    return sorted(torch.multinomial(sizes, min(count, int((sizes > 0).sum())), generator=generator).tolist())
