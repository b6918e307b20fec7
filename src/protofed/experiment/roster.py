"""Who takes part in a round: drawn from the seed and the round, never from what happened before."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from protofed import draws

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.members import Members


class Roster(NamedTuple):
    """The clients of a round, by number, in order."""

    sampled: list[int]  # who is sent something
    clients: list[int]  # who trains: those who are late may be left out
    slow: dict[int, int]  # who of them is slow, and how many epochs it does


def draw_roster(config: Config, members: Members, number: int) -> Roster:
    """The clients of round `number`, from 0."""
    sampled, system = draw_clients(config, members, number), config.system
    generator = draws.generator(config.run.seed, "slow", number, None)
    places = torch.randperm(len(sampled), generator=generator)[: round(system.slow * len(sampled))].tolist()
    epochs = torch.randint(config.train.epochs + 1, (len(places),), generator=generator).tolist()
    slow = {sampled[place]: done for place, done in sorted(zip(places, epochs, strict=True))}
    if system.late == "drop":
        return Roster(sampled, [client for client in sampled if client not in slow], {})
    return Roster(sampled, sampled, slow)


def clients_per_round(config: Config, clients: int) -> int:
    """How many clients a round has."""
    wanted = config.run.sample
    return wanted if isinstance(wanted, int) else max(1, round(wanted * clients))


def draw_clients(config: Config, members: Members, number: int) -> list[int]:
    """Who is drawn: everybody alike, or in proportion to their examples, who then have some."""
    clients, count = len(members), clients_per_round(config, len(members))
    generator = draws.generator(config.run.seed, "sample", number, None)
    sizes = torch.tensor([len(train) for train in members.train], dtype=torch.double)
    if config.run.sampling == "uniform" or not sizes.any():
        return sorted(torch.randperm(clients, generator=generator)[:count].tolist())
    return sorted(torch.multinomial(sizes, min(count, int((sizes > 0).sum())), generator=generator).tolist())
