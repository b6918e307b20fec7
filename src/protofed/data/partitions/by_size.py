"""Partitions by size: how many examples a client holds."""

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
class Iid:
    """Every client gets an equal random share of the training and of the test set."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        draw, clients = random_state(seed, "partition", "iid"), clients or DEFAULT_CLIENTS
        require_examples(clients, len(labels.train))
        shares = [np.array_split(draw.permutation(len(part)), clients) for part in (labels.train, labels.test)]
        return [Holding(np.sort(a), np.sort(b)) for a, b in zip(*shares, strict=True)]


@dataclass(frozen=True)
class Pooled:
    """One client holds everything: the centralised reference."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        if clients > 1:
            raise UserError(f"data.clients: got {clients}, but partition pooled has one client. Leave it out.")
        return [Holding(np.arange(len(labels.train)), np.arange(len(labels.test)))]


@dataclass(frozen=True)
class PowerLaw:
    """Few clients have much and many have little (log-normal sizes); every client has `ways` classes."""

    ways: Annotated[int, Ge(0)] = 2
    """how many classes a client has; 0: all"""
    sigma: Annotated[float, Ge(0)] = 2.0
    """of the log-normal weights by which a class is shared out; 0: evenly"""
    smallest: Annotated[int, Ge(0)] = 5
    """training examples of each of its classes that every client has at least"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        clients = clients or DEFAULT_CLIENTS
        draw = random_state(seed, "partition", "power_law")
        held = assign_classes(self.ways or labels.classes, labels.classes, clients, draw)
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
            given[label] += _round_to_sum((counts[label] - wanted[label]) * weights[label] / weights[label].sum())
        return deal_holdings(labels, given / np.maximum(counts, 1)[:, None], draw)


@dataclass(frozen=True)
class DirichletPowerLaw:
    """Power-law sizes, and in each client a mix of classes drawn from Dirichlet(alpha)."""

    alpha: Annotated[float, Gt(0)] = 0.5
    """the smaller, the fewer classes a client has"""
    gamma: Annotated[float, Gt(1)] = 3.0
    """sizes have the density size^-gamma: the smaller, the more uneven"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        clients = clients or DEFAULT_CLIENTS
        require_examples(clients, len(labels.train))
        draw = random_state(seed, "partition", "dirichlet_power_law")
        weights = (1 - draw.uniform(size=clients)) ** (-1 / (self.gamma - 1))
        sizes = 1 + _round_to_sum((len(labels.train) - clients) * weights / weights.sum())
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
        return deal_holdings(labels, counts / np.maximum(total, 1)[:, None], draw)


def _round_to_sum(values: np.ndarray) -> np.ndarray:
    """Whole numbers with the same sum: largest remainders."""
    counts = np.floor(values + 1e-9).astype(np.int64)
    missing = round(values.sum()) - counts.sum()
    counts[np.argsort(counts - values, kind="stable")[:missing]] += 1
    return counts
