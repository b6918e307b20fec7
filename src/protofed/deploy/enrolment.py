"""Enrolment: each client describes itself, and the server builds from that all it needs to know, without data."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protofed import __version__
from protofed.data.labels import ClassNames, class_names
from protofed.data.partitions.base import Holding
from protofed.deploy.descriptions import Description, checked_description
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.folder import write_atomically
from protofed.experiment.member_nets import own_or_shared_nets
from protofed.experiment.members import Members

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.deploy.settings import ServerSettings
    from protofed.experiment.config import Config

FEDERATION_FILE = "federation.json"
"""The file of the server with the id of the run and the clients' descriptions."""


@dataclass(frozen=True)
class CountedExamples(Examples):
    """A client's examples as the server knows them: how many there are, and how many of each class; not one input."""

    size: int = 0
    counts: Tensor | None = None  # [classes]

    def __len__(self) -> int:
        return self.size

    @property
    def num_labels(self) -> int:
        return self.size if self.mask is None or self.counts is None else int(self.counts.sum())

    def class_counts(self, classes: int) -> Tensor:
        return torch.zeros(classes, dtype=torch.long) if self.counts is None else self.counts


@dataclass(frozen=True)
class EnrolledMembers(Members):
    """The clients that enrolled. Their nets are known, their data are not."""

    net_tables: tuple[dict[str, Any] | None, ...] = ()  # the [net] of each client that has one of its own

    def describe(self) -> dict[str, Any]:
        """The content of partition.json, with the nets that clients chose."""
        described = super().describe()
        for client, table in zip(described["clients"], self.net_tables, strict=True):
            client["net"] = table
        return described


class Enrolment:
    """Which clients take part, and what they said about themselves."""

    def __init__(self, folder: Path, config: Config, settings: ServerSettings, resume: bool) -> None:
        self.file, self.config, self.settings = folder / FEDERATION_FILE, config, settings
        self.names: tuple[str, ...] = settings.clients
        self.descriptions: dict[str, Description] = {}
        self.run, self.is_fixed = uuid.uuid4().hex, False
        if resume:
            self.run, self.descriptions = _stored_federation(self.file)
            self.names, self.is_fixed = tuple(self.descriptions), True

    def admit(self, node: int, figures: Description) -> int:
        """The number of the client with this description; an error that says why it is refused."""
        name = figures.get("name")
        if not isinstance(name, str) or name not in self.settings.clients:
            raise UserError(f"it is called {name!r}. server.toml lists {', '.join(self.settings.clients)}.")
        if name not in self.names:
            raise UserError(f"client {name} came after the start of the run. It can join when the run has ended.")
        if self.settings.node_ids and self.settings.node_ids.get(name) != node:
            owner = f"node {self.settings.node_ids[name]}" if name in self.settings.node_ids else "no node"
            raise UserError(
                f"it calls itself {name}, but server.toml and the registered keys give this name to {owner}."
            )
        if figures.get("version") != __version__:
            raise UserError(
                f"client {name} has protofed {figures.get('version')}, the server {__version__}. Install one version."
            )
        if figures.get("experiment") != self.config.digest():
            raise UserError(
                f"client {name} has another experiment file than the server. Copy the server's experiment.toml."
            )
        description = self._checked(name, figures)
        if self.is_fixed and description != self.descriptions[name]:
            raise UserError(
                f"client {name} has other data, another net or another policy than at the start of the run. Restore "
                "them, or start a new run."
            )
        return self.names.index(name)

    def accept(self, number: int, figures: Description) -> None:
        """Remember the description of a client."""
        self.descriptions[self.names[number]] = self._checked(self.names[number], figures)

    def _checked(self, name: str, figures: Description) -> Description:
        """The parts of a description that are kept; an error if the server cannot work with one of them."""
        try:
            description = checked_description(figures, self.config, self.settings.classes)
        except ValueError as problem:
            reason = str(problem).removesuffix(".")
            raise UserError(f"client {name} cannot take part with what it says about itself: {reason}.") from None
        known = self.settings.classes
        names = [label for pairs in description["counts"] for label, _ in pairs]
        if known and (unknown := [label for label in names if label not in known]):
            raise UserError(f"client {name} has the class {unknown[0]!r}, which server.toml does not list in classes.")
        return description

    def fix(self, names: list[str]) -> None:
        """Let these clients be the members of the run, and write them to the server's folder."""
        self.names, self.is_fixed = tuple(names), True
        self.descriptions = {name: self.descriptions[name] for name in names}
        content = {"run": self.run, "descriptions": self.descriptions}
        write_atomically(self.file, json.dumps(content, indent=1).encode())

    def labels(self) -> ClassNames:
        """The classes that all agree on: those of server.toml, otherwise all that clients reported, sorted."""
        if self.settings.classes:
            return self.settings.classes
        reported = {
            name: [label for pairs in described["counts"] for label, _ in pairs]
            for name, described in self.descriptions.items()
        }
        every = [label for labels in reported.values() for label in labels]
        if not every:
            raise UserError("No client reports its classes. List them in server.toml: classes = [...].")
        if len({type(label) for label in every}) > 1:
            texts = ", ".join(f"{name}: {labels[0]!r}" for name, labels in reported.items() if labels)
            raise UserError(f"Some clients' classes are names, others' are whole numbers ({texts}). Use the same kind.")
        return class_names([np.array(every)], None)

    def members(self, balanced: tuple[Examples, ...]) -> EnrolledMembers:
        """The clients without their data."""
        labels, described = self.labels(), [self.descriptions[name] for name in self.names]
        image_labels = tuple(dict.fromkeys(label for client in described for label, _ in client["images"]))
        pairs = [_counted(client, labels, image_labels) for client in described]
        tables = tuple(client["net"] for client in described)
        nets = own_or_shared_nets(self.config, [train.shape for train, _ in pairs], len(labels), tables)
        validation_sizes = [client["sizes"][2] for client in described]
        validation = tuple(
            replace(train, size=size, counts=None) for (train, _), size in zip(pairs, validation_sizes, strict=True)
        ) * (min(validation_sizes) >= 0)
        groups = tuple(client["group"] for client in described)
        return EnrolledMembers(
            described[0]["dataset"],
            labels,
            nets,
            tuple(train for train, _ in pairs),
            tuple(test for _, test in pairs),
            balanced,
            tuple(
                Holding(np.arange(len(train)), np.arange(len(test)), own=client["own"])
                for (train, test), client in zip(pairs, described, strict=True)
            ),
            validation,
            groups if any(groups) else (),
            described[0]["remark"],
            image_labels=image_labels,
            names=self.names,
            net_tables=tables,
        )

    def held_classes(self, labels: ClassNames) -> tuple[Tensor | None, ...]:
        """Per client whether it enrolled with each class [classes]; None if it does not report its classes."""
        held: list[Tensor | None] = []
        for name in self.names:
            names = {label for label, _ in self.descriptions[name]["counts"][0]}
            held.append(torch.tensor([label in names for label in labels]) if names else None)
        return tuple(held)


def _stored_federation(file: Path) -> tuple[str, dict[str, Description]]:
    """The id of a run and its clients' descriptions; an error if the file is missing or damaged."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        run, descriptions = stored["run"], stored["descriptions"]
        are_tables = descriptions and all(type(client) is dict for client in descriptions.values())
        if are_tables and re.fullmatch(r"[0-9a-f]{32}", run):
            return run, descriptions
        problem = "is damaged"
    except FileNotFoundError:
        problem = "is missing"
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problem = "is damaged"
    raise UserError(
        f"{file} {problem}, so the run cannot be resumed: clients find the models that they keep by its id. Restore "
        f"the file from a backup, or move {file.parent / 'run'} to another place and start a new run."
    )


class _Pair(NamedTuple):
    train: CountedExamples
    test: CountedExamples


def _counted(client: Description, labels: ClassNames, image_labels: ClassNames) -> _Pair:
    """The training and test examples of a client as the server knows them."""
    empty = Examples.empty(**client["input"])
    mask = torch.zeros((0, *empty.shape[1:]), dtype=torch.uint8) if client["pixels"] else None
    parts = []
    for size, pairs in zip(client["sizes"], client["counts"], strict=False):
        counts = torch.zeros(len(labels), dtype=torch.long)
        for label, count in pairs:
            counts[labels.index(label)] = count
        numbers = [image_labels.index(label) for label, _ in client["images"]]
        y = torch.tensor(numbers) if image_labels else counts.nonzero().flatten()
        constants = {key: getattr(empty, key) for key in ("scale", "mean", "std", "fill")}
        parts.append(
            CountedExamples(empty.x, y, torch.arange(len(y)), **constants, mask=mask, size=size, counts=counts)
        )
    return _Pair(*parts)
