"""The members of a federation: clients with data and nets, and the balanced test set beside them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protofed.core import AnyMethod, Client, Net, Site
from protofed.data.partitions.base import Holding, stratified_share
from protofed.data.sources import SOURCES
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.config import GIVEN
from protofed.experiment.encoder import encode_dataset
from protofed.nets import make_net
from protofed.nets.weights import read_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from protofed.data.dataset import Dataset
    from protofed.experiment.config import Config
    from protofed.experiment.sections import EvalSection


@dataclass(frozen=True)
class Members:
    """Who there is. Clients are numbered from 0; `parts` says which examples of the data each one holds."""

    dataset: str
    labels: tuple[str | int, ...]  # what the classes 0, 1, ... are called
    nets: tuple[Net, ...]  # one for each client; clients with equal nets share the object
    train: tuple[Examples, ...]
    test: tuple[Examples, ...]
    balanced: tuple[Examples, ...]  # several where the inputs' shapes or constants differ
    parts: tuple[Holding, ...]
    validation: tuple[Examples, ...] = ()  # () where nobody has any
    groups: tuple[str, ...] = ()  # for each client where its data come from; () or "" where that is not one place
    remark: str = ""  # to be said wherever a result is shown: "subset", "re-made"
    notes: tuple[str, ...] = ()  # to be said when a run begins

    @classmethod
    def of(cls, config: Config) -> Members:
        """The members that an experiment file describes."""
        if config.data.name == GIVEN:
            raise UserError(
                "This experiment has data that were given to it in Python, so it runs there only: "
                "protofed.run(config, out, federation=...), with resume=True to go on."
            )
        data = SOURCES[config.data.name](config.data.root)
        data = data.limited(config.data.limit, config.run.seed) if config.data.limit else data
        data = encode_dataset(data, config.data.encoder) if config.data.encoder else data
        dealt = config.partition.split(data.holdings(), config.data.clients, config.run.seed)
        parts = tuple(
            _hold_out(part, data.train.labels.numpy(), config.eval, config.run.seed, client)
            for client, part in enumerate(dealt)
        )
        train = [data.train.subset(part.train) for part in parts]
        test = [(data.train if part.own else data.test).subset(part.test) for part in parts]
        validation = [data.train.subset(part.validation) for part in parts] if config.eval.validation else []
        balanced: tuple[Examples, ...] = (data.test,)
        if "client" in (config.data.normalise, data.normalise):
            train = [examples.by_own_statistics() for examples in train]
            test, validation = (
                [part.normalised_like(own) for part, own in zip(given, train, strict=bool(given))]
                for given in (test, validation)
            )
            balanced = tuple(test)  # each client's with its own constants
        nets, notes = load_net_weights(config, build_nets(config, [data.train.shape] * len(parts), data.classes))
        return cls(
            data.name,
            data.labels,
            nets,
            tuple(train),
            tuple(test),
            balanced,
            parts,
            tuple(validation),
            _origins(data, parts),
            data.remark,
            notes,
        )

    @classmethod
    def remembered(cls, config: Config, partition: Mapping[str, Any]) -> Members:
        """The members of an earlier run by its partition.json, without any data: enough to predict."""
        if any(choice.name == GIVEN for choice in config.nets):
            raise UserError(
                "This run has nets that were given to it in Python, so they are needed here, too: "
                "protofed.Result.load(folder, federation=...)."
            )
        nothing = tuple(Examples.none(**client["input"]) for client in partition["clients"])
        labels = tuple(partition["labels"])
        nets = build_nets(config, [examples.shape for examples in nothing], len(labels))
        parts = tuple(Holding(np.array(client["train"]), np.array(client["test"])) for client in partition["clients"])
        groups = tuple(client["group"] for client in partition["clients"])
        return cls(partition["dataset"], labels, nets, nothing, nothing, (), parts, (), groups, partition["remark"])

    @property
    def classes(self) -> int:
        return len(self.labels)

    @property
    def title(self) -> str:
        """The dataset as it is to be called wherever a result is shown."""
        return dataset_title(self.dataset, self.remark)

    def __len__(self) -> int:
        return len(self.nets)

    def server(self, seed: int, round: int) -> Site:
        """Where the server's hooks run."""
        return Site(self.nets[0], seed, round, None, len(self))

    def client(self, seed: int, round: int, number: int) -> Client:
        """Where a client's hooks run."""
        return Client(self.nets[number], seed, round, number, len(self), self.train[number])

    def describe(self) -> dict[str, Any]:
        """Who holds what, for partition.json, with hashes: of it and the data, of the nets, of weights given."""
        nets = list(dict.fromkeys(self.nets))
        holdings = [
            {key: value if isinstance(value, bool) else value.tolist() for key, value in part._asdict().items()}
            for part in self.parts
        ]
        built = [[nets.index(net), net.source] for net in self.nets]
        inputs = [train.input for train in self.train]
        digest = hashlib.sha256(json.dumps([self.dataset, self.labels, holdings, inputs]).encode())
        arrays = [array for part in (*self.train, *self.test, *self.balanced) for array in (part.x, part.y)]
        begun = hashlib.sha256()
        weights = [value for net in nets if net.given for value in net.init(torch.Generator()).values()]
        weights += [value for net in nets for _, value in sorted(net.layers.items())]
        for hashed, group in ((digest, arrays), (begun, weights)):
            for array in {id(array): array for array in group}.values():
                hashed.update(array.contiguous().numpy().data)
        groups = self.groups or ("",) * len(self)
        clients = [
            {**holding, "group": group, "input": train.input}
            for holding, group, train in zip(holdings, groups, self.train, strict=True)
        ]
        return {
            "dataset": self.dataset,
            "remark": self.remark,
            "sha256": digest.hexdigest(),
            "nets": hashlib.sha256(json.dumps(built).encode()).hexdigest(),
            "start": begun.hexdigest(),
            "labels": list(self.labels),
            "clients": clients,
        }

    def majority(self) -> float:
        """The mean accuracy of clients that always answer their commonest class: what a model has to beat."""
        shares = [test.labels.bincount().max().item() / len(test) for test in self.test if len(test)]
        return sum(shares) / len(shares) if shares else float("nan")

    def check_nets(self, name: str, method: AnyMethod) -> None:
        """Refuse nets that the method cannot bring together."""
        wanted: dict[str, Callable[[Net], Hashable]] = {
            "nothing": lambda net: None,
            "equal dim": lambda net: net.dim,
            "equal nets": lambda net: tuple(net.shapes.items()),
        }
        if len({wanted[method.needs](net) for net in self.nets}) == 1:
            return
        if method.needs == "equal nets":
            alike = len({net.name for net in self.nets}) < len(set(self.nets))
            more = " for inputs of shape {net.shape}" if alike else ""
            raise UserError(
                f"{name} cannot average nets of different shapes: {self.who_has_what(more)}. "
                "Use one net, or a method that shares prototypes (fedproto)."
            )
        raise UserError(
            f"{name} cannot bring embeddings of different sizes together: {self.who_has_what(' of dim {net.dim}')}. "
            "Give every net the same dim (net.dim)."
        )

    def who_has_what(self, more: str) -> str:
        """For example "clients 0-6 have cnn(channels=18), 7-13 cnn(channels=20)"."""
        groups: list[list[int]] = []
        for number, net in enumerate(self.nets):
            if groups and self.nets[groups[-1][0]] is net:
                groups[-1].append(number)
            else:
                groups.append([number])
        told: list[str] = []
        for group in groups:
            net = self.nets[group[0]]
            who = f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0])
            told.append(f"{who} {'have ' if not told else ''}{net.name}{more.format(net=net)}")
        return f"clients {', '.join(told)}"


def dataset_title(dataset: str, remark: str) -> str:
    """A dataset with what must be said about it.

    >>> dataset_title("synthdigits", "re-made")
    'synthdigits (re-made)'
    """
    return f"{dataset} ({remark})" if remark else dataset


def _hold_out(part: Holding, labels: np.ndarray, how: EvalSection, seed: int, client: int) -> Holding:
    """A client's part with its own test set and validation set taken from its training examples, if asked for."""
    if how.test == "own" and not part.own:
        held = stratified_share(labels[part.train], 0.2, random_state(seed, "own test", client))
        part = part._replace(train=part.train[~held], test=part.train[held], own=True)
    if how.validation and not len(part.validation):
        held = stratified_share(labels[part.train], how.validation, random_state(seed, "validation", client))
        part = part._replace(train=part.train[~held], validation=part.train[held])
    return part


def _origins(data: Dataset, parts: Sequence[Holding]) -> tuple[str, ...]:
    """For each client where its data come from, if it is one place."""
    if data.train_group is None:
        return ()
    places = [np.unique(data.train_group[part.train]) for part in parts]
    return tuple(data.groups[own[0]] if len(own) == 1 and data.groups else "" for own in places)


def build_nets(config: Config, shapes: Sequence[tuple[int, ...]], classes: int) -> tuple[Net, ...]:
    """The nets of an experiment shared out among clients with inputs of these shapes."""
    designs = [choice.design for choice in config.nets]
    counts = counts_by_share([choice.share for choice in config.nets], len(shapes))
    places = [place for place, count in enumerate(counts) for _ in range(count)]
    wanted = list(zip(places, shapes, strict=True))
    made = {
        (place, shape): make_net(config.nets[place].name, designs[place], shape, classes, designs)
        for place, shape in dict.fromkeys(wanted)
    }
    return tuple(made[want] for want in wanted)


def load_net_weights(config: Config, nets: tuple[Net, ...]) -> tuple[tuple[Net, ...], tuple[str, ...]]:
    """The nets with the layers that files give them, and a report of what matched."""
    counts = counts_by_share([choice.share for choice in config.nets], len(nets))
    files = [choice.weights for choice, count in zip(config.nets, counts, strict=True) for _ in range(count)]
    made: dict[tuple[Net, str], Net] = {}
    notes = []
    for net, file in dict.fromkeys(zip(nets, files, strict=True)):
        made[net, file] = net.starting_from(read_weights(file)) if file else net
        if file:
            left = [name for name in net.shapes if name not in made[net, file].layers]
            rest = f"; at random: {', '.join(left)}" if left else ""
            notes.append(
                f"net {net.name}: {len(net.shapes) - len(left)} of {len(net.shapes)} tensors from {file}{rest}"
            )
    return tuple(made[key] for key in zip(nets, files, strict=True)), tuple(notes)


def counts_by_share(shares: list[float], clients: int) -> list[int]:
    """How many clients each share gets: largest remainders, the first one first.

    >>> counts_by_share([1, 1, 1], 20)
    [7, 7, 6]
    """
    exact = [share * clients / sum(shares) for share in shares]
    counts = [int(value) for value in exact]
    order = sorted(range(len(shares)), key=lambda place: (counts[place] - exact[place], place))
    for place in order[: clients - sum(counts)]:
        counts[place] += 1
    return counts
