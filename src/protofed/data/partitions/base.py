"""The interface of partitions, and functions that several of them use.

A partition is a pure function of labels, options, number of clients and seed. All draws come from numpy's RandomState,
which numpy keeps frozen, so a partition stays the same with every version of numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from protofed.errors import UserError

DEFAULT_CLIENTS = 20
"""The number of clients if neither the experiment nor the partition determines it."""


class Labels(NamedTuple):
    """What a partition sees of a dataset: the class, and the group if it has one, of each example."""

    train: np.ndarray  # [n]: the class numbers of the training examples
    test: np.ndarray  # [n]: the class numbers of the test examples
    classes: int
    groups: tuple[str, ...] = ()  # names of the domains, subjects or hospitals; () if the origin is not known
    train_group: np.ndarray = np.zeros(0, dtype=np.int64)  # [n]: the group number of each; empty without groups
    test_group: np.ndarray = np.zeros(0, dtype=np.int64)


class Holding(NamedTuple):
    """The examples of one client, as positions in the dataset's training set and test set."""

    train: np.ndarray
    test: np.ndarray
    validation: np.ndarray = np.zeros(0, dtype=np.int64)  # positions in the training set
    own: bool = False  # whether `test` has positions in the training set, too


class Partition(Protocol):
    """A way to divide a dataset among clients. Its fields are its options."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        """The examples of each client. 0 clients: the number the partition implies, otherwise 20."""
        ...


def hash_of_labels(sets: Sequence[np.ndarray]) -> str:
    """A hash of the labels of several sets of examples, in their order."""
    digest = hashlib.sha256()
    for labels in sets:
        digest.update(len(labels).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(labels, np.int64).data)
    return digest.hexdigest()


def are_drawn(rows: np.ndarray, positions: np.ndarray) -> bool:
    """Whether positions count examples that were drawn from the data (data.limit), at these rows.

    >>> are_drawn(np.array([2, 7]), np.array([0, 1])), are_drawn(np.array([20, 21]), np.array([0, 1]))
    (True, False)

    The second are those of a client whose data were given in Python, as one block.
    """
    return len(rows) == len(positions) > 0 and bool(np.ptp(rows - positions))


def partition_class(found: Any, name: str) -> type[Partition]:
    """The class of a partition that was found by a name outside the package."""
    if not (isinstance(found, type) and is_dataclass(found) and callable(getattr(found, "split", None))):
        kind = "class" if isinstance(found, type) else type(found).__name__
        raise UserError(
            f'"{name}" is a {kind}; a partition is a frozen dataclass with a function '
            "split(self, labels, clients, seed) that returns a list of Holding."
        )
    return cast("type[Partition]", found)


def check_holdings(holdings: Any, labels: Labels, clients: int, who: str) -> list[Holding]:
    """What a partition returned; an error if it does not divide the examples that there are among the clients."""
    if not isinstance(holdings, Sequence) or not all(isinstance(part, Holding) for part in holdings):
        raise UserError(f"{who} returned a {type(holdings).__name__}; must be a list with a Holding per client.")
    if clients and len(holdings) != clients:
        raise UserError(
            f"{who} made {len(holdings)} clients, but data.clients is {clients}. Make one Holding for each."
        )
    for client, part in enumerate(holdings):
        for field, positions, count in (
            ("train", part.train, len(labels.train)),
            ("test", part.test, len(labels.train if part.own else labels.test)),
            ("validation", part.validation, len(labels.train)),
        ):
            if not isinstance(positions, np.ndarray) or positions.ndim != 1 or positions.dtype.kind not in "iu":
                got = f"{type(positions).__name__} {getattr(positions, 'dtype', '')}".strip()
                raise UserError(f"{who}: {field} of client {client} is a {got}; must be an array [n] of whole numbers.")
            if len(positions) and not 0 <= positions.min() <= positions.max() < count:
                raise UserError(
                    f"{who}: {field} of client {client} has the positions {positions.min()} to {positions.max()}; "
                    f"must be from 0 to {count - 1}."
                )
            if len(np.unique(positions)) < len(positions):
                raise UserError(f"{who}: {field} of client {client} has an example twice. Give each position once.")
    return list(holdings)


def deal_positions(labels: np.ndarray, shares: np.ndarray, draw: np.random.RandomState) -> list[np.ndarray]:
    """The positions of each client, disjoint: each class is shuffled and cut by the shares [classes, clients]."""
    classes, clients = shares.shape
    client_pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in range(classes):
        positions = draw.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(shares[label]) * len(positions)).astype(int)  # shares of 0 leave the class out
        for client, piece in enumerate(np.split(positions[: ends[-1]], ends[:-1])):
            client_pieces[client].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in client_pieces]


def deal_holdings(labels: Labels, shares: np.ndarray, draw: np.random.RandomState) -> list[Holding]:
    """The training set and the test set, both divided by the shares [classes, clients]."""
    parts = [deal_positions(part, shares, draw) for part in (labels.train, labels.test)]
    return [Holding(train, test) for train, test in zip(*parts, strict=True)]


def stratified_share(y: np.ndarray, share: float, draw: np.random.RandomState) -> np.ndarray:
    """Mask [n] of the examples to set aside: this share of each class, rounded down, chosen at random."""
    order = draw.permutation(len(y))
    rank = np.empty(len(y), dtype=np.int64)  # the position of each example in the random order of its class
    for label in np.unique(y):
        members = order[y[order] == label]
        rank[members] = np.arange(len(members))
    # Example m of a class is chosen when m * share passes a whole number: every fifth one for 0.2.
    return np.asarray(np.floor((rank + 1) * share + 1e-9) > np.floor(rank * share + 1e-9))


def require_examples(clients: int, num_examples: int, per_client: int = 1) -> None:
    """Raise an error if there are fewer than `per_client` training examples per client."""
    if not num_examples:
        raise UserError("The data have no training examples. Give at least one per client.")
    if clients * per_client > num_examples:
        reason = f", fewer than {per_client} per client (partition.smallest)" if per_client > 1 else ""
        raise UserError(
            f"data.clients: got {clients}, but there are {num_examples:,} training examples{reason}. "
            f"Use {max(num_examples // per_client, 1):,} or fewer, or more examples (data.limit, if it is set)."
        )


def require_test_set(name: str, test: np.ndarray) -> None:
    """Raise an error if there are no test examples, from which this partition takes those of its clients."""
    if not len(test):
        raise UserError(
            f"partition.name: {name} takes the clients' test examples from the test set, which is empty (with "
            'eval.test = "merged" it is part of the training set). Use another partition, or eval.test = "dataset".'
        )


def require_classes(ways: int, classes: int) -> None:
    """Raise an error if a client is to have more classes than there are."""
    if ways > classes:
        raise UserError(f"partition.ways: got {ways}, but there are {classes} classes. Use {classes} or fewer.")


def assign_classes(ways: int, classes: int, clients: int, draw: np.random.RandomState) -> np.ndarray:
    """1 where a client has a class, else 0 [classes, clients]. Each client has `ways` classes, the rarest so far."""
    require_classes(ways, classes)
    assigned, holders = np.zeros((classes, clients)), np.zeros(classes)
    for client in range(clients):
        rarest = np.lexsort((draw.uniform(size=classes), holders))[:ways]
        assigned[rarest, client] = 1
        holders[rarest] += 1
    return assigned
