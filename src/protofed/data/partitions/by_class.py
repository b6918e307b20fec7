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
    require_examples,
)
from protofed.draws import random_state
from protofed.errors import UserError


@dataclass(frozen=True)
class NWay:
    """FedProto's n-way k-shot: a client has about `ways` classes and about `shots` examples of each."""

    ways: Annotated[int, Ge(1)] = 3
    """about how many classes a client has"""
    shots: Annotated[int, Ge(1)] = 8
    """about how many training examples of each"""
    stdev: Annotated[int, Ge(0)] = 2
    """by how much both vary: the paper's word, but half a range; a client has at least 2 classes and 1 shot"""
    test: Annotated[int, Ge(1)] = 10
    """test examples per class and client"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        train, test, classes, clients = labels.train, labels.test, labels.classes, clients or DEFAULT_CLIENTS
        if self.ways > classes:
            raise UserError(
                f"partition.ways: got {self.ways}, but there are {classes} classes. Use {classes} or fewer."
            )
        require_examples(clients, len(train))
        draw = random_state(seed, "partition", "nway")
        fewest, most = max(min(2, self.ways), self.ways - self.stdev), min(classes, self.ways + self.stdev)
        ways = draw.randint(fewest, most + 1, clients)
        shots = draw.randint(max(1, self.shots - self.stdev), self.shots + self.stdev + 1, clients)
        held = [np.sort(draw.choice(classes, n, replace=False)) for n in ways]
        mine: list[list[list[np.ndarray]]] = [[[], []] for _ in range(clients)]
        for label in range(classes):
            pool, exam = (draw.permutation(np.flatnonzero(part == label)) for part in (train, test))
            holders = [client for client in range(clients) if label in held[client]]
            wanted = int(shots[holders].sum())
            if wanted > len(pool):
                fits = len(pool) // len(holders) - self.stdev
                raise UserError(
                    f"partition.shots: got {self.shots}, but class {label} has {len(pool)} training examples for the "
                    f"{len(holders)} clients that hold it, which want {wanted}. "
                    f"Use {f'{fits} shots or fewer, ' if fits > 0 else ''}fewer clients or fewer ways."
                )
            if self.test > len(exam):
                raise UserError(
                    f"partition.test: got {self.test}, but class {label} has {len(exam)} test examples. "
                    f"Use {len(exam)} or fewer."
                )
            ends = np.cumsum(shots[holders])
            for turn, (client, end) in enumerate(zip(holders, ends, strict=True)):
                mine[client][0].append(pool[end - shots[client] : end])
                # Test slices are disjoint while a class has enough images, then start over: no client sees one twice.
                mine[client][1].append(exam[np.arange(turn * self.test, (turn + 1) * self.test) % len(exam)])
        return [Holding(np.sort(np.concatenate(a)), np.sort(np.concatenate(b))) for a, b in mine]


@dataclass(frozen=True)
class Dirichlet:
    """Each class is shared out by Dirichlet(alpha); as in FedNH's code no client above its even share gets more."""

    alpha: Annotated[float, Gt(0)] = 0.3
    """the smaller, the fewer classes a client has"""
    smallest: Annotated[int, Ge(0)] = 10
    """drawn again until every client has as many training examples"""
    capped: bool = True
    """no client above its even share gets more of a class; false: plain shares"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        train, classes, clients = labels.train, labels.classes, clients or DEFAULT_CLIENTS
        draw = random_state(seed, "partition", "dirichlet")
        require_examples(clients, len(train), max(1, self.smallest))
        for _ in range(1000):
            shares = self.shares(train, classes, clients, draw)
            parts = deal_holdings(labels, shares, draw)
            if min(len(part.train) for part in parts) >= self.smallest:
                return parts
        raise UserError(
            f"partition.smallest: got {self.smallest}, but 1,000 draws of Dirichlet({self.alpha}) over "
            f"{clients} clients and {len(train)} examples gave some client fewer. "
            "Use a smaller number, a larger alpha or fewer clients."
        )

    def shares(self, labels: np.ndarray, classes: int, clients: int, draw: np.random.RandomState) -> np.ndarray:
        """The share [classes, clients] of each class that goes to each client."""
        held, shares = np.zeros(clients), np.zeros((classes, clients))
        for label in range(classes):
            share = draw.dirichlet(np.full(clients, self.alpha))
            if not np.isfinite(share).all():  # an alpha so small that the draw underflows: one client gets the class
                share = np.eye(clients)[draw.randint(clients)]
            room = held < len(labels) / clients if self.capped else np.ones(clients, bool)
            share = np.where(room, share, 0)
            shares[label] = share / share.sum() if share.sum() > 0 else room / room.sum()
            held += shares[label] * np.count_nonzero(labels == label)
        return shares


@dataclass(frozen=True)
class Shards:
    """Every client has `ways` classes; a class is shared out evenly among the clients that have it."""

    ways: Annotated[int, Ge(1)] = 2
    """how many classes a client has"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        clients = clients or DEFAULT_CLIENTS
        draw = random_state(seed, "partition", "shards")
        held = assign_classes(self.ways, labels.classes, clients, draw)
        require_examples(clients, len(labels.train))
        shares = held / np.maximum(held.sum(1, keepdims=True), 1)
        return deal_holdings(labels, shares, draw)
