"""Who holds what: pure functions of (labels, options, clients, seed).

Every draw comes from numpy's RandomState, whose streams numpy keeps frozen: a partition never changes with a version.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from protofed.errors import UserError

DEFAULT_CLIENTS = 20
"""How many there are if nobody says so and the data do not say either."""


class Labels(NamedTuple):
    """What a partition sees of a dataset."""

    train: np.ndarray  # [n]: class numbers
    test: np.ndarray
    classes: int
    groups: tuple[str, ...] = ()  # domains, subjects, hospitals: where examples come from
    train_group: np.ndarray = np.zeros(0, dtype=np.int64)  # [n]: which of them; empty if there are none
    test_group: np.ndarray = np.zeros(0, dtype=np.int64)


class Holding(NamedTuple):
    """One client's positions in the training set and in the test set."""

    train: np.ndarray
    test: np.ndarray
    validation: np.ndarray = np.zeros(0, dtype=np.int64)  # of the training set
    own: bool = False  # the test positions are of the training set, too


class Partition(Protocol):
    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        """A part for every client; 0 clients: as many as the data have by themselves, else 20."""
        ...


def deal_positions(labels: np.ndarray, shares: np.ndarray, draw: np.random.RandomState) -> list[np.ndarray]:
    """Positions for each client: every class shuffled and cut by its shares; nothing is given twice."""
    classes, clients = shares.shape
    mine: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in range(classes):
        own = draw.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(shares[label]) * len(own)).astype(int)  # a class that nobody has is left over
        for client, piece in enumerate(np.split(own[: ends[-1]], ends[:-1])):
            mine[client].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in mine]


def deal_holdings(labels: Labels, shares: np.ndarray, draw: np.random.RandomState) -> list[Holding]:
    """The training and the test set, both dealt out by the shares [classes, clients]."""
    parts = [deal_positions(part, shares, draw) for part in (labels.train, labels.test)]
    return [Holding(a, b) for a, b in zip(*parts, strict=True)]


def stratified_share(y: np.ndarray, share: float, draw: np.random.RandomState) -> np.ndarray:
    """Which examples [n], true or false, are set aside: this share of each class, rounded down, in random order."""
    order = draw.permutation(len(y))
    place = np.empty(len(y), dtype=np.int64)  # each example's place within its class
    for label in np.unique(y):
        own = order[y[order] == label]
        place[own] = np.arange(len(own))
    # The m-th of them is taken when m * share passes a whole number: every fifth one for 0.2.
    return np.asarray(np.floor((place + 1) * share + 1e-9) > np.floor(place * share + 1e-9))


def require_examples(clients: int, there: int, each: int = 1) -> None:
    """Refuse to share out more than there is."""
    if clients * each > there:
        few = f", too few for {each} each (partition.smallest)" if each > 1 else ""
        raise UserError(
            f"data.clients: got {clients}, but there are {there:,} training examples{few}. "
            f"Use {max(there // each, 1)} clients or fewer."
        )


def assign_classes(ways: int, classes: int, clients: int, draw: np.random.RandomState) -> np.ndarray:
    """Who has which classes [classes, clients], 0 or 1: `ways` each, and every class about as often as any other."""
    if ways > classes:
        raise UserError(f"partition.ways: got {ways}, but there are {classes} classes. Use {classes} or fewer.")
    held = np.zeros((classes, clients))
    for client in range(clients):
        rarest = np.lexsort((draw.uniform(size=classes), held.sum(1)))[:ways]
        held[rarest, client] = 1
    return held
