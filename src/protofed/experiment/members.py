"""All clients of an experiment, with data and nets, and the balanced test set."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protofed.core import AnyMethod, Client, Net, Site
from protofed.data.partitions import mixed_origins_notes
from protofed.data.partitions.base import Holding, are_drawn, check_holdings, hash_of_labels
from protofed.data.sources import SOURCES
from protofed.data.table.recipe import Recipe, shared_recipe
from protofed.errors import UserError, did_you_mean
from protofed.examples import Examples
from protofed.experiment.encoder import encode_dataset
from protofed.experiment.held_out import hold_out, require_disjoint
from protofed.experiment.member_nets import client_nets, constants_of_weights, own_or_shared_nets
from protofed.experiment.sections import TABLE
from protofed.experiment.stored import GIVEN
from protofed.experiment.wording import dataset_title
from protofed.plugins import label, origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from protofed.data.dataset import Dataset
    from protofed.experiment.config import Config


@dataclass(frozen=True)
class Members:
    """All clients of an experiment, with data and nets, built from an experiment file or a `Federation`.

    Clients are numbered from 0.
    """

    dataset: str
    labels: tuple[str | int, ...]  # the names of the classes 0, 1, ...; if every pixel has a label, of the pixels'
    nets: tuple[Net, ...]  # one per client; clients with equal nets share the object
    train: tuple[Examples, ...]  # one set per client
    test: tuple[Examples, ...]  # one set per client
    balanced: tuple[Examples, ...]  # several sets if the shapes of inputs or the constants differ
    parts: tuple[Holding, ...]  # the positions of each client's examples in the dataset
    validation: tuple[Examples, ...] = ()  # one set per client, or () if there is no validation
    groups: tuple[str, ...] = ()  # the origin of each client's data, "" if it has several; () if there are no groups
    remark: str = ""  # shown with every result, for example "subset" or "re-made"
    notes: tuple[str, ...] = ()  # shown when a run starts
    image_labels: tuple[str | int, ...] = ()  # the names of the labels of images, if pixels have other ones
    names: tuple[str, ...] = ()  # one per client; () if clients have numbers only
    recipes: tuple[Recipe, ...] = ()  # of tables: how each client makes inputs of its rows

    @classmethod
    def of(
        cls, config: Config, say: Callable[[str], None] = lambda text: None, nets: Sequence[Any] | None = None
    ) -> Members:
        """The clients that an experiment file describes.

        `say` shows the progress of long work to the user. `nets`: those that were given in Python, instead of [net].
        """
        if config.data.name == GIVEN:
            raise UserError(
                "This experiment has data that were given in Python, so it runs from Python only: "
                "protofed.run(config, out, federation=...), with resume=True to continue it."
            )
        if config.data.name == TABLE:
            from protofed.experiment.table_members import members_of_files

            return members_of_files(config)
        data = encode_dataset(SOURCES.find(config.data.name)[1](config.data.root), config.data, say)
        data = data.from_domains(config.data.domains) if config.data.domains else data
        data = data.with_test_set_in_training_set() if config.eval.test == "merged" else data
        data = data.limited(config.data.limit, config.run.seed) if config.data.limit else data
        labels = data.partition_labels()
        holdings = config.partition.split(labels, config.data.clients, config.run.seed)
        if origin_of(type(config.partition)):
            check_holdings(holdings, labels, config.data.clients, label(config.partition_name))
        train_labels = data.train.labels.numpy()
        require_disjoint(holdings, config)
        parts = tuple(
            hold_out(part, train_labels, config.eval, config.run.seed, client) for client, part in enumerate(holdings)
        )
        train = [data.train.subset(part.train) for part in parts]
        test = [(data.train if part.own else data.test).subset(part.test) for part in parts]
        validation = [data.train.subset(part.validation) for part in parts] if config.eval.validation else []
        balanced: tuple[Examples, ...] = (data.test,)
        if config.eval.test == "merged":  # there is no other test set than those of the clients
            balanced = (replace(data.train, index=torch.cat([examples.index for examples in test])),)
        statistics = data.normalise if config.data.normalise == "dataset" else config.data.normalise
        data.must_be_finite(missing_allowed=statistics != "constants")
        if statistics != "constants":
            if statistics == "client":
                constants = [examples.by_own_statistics() for examples in train]
            elif statistics == "weights":
                constants = [constants_of_weights(config, data.train)] * len(train)
            else:
                pooled = replace(data.train, index=torch.cat([examples.index for examples in train]))
                constants = [pooled.by_own_statistics()] * len(train)
            train, test, validation = (
                [part.normalised_like(client) for part, client in zip(sets, constants, strict=bool(sets))]
                for sets in (train, test, validation)
            )
            # by client: the test set of each client, with the client's constants
            balanced = tuple(test) if statistics == "client" else (balanced[0].normalised_like(constants[0]),)
        built, notes = client_nets(config, train, data.classes, nets)
        if config.data.name == "npz":
            notes = (*notes, *mixed_origins_notes(config.partition_name, len(data.groups)))
        return cls(
            data.name,
            data.labels,
            built,
            tuple(train),
            tuple(test),
            balanced,
            parts,
            tuple(validation),
            _origins(data, parts),
            data.remark,
            notes,
            data.image_labels,
        )

    @classmethod
    def from_partition(cls, config: Config, partition: Mapping[str, Any]) -> Members:
        """The clients of an earlier run, from its partition.json and without data. They can predict."""
        if config.data.name == GIVEN and any(choice.name == GIVEN for choice in config.nets):
            raise UserError(
                "This run has nets that were given in Python, so they are needed again: "
                "protofed.Result.load(folder, federation=...)."
            )
        no_data = tuple(Examples.empty(**client["input"]) for client in partition["clients"])
        labels = tuple(partition["labels"])
        tables = [client.get("net") for client in partition["clients"]]  # nets that clients of a deployment chose
        if any(tables):
            built = own_or_shared_nets(config, [examples.shape for examples in no_data], len(labels), tables)
        else:
            built, _ = client_nets(config, no_data, len(labels), None, weights=False)
        parts = tuple(Holding(np.array(client["train"]), np.array(client["test"])) for client in partition["clients"])
        groups = tuple(client["group"] for client in partition["clients"])
        names = tuple(client["name"] for client in partition["clients"] if "name" in client)
        recipes = tuple(Recipe.of_json(client["recipe"]) for client in partition["clients"] if "recipe" in client)
        return cls(
            partition["dataset"],
            labels,
            built,
            no_data,
            no_data,
            (),
            parts,
            groups=groups,
            remark=partition["remark"],
            names=names,
            recipes=recipes,
        )

    @property
    def classes(self) -> int:
        return len(self.labels)

    @property
    def example_labels(self) -> tuple[str | int, ...]:
        """The names of the labels of examples, by which they are divided among clients."""
        return self.image_labels or self.labels

    @property
    def title(self) -> str:
        """The name of the dataset, with its remark, as it is shown with every result."""
        return dataset_title(self.dataset, self.remark)

    def __len__(self) -> int:
        return len(self.nets)

    def require_same_inputs(self) -> None:
        """Raise an error if clients do not normalise inputs in the same way: new inputs then belong to one of them."""
        differ = any(part.input != self.train[0].input for part in self.train)
        if differ or (self.recipes and shared_recipe(self.recipes) is None):
            raise UserError(
                "Clients of this run normalise their inputs by their own statistics, so new inputs belong to one of "
                "them. Name it: --client NAME (in Python: client=...)."
            )

    def client_name(self, number: int) -> str:
        """The name of a client; "client" and its number if it has no name."""
        return self.names[number] if self.names else f"client {number}"

    def client_number(self, client: int | str) -> int:
        """The number of a client that is given by its number or its name; an error if there is no such client."""
        names = self.names or (self.groups if len(set(self.groups)) == len(self) else ())
        if isinstance(client, str) and client in names:
            return names.index(client)
        number = int(client) if isinstance(client, str) and client.isdecimal() else client
        if isinstance(number, int) and 0 <= number < len(self):
            return number
        known = f" {did_you_mean(str(client), names)}" if names else ""
        raise UserError(f"There is no client {number!r}; clients are numbered from 0 to {len(self) - 1}.{known}")

    def server(self, seed: int, round: int) -> Site:
        """The site of the server's hooks."""
        return Site(self.nets[0], seed, round, None, len(self))

    def client(self, seed: int, round: int, number: int) -> Client:
        """The site of a client's hooks."""
        return Client(self.nets[number], seed, round, number, len(self), self.train[number])

    def describe(self) -> dict[str, Any]:
        """The content of partition.json: the examples of each client; hashes of the data, nets and given weights."""
        nets = list(dict.fromkeys(self.nets))
        holdings = [
            {key: value if isinstance(value, bool) else value.tolist() for key, value in part._asdict().items()}
            for part in self.parts
        ]
        sources = [[nets.index(net), net.source] for net in self.nets]
        inputs = [train.input for train in self.train]
        data_hash = hashlib.sha256(json.dumps([self.dataset, self.labels, holdings, inputs]).encode())
        sets = (*self.train, *self.test, *self.balanced)
        arrays = [tensor for part in sets for tensor in (part.x, part.y, part.mask) if tensor is not None]
        pairs = zip(self.train, self.parts, strict=True)
        arrays += [train.index for train, part in pairs if are_drawn(train.index.numpy(), part.train)]
        weights_hash = hashlib.sha256()
        weights = [value for net in nets if net.fixed_init for value in net.init(torch.Generator()).values()]
        weights += [value for net in nets for _, value in sorted(net.initial_params.items())]
        for digest, tensors in ((data_hash, arrays), (weights_hash, weights)):
            for tensor in {id(tensor): tensor for tensor in tensors}.values():
                digest.update(tensor.contiguous().numpy().data)
        groups = self.groups or ("",) * len(self)
        clients = [
            {**holding, "group": group, "input": train.input}
            for holding, group, train in zip(holdings, groups, self.train, strict=True)
        ]
        for key, values in (("name", self.names), ("recipe", [recipe.json() for recipe in self.recipes])):
            for client, value in zip(clients, values, strict=False):
                client[key] = value
        return {
            "dataset": self.dataset,
            "remark": self.remark,
            "sha256": data_hash.hexdigest(),
            "nets": hashlib.sha256(json.dumps(sources).encode()).hexdigest(),
            "start": weights_hash.hexdigest(),
            "labels": list(self.labels),
            "held": hash_of_labels([part.labels.numpy() for part in (*self.train, *self.test)]),
            "clients": clients,
        }

    def check_nets(self, name: str, method: AnyMethod) -> None:
        """Raise an error if the method cannot combine the nets of the clients."""
        must_be_equal: dict[str, Callable[[Net], Hashable]] = {
            "nothing": lambda net: None,
            "equal dim": lambda net: net.dim,
            "equal nets": lambda net: tuple(net.shapes.items()),
        }
        if method.needs == "equal nets" and (partial := next((net for net in self.nets if net.outputs), None)):
            raise UserError(
                f"{name} combines the heads of clients, but {partial.name} has outputs for its client's classes only. "
                f"Give every net {len(self.labels)} outputs, or use a method that shares prototypes (fedproto)."
            )
        if len({must_be_equal[method.needs](net) for net in self.nets}) == 1:
            return
        if method.needs == "equal nets":
            same_name = len({net.name for net in self.nets}) < len(set(self.nets))
            detail = " for inputs of shape {net.shape}" if same_name else ""
            same_inputs = 'Give all clients the same inputs (tables: data.scaling = "federated"),'
            equal = same_inputs if same_name else "Use one net,"
            raise UserError(
                f"{name} cannot average nets of different shapes: {self._nets_by_client(detail)}. "
                f"{equal} or a method that shares prototypes (fedproto)."
            )
        raise UserError(
            f"{name} needs embeddings of the same size: {self._nets_by_client(' of dim {net.dim}')}. "
            "Give every net the same dim (net.dim)."
        )

    def _nets_by_client(self, detail: str) -> str:
        """For example "clients 0-6 have cnn(channels=18), 7-13 cnn(channels=20)". `detail` is added to each net."""
        groups: list[list[int]] = []
        for number, net in enumerate(self.nets):
            if groups and self.nets[groups[-1][0]] is net:
                groups[-1].append(number)
            else:
                groups.append([number])
        first = "clients {} have" if len(groups[0]) > 1 else "client {} has"
        parts: list[str] = []
        for group in groups:
            net = self.nets[group[0]]
            clients = f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0])
            holders = clients if parts else first.format(clients)
            parts.append(f"{holders} {net.name}{detail.format(net=net)}")
        return ", ".join(parts)


def _origins(data: Dataset, parts: Sequence[Holding]) -> tuple[str, ...]:
    """The group that each client's data come from, "" if there are several; () if the dataset has no groups."""
    if data.train_group is None:
        return ()
    numbers = [np.unique(data.train_group[part.train]) for part in parts]  # of the groups, for each client
    return tuple(data.groups[number[0]] if len(number) == 1 and data.groups else "" for number in numbers)
