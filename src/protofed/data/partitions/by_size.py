"""Partitions by size: how many examples a client has."""

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
)
from protofed.draws import random_state
from protofed.errors import UserError


@dataclass(frozen=True)
class Iid:
    """Every client gets an equal random share of the training set and of the test set."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        draw, clients = random_state(seed, "partition", "iid"), clients or DEFAULT_CLIENTS
        require_examples(clients, len(labels.train))
        parts = [np.array_split(draw.permutation(len(part)), clients) for part in (labels.train, labels.test)]
        return [Holding(np.sort(train), np.sort(test)) for train, test in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Pooled:
    """One client has all data: the centralised reference."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        if clients > 1:
            raise UserError(
                f"data.clients: got {clients}, but partition pooled has one client. Leave data.clients out."
            )
        return [Holding(np.arange(len(labels.train)), np.arange(len(labels.test)))]


@dataclass(frozen=True)
class PowerLaw:
    """Few clients have much data and many have little (log-normal sizes). Every client has `ways` classes."""

    ways: Annotated[int, Ge(0)] = 2
    """number of classes per client; 0: all"""
    sigma: Annotated[float, Ge(0)] = 2.0
    """σ of the log-normal weights by which each class is divided; 0: evenly"""
    smallest: Annotated[int, Ge(0)] = 5
    """least number of training examples per class and client"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        clients = clients or DEFAULT_CLIENTS
        draw = random_state(seed, "partition", "power_law")
        assigned = assign_classes(self.ways or labels.classes, labels.classes, clients, draw)
        counts = np.bincount(labels.train, minlength=labels.classes)
        rest = _remaining(counts, assigned > 0, self.smallest)
        weights = assigned * draw.lognormal(0, self.sigma, clients)
        sizes = self.smallest * assigned.astype(np.int64)  # [classes, clients]
        for label in np.flatnonzero(assigned.any(1)):
            sizes[label] += _round_to_sum(rest[label] * weights[label] / weights[label].sum())
        return deal_holdings(labels, sizes / np.maximum(counts, 1)[:, None], draw)


@dataclass(frozen=True)
class FedProxPowerLaw:
    """FedProx's MNIST: client k has `ways` classes from class k on, with a log-normal size per client and class."""

    ways: Annotated[int, Ge(1)] = 2
    """number of classes per client: k, k + 1, ..., modulo the number of classes"""
    sigma: Annotated[float, Ge(0)] = 2.0
    """σ of the log-normal weights by which each class is divided, one weight per client and class; 0: evenly"""
    smallest: Annotated[int, Ge(0)] = 5
    """training examples that each client has of each of its classes before the rest is divided"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        clients = clients or DEFAULT_CLIENTS
        draw = random_state(seed, "partition", "fedprox_power_law")
        require_classes(self.ways, labels.classes)
        weights = np.zeros((labels.classes, clients))
        for way in range(self.ways):
            weights[(np.arange(clients) + way) % labels.classes, np.arange(clients)] = draw.lognormal(
                0, self.sigma, clients
            )
        counts = np.bincount(labels.train, minlength=labels.classes)
        rest = _remaining(counts, weights > 0, self.smallest)
        total = np.maximum(weights.sum(1, keepdims=True), 1e-300)  # a class without clients has weights of 0
        sizes = self.smallest * (weights > 0) + np.floor(rest[:, None] * weights / total)  # as published: rounded down
        return deal_holdings(labels, sizes / np.maximum(counts, 1)[:, None], draw)


@dataclass(frozen=True)
class DirichletPowerLaw:
    """Sizes follow a power law. The mix of classes of each client is drawn from Dirichlet(alpha)."""

    alpha: Annotated[float, Gt(0)] = 0.5
    """concentration of the Dirichlet distribution; smaller values give each client fewer classes"""
    gamma: Annotated[float, Gt(0)] = 3.0
    """index of the Pareto distribution of sizes, density size^-(gamma + 1); smaller values give more uneven sizes"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        clients = clients or DEFAULT_CLIENTS
        require_examples(clients, len(labels.train))
        draw = random_state(seed, "partition", "dirichlet_power_law")
        weights = (1 - draw.uniform(size=clients)) ** (-1 / self.gamma)
        sizes = 1 + _round_to_sum((len(labels.train) - clients) * weights / weights.sum())
        left = np.bincount(labels.train, minlength=labels.classes)
        counts = np.zeros((labels.classes, clients), dtype=np.int64)
        total = left.copy()
        for client, size in enumerate(sizes):
            mix = draw.dirichlet(np.full(labels.classes, self.alpha))
            mix = np.where(np.isfinite(mix), mix, 0) + 1e-12  # never 0, so that other classes can replace used-up ones
            while size > 0:
                odds = np.where(left > 0, mix, 0)
                taken = np.minimum(draw.multinomial(size, odds / odds.sum()), left)
                counts[:, client] += taken
                left -= taken
                size -= taken.sum()
        return deal_holdings(labels, counts / np.maximum(total, 1)[:, None], draw)


def _remaining(counts: np.ndarray, has_class: np.ndarray, smallest: int) -> np.ndarray:
    """Examples per class that remain when each client has `smallest` of each of its classes [classes, clients]."""
    holders = has_class.sum(1)
    for label in np.flatnonzero(holders * smallest > counts):
        raise UserError(
            f"partition.smallest: got {smallest}, but class {label} has {counts[label]:,} training examples "
            f"for the {holders[label]} clients that have it. "
            f"Use {counts[label] // holders[label]} or less, or fewer clients."
        )
    return np.asarray(counts - holders * smallest)


def _round_to_sum(values: np.ndarray) -> np.ndarray:
    """The values rounded to whole numbers with the same sum, by largest remainders."""
    counts = np.floor(values + 1e-9).astype(np.int64)
    missing = round(values.sum()) - counts.sum()
    counts[np.argsort(counts - values, kind="stable")[:missing]] += 1
    return counts
