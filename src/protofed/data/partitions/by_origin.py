"""Partitions by origin: the domain, hospital or subject that examples come from, or the partition of an earlier run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge

from protofed.data.partitions.base import Holding, Labels, deal_holdings, hash_of_labels
from protofed.draws import random_state
from protofed.errors import UserError


@dataclass(frozen=True)
class ByDomain:
    """Every client has data of one domain. If there are more clients than domains, clients share a domain evenly."""

    shots: Annotated[int, Ge(0)] = 0
    """largest number of training examples per class and client, drawn at random with run.seed; 0: all"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        domains = len(_require_groups(labels, "by_domain"))
        clients = clients or domains
        if clients < domains:
            raise UserError(
                f"data.clients: got {clients}, but there are {domains} domains ({', '.join(labels.groups)}). "
                f"Use {domains} or more."
            )
        draw = random_state(seed, "partition", "by_domain")
        shares = np.zeros((domains, clients))
        shares[np.arange(clients) % domains, np.arange(clients)] = 1
        parts = deal_holdings(
            labels._replace(train=labels.train_group, test=labels.test_group),
            shares / shares.sum(1, keepdims=True),
            draw,
        )
        if not self.shots:
            return parts
        return [part._replace(train=_draw_per_class(part.train, labels.train, self.shots, draw)) for part in parts]


@dataclass(frozen=True)
class Natural:
    """One client per subject, hospital or writer of the data. With fewer clients, the first ones."""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        groups = len(_require_groups(labels, "natural"))
        if clients > groups:
            raise UserError(f"data.clients: got {clients}, but the data have {groups} groups. Use {groups} or fewer.")
        return [
            Holding(np.flatnonzero(labels.train_group == client), np.flatnonzero(labels.test_group == client))
            for client in range(clients or groups)
        ]


@dataclass(frozen=True)
class FromFile:
    """The partition of an earlier run, read from its partition.json."""

    path: str = ""
    """path of the partition.json"""

    def split(self, labels: Labels, clients: int, seed: int) -> list[Holding]:
        path = Path(self.path).expanduser()
        if not self.path:
            raise UserError("partition.path is not set. Set it to the partition.json of a run.")
        if not path.is_file():
            raise UserError(f"partition.path: there is no file {path}. Set it to the partition.json of a run.")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            stored = content["clients"]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UserError(f"{path} is not a complete partition.json: {problem!r}. Give that of a run.") from problem
        if clients not in (0, len(stored)):
            raise UserError(f"data.clients: got {clients}, but {path} has {len(stored)}. Leave data.clients out.")
        try:
            parts = [
                Holding(
                    np.array(client["train"], int),
                    np.array(client["test"], int),
                    np.array(client["validation"], int),
                    client["own"],
                )
                for client in stored
            ]
        except (KeyError, TypeError, ValueError) as problem:
            raise UserError(f"{path} is not a complete partition.json: {problem!r}. Give that of a run.") from problem
        for part in parts:
            for positions, num_examples in (
                (part.train, len(labels.train)),
                (part.validation, len(labels.train)),
                (part.test, len(labels.train if part.own else labels.test)),
            ):
                if len(positions) and not 0 <= positions.min() <= positions.max() < num_examples:
                    raise UserError(
                        f"{path} belongs to other data: it has position {positions.max()}, but there are "
                        f"{num_examples:,} examples. Use the [data] section of its run."
                    )
        held = [labels.train[part.train] for part in parts]
        held += [(labels.train if part.own else labels.test)[part.test] for part in parts]
        if content.get("held", hash_of_labels(held)) != hash_of_labels(held):  # earlier versions did not store it
            raise UserError(
                f"{path} belongs to other data: the examples at its positions have other labels. Use the [data] "
                "section of its run and, with data.limit, its run.seed, which draws the examples."
            )
        return parts


def _draw_per_class(positions: np.ndarray, labels: np.ndarray, count: int, draw: np.random.RandomState) -> np.ndarray:
    """`count` random positions of each class, sorted; all positions of a class that has no more."""
    shuffled = draw.permutation(positions)
    by_class = [shuffled[labels[shuffled] == label][:count] for label in np.unique(labels[positions])]
    return np.sort(np.concatenate([positions[:0], *by_class]))


def _require_groups(labels: Labels, partition: str) -> tuple[str, ...]:
    """The names of the groups that the data come from; an error if the origin is not known."""
    if not labels.groups:
        raise UserError(
            f"partition.name: got {partition}, but these data do not say where each example comes from. "
            "Use another partition, such as dirichlet."
        )
    return labels.groups
