"""Partitions by origin: the domain, hospital or subject that examples come from, or an earlier run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protofed.data.partitions.base import Holding, Labels, deal_holdings
from protofed.draws import random_state
from protofed.errors import UserError


@dataclass(frozen=True)
class ByDomain:
    """Every client has data of one domain; a domain with several clients is shared out evenly among them."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        domains = len(_origins_of(labels, "by_domain"))
        clients = clients or domains
        if clients < domains:
            raise UserError(
                f"data.clients: got {clients}, but there are {domains} domains ({', '.join(labels.groups)}). "
                f"Use {domains} or more."
            )
        draw = random_state(seed, "partition", "by_domain")
        shares = np.zeros((domains, clients))
        shares[np.arange(clients) % domains, np.arange(clients)] = 1
        return deal_holdings(
            labels._replace(train=labels.train_group, test=labels.test_group),
            shares / shares.sum(1, keepdims=True),
            draw,
        )


@dataclass(frozen=True)
class Natural:
    """Clients as the data have them: subjects, hospitals, writers; with fewer clients, the first ones."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        there = len(_origins_of(labels, "natural"))
        if clients > there:
            raise UserError(f"data.clients: got {clients}, but the data have {there}. Use {there} or fewer.")
        return [
            Holding(np.flatnonzero(labels.train_group == client), np.flatnonzero(labels.test_group == client))
            for client in range(clients or there)
        ]


@dataclass(frozen=True)
class FromFile:
    """Who held what in an earlier run: `path` is its partition.json."""

    path: str = ""
    """the file"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        path = Path(self.path).expanduser()
        if not self.path or not path.is_file():
            raise UserError(f"partition.path: got {self.path!r}; must be the partition.json of a run.")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))["clients"]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UserError(f"{path} is not a complete partition.json: {problem!r}.") from problem
        if clients not in (0, len(stored)):
            raise UserError(f"data.clients: got {clients}, but {path} has {len(stored)}. Leave it out.")
        try:
            parts = [
                Holding(
                    np.array(one["train"], int),
                    np.array(one["test"], int),
                    np.array(one["validation"], int),
                    one["own"],
                )
                for one in stored
            ]
        except (KeyError, TypeError, ValueError) as problem:
            raise UserError(f"{path} is not a complete partition.json: {problem!r}.") from problem
        for part in parts:
            for positions, there in (
                (part.train, len(labels.train)),
                (part.validation, len(labels.train)),
                (part.test, len(labels.train if part.own else labels.test)),
            ):
                if len(positions) and not 0 <= positions.min() <= positions.max() < there:
                    raise UserError(
                        f"{path} is of other data: it has position {positions.max()} of {there:,} examples."
                    )
        return parts


def _origins_of(labels: Labels, partition: str) -> tuple[str, ...]:
    """Where the data come from, if that is known."""
    if not labels.groups:
        raise UserError(
            f"partition.name: got {partition}, but these data do not say where each example comes from. "
            "Use another partition, such as dirichlet."
        )
    return labels.groups
