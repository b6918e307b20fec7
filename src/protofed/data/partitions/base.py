"""Who holds what: pure functions of (labels, options, clients, seed).

Every draw comes from numpy's RandomState, whose streams numpy keeps frozen: a partition never changes with a version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import numpy as np
from annotated_types import Ge, Gt

from protofed.draws import random_state
from protofed.errors import UserError

CLIENTS = 20
"""How many there are if nobody says so and the data do not say either."""


class Labels(NamedTuple):
    """What a partition sees of a dataset."""

    train: np.ndarray  # [n]: class numbers
    test: np.ndarray
    classes: int
    groups: tuple[str, ...] = ()  # domains, subjects, hospitals: where examples come from
    train_group: np.ndarray = np.zeros(0, dtype=np.int64)  # [n]: which of them; empty if there are none
    test_group: np.ndarray = np.zeros(0, dtype=np.int64)


class Part(NamedTuple):
    """One client's positions in the training set and in the test set."""

    train: np.ndarray
    test: np.ndarray
    validation: np.ndarray = np.zeros(0, dtype=np.int64)  # of the training set
    own: bool = False  # the test positions are of the training set, too


class Partition(Protocol):
    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        """A part for every client; 0 clients: as many as the data have by themselves, else 20."""
        ...


@dataclass(frozen=True)
class Iid:
    """Every client gets an equal random share of the training and of the test set."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        draw, clients = random_state(seed, "partition", "iid"), clients or CLIENTS
        enough(clients, len(labels.train))
        shares = [np.array_split(draw.permutation(len(part)), clients) for part in (labels.train, labels.test)]
        return [Part(np.sort(a), np.sort(b)) for a, b in zip(*shares, strict=True)]


@dataclass(frozen=True)
class Pooled:
    """One client holds everything: the centralised reference."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        if clients > 1:
            raise UserError(f"data.clients: got {clients}, but partition pooled has one client. Leave it out.")
        return [Part(np.arange(len(labels.train)), np.arange(len(labels.test)))]


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

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        train, test, classes, clients = labels.train, labels.test, labels.classes, clients or CLIENTS
        if self.ways > classes:
            raise UserError(
                f"partition.ways: got {self.ways}, but there are {classes} classes. Use {classes} or fewer."
            )
        enough(clients, len(train))
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
        return [Part(np.sort(np.concatenate(a)), np.sort(np.concatenate(b))) for a, b in mine]


@dataclass(frozen=True)
class Dirichlet:
    """Each class is shared out by Dirichlet(alpha); as in FedNH's code no client above its even share gets more."""

    alpha: Annotated[float, Gt(0)] = 0.3
    """the smaller, the fewer classes a client has"""
    smallest: Annotated[int, Ge(0)] = 10
    """drawn again until every client has as many training examples"""
    capped: bool = True
    """no client above its even share gets more of a class; false: plain shares"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        train, classes, clients = labels.train, labels.classes, clients or CLIENTS
        draw = random_state(seed, "partition", "dirichlet")
        enough(clients, len(train), max(1, self.smallest))
        for _ in range(1000):
            shares = self.shares(train, classes, clients, draw)
            parts = dealt(labels, shares, draw)
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


def deal(labels: np.ndarray, shares: np.ndarray, draw: np.random.RandomState) -> list[np.ndarray]:
    """Positions for each client: every class shuffled and cut by its shares; nothing is given twice."""
    classes, clients = shares.shape
    mine: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in range(classes):
        own = draw.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(shares[label]) * len(own)).astype(int)  # a class that nobody has is left over
        for client, piece in enumerate(np.split(own[: ends[-1]], ends[:-1])):
            mine[client].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in mine]


def dealt(labels: Labels, shares: np.ndarray, draw: np.random.RandomState) -> list[Part]:
    """The training and the test set, both dealt out by the shares [classes, clients]."""
    parts = [deal(part, shares, draw) for part in (labels.train, labels.test)]
    return [Part(a, b) for a, b in zip(*parts, strict=True)]


def a_share(y: np.ndarray, share: float, draw: np.random.RandomState) -> np.ndarray:
    """Which examples [n], true or false, are set aside: this share of each class, rounded down, in random order."""
    order = draw.permutation(len(y))
    place = np.empty(len(y), dtype=np.int64)  # each example's place within its class
    for label in np.unique(y):
        own = order[y[order] == label]
        place[own] = np.arange(len(own))
    # The m-th of them is taken when m * share passes a whole number: every fifth one for 0.2.
    return np.asarray(np.floor((place + 1) * share + 1e-9) > np.floor(place * share + 1e-9))


def enough(clients: int, there: int, each: int = 1) -> None:
    """Refuse to share out more than there is."""
    if clients * each > there:
        few = f", too few for {each} each (partition.smallest)" if each > 1 else ""
        raise UserError(
            f"data.clients: got {clients}, but there are {there:,} training examples{few}. "
            f"Use {max(there // each, 1)} clients or fewer."
        )
