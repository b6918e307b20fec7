"""More ways to share data out: by classes, by sizes, and by where the data come from. See `partition.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt

from protofed.data.partitions.base import CLIENTS, Dirichlet, Iid, Labels, NWay, Part, Partition, Pooled, dealt, enough
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.experiment.folder import read_json


@dataclass(frozen=True)
class Shards:
    """Every client has `ways` classes; a class is shared out evenly among the clients that have it."""

    ways: Annotated[int, Ge(1)] = 2
    """how many classes a client has"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        clients = clients or CLIENTS
        draw = random_state(seed, "partition", "shards")
        held = holders(self.ways, labels.classes, clients, draw)
        enough(clients, len(labels.train))
        shares = held / np.maximum(held.sum(1, keepdims=True), 1)
        return dealt(labels, shares, draw)


@dataclass(frozen=True)
class PowerLaw:
    """Few clients have much and many have little (log-normal sizes); every client has `ways` classes."""

    ways: Annotated[int, Ge(0)] = 2
    """how many classes a client has; 0: all"""
    sigma: Annotated[float, Ge(0)] = 2.0
    """of the log-normal weights by which a class is shared out; 0: evenly"""
    smallest: Annotated[int, Ge(0)] = 5
    """training examples of each of its classes that every client has at least"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        clients = clients or CLIENTS
        draw = random_state(seed, "partition", "power_law")
        held = holders(self.ways or labels.classes, labels.classes, clients, draw)
        counts = np.bincount(labels.train, minlength=labels.classes)
        wanted = held.sum(1) * self.smallest
        for label in np.flatnonzero(wanted > counts):
            raise UserError(
                f"partition.smallest: got {self.smallest}, but class {label} has {counts[label]:,} training examples "
                f"for the {held[label].sum():.0f} clients that have it. "
                f"Use {int(counts[label] // held[label].sum())} or less, or fewer clients."
            )
        weights = held * draw.lognormal(0, self.sigma, clients)
        given = self.smallest * held.astype(np.int64)
        for label in np.flatnonzero(held.any(1)):
            given[label] += whole((counts[label] - wanted[label]) * weights[label] / weights[label].sum())
        return dealt(labels, given / np.maximum(counts, 1)[:, None], draw)


@dataclass(frozen=True)
class DirichletPowerLaw:
    """Power-law sizes, and in each client a mix of classes drawn from Dirichlet(alpha)."""

    alpha: Annotated[float, Gt(0)] = 0.5
    """the smaller, the fewer classes a client has"""
    gamma: Annotated[float, Gt(1)] = 3.0
    """sizes have the density size^-gamma: the smaller, the more uneven"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        clients = clients or CLIENTS
        enough(clients, len(labels.train))
        draw = random_state(seed, "partition", "dirichlet_power_law")
        weights = (1 - draw.uniform(size=clients)) ** (-1 / (self.gamma - 1))
        sizes = 1 + whole((len(labels.train) - clients) * weights / weights.sum())
        left = np.bincount(labels.train, minlength=labels.classes)
        counts = np.zeros((labels.classes, clients), dtype=np.int64)
        total = left.copy()
        for client, size in enumerate(sizes):
            mix = draw.dirichlet(np.full(labels.classes, self.alpha))
            mix = np.where(np.isfinite(mix), mix, 0) + 1e-12  # classes that are used up give way to the others
            while size > 0:
                odds = np.where(left > 0, mix, 0)
                some = np.minimum(draw.multinomial(size, odds / odds.sum()), left)
                counts[:, client] += some
                left -= some
                size -= some.sum()
        return dealt(labels, counts / np.maximum(total, 1)[:, None], draw)


@dataclass(frozen=True)
class ByDomain:
    """Every client has data of one domain; a domain with several clients is shared out evenly among them."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        domains = len(known(labels, "by_domain"))
        clients = clients or domains
        if clients < domains:
            raise UserError(
                f"data.clients: got {clients}, but there are {domains} domains ({', '.join(labels.groups)}). "
                f"Use {domains} or more."
            )
        draw = random_state(seed, "partition", "by_domain")
        shares = np.zeros((domains, clients))
        shares[np.arange(clients) % domains, np.arange(clients)] = 1
        return dealt(
            labels._replace(train=labels.train_group, test=labels.test_group),
            shares / shares.sum(1, keepdims=True), draw,
        )  # fmt: skip


@dataclass(frozen=True)
class Natural:
    """Clients as the data have them: subjects, hospitals, writers; with fewer clients, the first ones."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        there = len(known(labels, "natural"))
        if clients > there:
            raise UserError(f"data.clients: got {clients}, but the data have {there}. Use {there} or fewer.")
        return [
            Part(np.flatnonzero(labels.train_group == client), np.flatnonzero(labels.test_group == client))
            for client in range(clients or there)
        ]


@dataclass(frozen=True)
class FromFile:
    """Who held what in an earlier run: `path` is its partition.json."""

    path: str = ""
    """the file"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Part]:
        path = Path(self.path).expanduser()
        if not self.path or not path.is_file():
            raise UserError(f"partition.path: got {self.path!r}; must be the partition.json of a run.")
        stored = read_json(path, "clients")["clients"]
        if clients not in (0, len(stored)):
            raise UserError(f"data.clients: got {clients}, but {path} has {len(stored)}. Leave it out.")
        try:
            parts = [
                Part(
                    np.array(one["train"], int),
                    np.array(one["test"], int),
                    np.array(one["validation"], int),
                    one["own"],
                )
                for one in stored
            ]
        except (KeyError, TypeError, ValueError) as problem:
            raise UserError(f"{path} is not a whole partition.json: {problem!r}.") from problem
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


def holders(ways: int, classes: int, clients: int, draw: np.random.RandomState) -> np.ndarray:
    """Who has which classes [classes, clients], 0 or 1: `ways` each, and every class about as often as any other."""
    if ways > classes:
        raise UserError(f"partition.ways: got {ways}, but there are {classes} classes. Use {classes} or fewer.")
    held = np.zeros((classes, clients))
    for client in range(clients):
        rarest = np.lexsort((draw.uniform(size=classes), held.sum(1)))[:ways]
        held[rarest, client] = 1
    return held


def known(labels: Labels, partition: str) -> tuple[str, ...]:
    """Where the data come from, if that is known."""
    if not labels.groups:
        raise UserError(
            f"partition.name: got {partition}, but these data do not say where each example comes from. "
            "Use another partition, such as dirichlet."
        )
    return labels.groups


def whole(values: np.ndarray) -> np.ndarray:
    """Whole numbers with the same sum: largest remainders."""
    counts = np.floor(values + 1e-9).astype(np.int64)
    missing = round(values.sum()) - counts.sum()
    counts[np.argsort(counts - values, kind="stable")[:missing]] += 1
    return counts


PARTITIONS: dict[str, type[Partition]] = {
    "by_domain": ByDomain,
    "dirichlet": Dirichlet,
    "dirichlet_power_law": DirichletPowerLaw,
    "file": FromFile,
    "iid": Iid,
    "natural": Natural,
    "nway": NWay,
    "pooled": Pooled,
    "power_law": PowerLaw,
    "shards": Shards,
}
