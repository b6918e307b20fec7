"""Partitions by class: which classes a client holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt

from protofed.data.partitions.base import (
    DEFAULT_CLIENTS,
    Holding,
    Labels,
    assign_classes,
    deal_holdings,
    require_classes,
    require_examples,
    require_test_set,
)
from protofed.draws import random_state
from protofed.errors import UserError

_DRAWS = 1000
"""The largest number of draws of Dirichlet shares."""


@dataclass(frozen=True)
class NWay:
    """FedProto's n-way k-shot split: a client has about `ways` classes and about `shots` examples of each."""

    ways: Annotated[int, Ge(1)] = 3
    """number of classes per client, ± stdev"""
    shots: Annotated[int, Ge(1)] = 8
    """number of training examples per class and client, ± stdev"""
    stdev: Annotated[int, Ge(0)] = 2
    """ways and shots are drawn uniformly within ± this number (the paper's stdev); at least 2 classes and 1 shot"""
    test: Annotated[int, Ge(1)] = 10
    """number of test examples per class and client"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        train, test, classes, clients = labels.train, labels.test, labels.classes, clients or DEFAULT_CLIENTS
        require_classes(self.ways, classes)
        require_examples(clients, len(train))
        require_test_set("nway", test)
        draw = random_state(seed, "partition", "nway")
        fewest, most = max(min(2, self.ways), self.ways - self.stdev), min(classes, self.ways + self.stdev)
        ways = draw.randint(fewest, most + 1, clients)
        shots = draw.randint(max(1, self.shots - self.stdev), self.shots + self.stdev + 1, clients)
        client_classes = [np.sort(draw.choice(classes, count, replace=False)) for count in ways]
        train_pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
        test_pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in range(classes):
            pool, test_pool = (draw.permutation(np.flatnonzero(part == label)) for part in (train, test))
            holders = [client for client in range(clients) if label in client_classes[client]]
            needed = int(shots[holders].sum())
            if needed > len(pool):
                fits = len(pool) // len(holders) - self.stdev
                raise UserError(
                    f"partition.shots: got {self.shots}, but class {label} has {len(pool)} training examples and the "
                    f"{len(holders)} clients that hold it need {needed}. "
                    f"Use {f'{fits} shots or fewer, ' if fits > 0 else ''}fewer clients or fewer ways."
                )
            if self.test > len(test_pool):
                raise UserError(
                    f"partition.test: got {self.test}, but class {label} has {len(test_pool)} test examples. "
                    f"Use {len(test_pool)} or fewer."
                )
            ends = np.cumsum(shots[holders])
            for number, (client, end) in enumerate(zip(holders, ends, strict=True)):
                train_pieces[client].append(pool[end - shots[client] : end])
                # Test pieces are disjoint until the class is used up, then start again. No client gets an image twice.
                positions = np.arange(number * self.test, (number + 1) * self.test) % len(test_pool)
                test_pieces[client].append(test_pool[positions])
        return [
            Holding(np.sort(np.concatenate(train_part)), np.sort(np.concatenate(test_part)))
            for train_part, test_part in zip(train_pieces, test_pieces, strict=True)
        ]


@dataclass(frozen=True)
class Dirichlet:
    """Each class is divided by Dirichlet(alpha). As in FedNH's code, no client above its even share gets more."""

    alpha: Annotated[float, Gt(0)] = 0.3
    """concentration of the Dirichlet distribution; smaller values give each client fewer classes"""
    smallest: Annotated[int, Ge(0)] = 10
    """least number of training examples per client; shares are drawn again until every client has it"""
    capped: bool = True
    """whether clients above their even share of all examples get no more; false: plain Dirichlet shares"""
    min_classes: Annotated[int, Ge(0)] = 0
    """least number of classes per client; shares are drawn again until every client has it (FedNH's code: 2)"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        train, classes, clients = labels.train, labels.classes, clients or DEFAULT_CLIENTS
        if self.min_classes > classes:
            raise UserError(
                f"partition.min_classes: got {self.min_classes}, but there are {classes} classes. "
                f"Use {classes} or fewer."
            )
        draw = random_state(seed, "partition", "dirichlet")
        require_examples(clients, len(train), max(1, self.smallest))
        too_small = 0
        for _ in range(_DRAWS):
            shares = self.shares(train, classes, clients, draw)
            parts = deal_holdings(labels, shares, draw)
            if min(len(part.train) for part in parts) < self.smallest:
                too_small += 1
            elif min(len(np.unique(train[part.train])) for part in parts) >= self.min_classes:
                return parts
        key = "smallest" if too_small == _DRAWS else "min_classes"
        fewer = "fewer" if key == "smallest" else f"fewer, or fewer than {self.smallest} examples"
        raise UserError(
            f"partition.{key}: got {getattr(self, key)}, but in each of {_DRAWS:,} draws of Dirichlet({self.alpha}) "
            f"over {clients} clients and {len(train)} examples some client had {fewer}. "
            "Use a smaller number, a larger alpha or fewer clients."
        )

    def shares(self, labels: np.ndarray, classes: int, clients: int, draw: np.random.RandomState) -> np.ndarray:
        """The share [classes, clients] of each class that goes to each client."""
        sizes, shares = np.zeros(clients), np.zeros((classes, clients))
        for label in range(classes):
            share = draw.dirichlet(np.full(clients, self.alpha))
            if not np.isfinite(share).all():  # alpha is so small that the draw underflows: one client gets the class
                share = np.eye(clients)[draw.randint(clients)]
            below = sizes < len(labels) / clients if self.capped else np.ones(clients, bool)
            below = below if below.any() else ~below  # all examples are given away: the class has none
            share = np.where(below, share, 0)
            shares[label] = share / share.sum() if share.sum() > 0 else below / below.sum()
            sizes += shares[label] * np.count_nonzero(labels == label)
        return shares


@dataclass(frozen=True)
class Shards:
    """Every client has `ways` classes. A class is divided evenly among the clients that have it."""

    ways: Annotated[int, Ge(1)] = 2
    """number of classes per client"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        clients = clients or DEFAULT_CLIENTS
        draw = random_state(seed, "partition", "shards")
        assigned = assign_classes(self.ways, labels.classes, clients, draw)
        require_examples(clients, len(labels.train))
        shares = assigned / np.maximum(assigned.sum(1, keepdims=True), 1)
        return deal_holdings(labels, shares, draw)


@dataclass(frozen=True)
class WithReplacement:
    """Any number of clients: each draws `ways` classes, and examples of them from the complete dataset.

    An example may belong to several clients, but to each of them once.
    """

    ways: Annotated[int, Ge(1)] = 3
    """number of classes per client"""
    shots: Annotated[int, Ge(1)] = 8
    """number of training examples per class and client"""
    test: Annotated[int, Ge(1)] = 10
    """number of test examples per class and client"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        clients = clients or DEFAULT_CLIENTS
        require_classes(self.ways, labels.classes)
        require_test_set("with_replacement", labels.test)
        draw = random_state(seed, "partition", "with_replacement")
        chosen = np.sort(draw.uniform(size=(clients, labels.classes)).argsort(1)[:, : self.ways], 1)
        train, test = (
            self._positions(part, count, key, chosen, draw)
            for part, count, key in ((labels.train, self.shots, "shots"), (labels.test, self.test, "test"))
        )
        return [Holding(own, own_test) for own, own_test in zip(train, test, strict=True)]

    def _positions(
        self, labels: np.ndarray, count: int, key: str, chosen: np.ndarray, draw: np.random.RandomState
    ) -> np.ndarray:
        """The positions [clients, ways * count] of each client's examples, of its classes chosen [clients, ways]."""
        positions = np.zeros((*chosen.shape, count), np.int64)
        for label in np.unique(chosen):
            pool = draw.permutation(np.flatnonzero(labels == label))
            if count > len(pool):
                raise UserError(
                    f"partition.{key}: got {count}, but class {label} has {len(pool)} examples. "
                    f"Use {len(pool)} or fewer."
                )
            holders = chosen == label
            first = draw.randint(
                len(pool), size=holders.sum()
            )  # consecutive ones of the shuffled class: no example twice
            positions[holders] = pool[(first[:, None] + np.arange(count)) % len(pool)]
        return np.sort(positions.reshape(len(chosen), -1), 1)
