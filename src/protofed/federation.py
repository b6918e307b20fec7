"""A federation: clients with data and nets, and the balanced test set beside them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protofed.core import AnyMethod, Client, Net, Site
from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.nets import make

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from protofed.config import Config
    from protofed.data.examples import Examples
    from protofed.data.partition import Part


@dataclass(frozen=True)
class Federation:
    """Who there is. Clients are numbered from 0; `parts` says which examples of the dataset each one holds."""

    dataset: str
    classes: int
    nets: tuple[Net, ...]  # one for each client; clients with equal nets share the object
    train: tuple[Examples, ...]
    test: tuple[Examples, ...]
    balanced: Examples
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, config: Config) -> Federation:
        """The federation that an experiment file describes."""
        data = SOURCES[config.data.name](config.data.root)
        clients = config.data.clients
        parts = config.partition.split(
            data.train.labels.numpy(), data.test.labels.numpy(), data.classes, clients, config.run.seed
        )
        designs = [choice.design for choice in config.nets]
        made = [make(choice.name, choice.design, data.train.shape, data.classes, designs) for choice in config.nets]
        counts = shared_out([choice.share for choice in config.nets], clients)
        nets = [net for net, count in zip(made, counts, strict=True) for _ in range(count)]
        return cls(
            data.name, data.classes, tuple(nets), tuple(data.train.subset(part.train) for part in parts),
            tuple(data.test.subset(part.test) for part in parts), data.test, tuple(parts),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.nets)

    def server(self, seed: int, round: int) -> Site:
        """Where the server's hooks run."""
        return Site(self.nets[0], seed, round, None, len(self))

    def client(self, seed: int, round: int, number: int) -> Client:
        """Where a client's hooks run."""
        return Client(self.nets[number], seed, round, number, len(self), self.train[number])

    def describe(self) -> dict[str, Any]:
        """Who holds what, for partition.json, with a hash of it and of the data."""
        holdings = [{"train": part.train.tolist(), "test": part.test.tolist()} for part in self.parts]
        digest = hashlib.sha256(json.dumps([self.dataset, holdings]).encode())
        arrays = {id(array): array for part in (*self.train, *self.test, self.balanced) for array in (part.x, part.y)}
        for array in arrays.values():
            digest.update(array.numpy().data)
        return {"dataset": self.dataset, "sha256": digest.hexdigest(), "clients": holdings}

    def majority(self) -> float:
        """The mean accuracy of clients that always answer their commonest class: what a model has to beat."""
        shares = [test.labels.bincount().max().item() / len(test) for test in self.test if len(test)]
        return sum(shares) / len(shares) if shares else float("nan")

    def admit(self, name: str, method: AnyMethod) -> None:
        """Refuse nets that the method cannot bring together."""
        wanted: dict[str, Callable[[Net], Hashable]] = {
            "nothing": lambda net: None,
            "equal dim": lambda net: net.dim,
            "equal nets": lambda net: tuple(net.shapes.items()),
        }
        if len({wanted[method.needs](net) for net in self.nets}) == 1:
            return
        if method.needs == "equal nets":
            raise UserError(
                f"{name} cannot average nets of different shapes: {self.who_has_what('')}. "
                "Use one net, or a method that shares prototypes (fedproto)."
            )
        raise UserError(
            f"{name} cannot bring embeddings of different sizes together: {self.who_has_what(' of dim {net.dim}')}. "
            "Give every net the same dim."
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


def shared_out(shares: list[float], clients: int) -> list[int]:
    """How many clients each share gets: largest remainders, the first one first.

    >>> shared_out([1, 1, 1], 20)
    [7, 7, 6]
    """
    exact = [share * clients / sum(shares) for share in shares]
    counts = [int(value) for value in exact]
    order = sorted(range(len(shares)), key=lambda place: (counts[place] - exact[place], place))
    for place in order[: clients - sum(counts)]:
        counts[place] += 1
    return counts
