"""A federation in this process: Flower's grid calls the apps directly, without sockets, processes or waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from protofed.data.partitions.base import Holding
from protofed.deploy.client_app import app
from protofed.deploy.client_data import write_balanced, write_client_data
from protofed.deploy.policy import kinds_sent
from protofed.deploy.server_app import serve
from protofed.engines.flower.wire import record_figures, record_tensors, to_records
from protofed.experiment.config import Config
from protofed.experiment.member_nets import build_nets
from protofed.experiment.members import Members
from protofed.experiment.results import Result
from toys import CLASSES, examples

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower sets them in its processes; Message asks

NAMES = ("a", "b", "c")
LABELS = ([0, 1, 2] * 4, [0, 1] * 3, [1, 2, 2, 2, 2])
"""Three clients: all classes; two; a class with one example."""
Fault = Callable[[Message, Message], list[Message]]
"""Gets a message and the answer to it, and returns the answers that arrive."""


class FakeClock:
    """Time that passes only in `sleep`."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class LocalGrid(Grid):
    """Nodes with the folders of their clients. `faults`: per (name of the client, kind, round from 1) what arrives."""

    def __init__(
        self, root: Path, names: Sequence[str] = NAMES, faults: Mapping[tuple[str, str, int], Fault] | None = None
    ) -> None:
        self.folders = {100 + number: root / "clients" / name for number, name in enumerate(names)}
        self.faults, self.clock = faults or {}, FakeClock()
        self.delays: dict[str, float] = {}  # seconds by name of the client
        self.on_push: Callable[[Message], None] = lambda message: None
        self.answers: dict[str, tuple[float, list[Message]]] = {}
        self.exchanged: list[tuple[str, Message, Message]] = []  # the name of the client, the message, its answer

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    send_and_receive = create_message  # type: ignore[assignment]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.folders)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self.push(message) for message in messages]

    def push(self, message: Message) -> str:
        self.on_push(message)
        name = str(len(self.exchanged) + 1)
        message.metadata.__dict__["_message_id"] = name
        folder = self.folders.get(message.metadata.dst_node_id)
        if folder is None:
            self.answers[name] = (0.0, [Message(Error(5, "node unavailable"), reply_to=message)])
            return name
        reply = call(folder, message)
        self.exchanged.append((folder.name, message, reply))
        round = record_figures(message.content).get("round", -1) + 1
        fault = self.faults.get((folder.name, message.metadata.message_type, round))
        arrives = self.clock.now() + (self.delays.get(folder.name, 0.0) if round else 0.0)
        self.answers[name] = (arrives, fault(message, reply) if fault else [reply])
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [name for name in message_ids if name in self.answers and self.answers[name][0] <= self.clock.now()]
        return [answer for name in ready for answer in self.answers.pop(name)[1]]


def call(folder: Path, message: Message) -> Message:
    """The answer of a client's app to a message."""
    context = Context(1, message.metadata.dst_node_id, {"folder": str(folder)}, RecordDict(), {})
    return app(message=message, context=context)


def altered(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Fault:
    """A fault that changes the tensors and the figures of an answer."""

    def fault(message: Message, reply: Message) -> list[Message]:
        tensors, figures = record_tensors(reply.content), record_figures(reply.content)
        change(tensors, figures)
        return [Message(to_records(tensors, figures), reply_to=message)]

    return fault


def toy_config(method: str = "fedproto", /, rounds: int = 2, **sections: dict[str, Any]) -> dict[str, Any]:
    """An experiment file for toy clients."""
    table: dict[str, Any] = {
        "run": {"rounds": rounds, "seed": 1},
        "data": {"name": "given"},
        "partition": {"name": "given"},
        "net": {"name": "mlp", "hidden": [6], "dim": 5},
        "method": {"name": method},
        "train": {"batch": 4, "lr": 0.1},
        "engine": {"name": "loop", "workers": 1},
    }
    for section, keys in sections.items():
        table[section] = {**table.get(section, {}), **keys}
    return table


def toy_members(config: Config, labels: Sequence[Sequence[int]] = LABELS) -> Members:
    """The toy clients as the simulator has them."""
    train = tuple(examples(own, seed) for seed, own in enumerate(labels))
    test = tuple(examples([0, 1, 2], 100 + seed) for seed, _ in enumerate(labels))
    parts = tuple(Holding(np.arange(len(own)), np.arange(3)) for own in labels)
    nets = build_nets(config, [part.shape for part in train], CLASSES)
    return Members(
        "toy",
        tuple(range(CLASSES)),
        nets,
        train,
        test,
        (examples([0, 1, 2] * 5, 7),),
        parts,
        names=NAMES[: len(labels)],
    )


def write_toml(path: Path, table: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tomli_w.dumps(table))


def deploy(
    root: Path, table: dict[str, Any], members: Members | None = None, names: Sequence[str] = NAMES, **server: Any
) -> Members:
    """Write the folders of a server and its clients."""
    config = Config.of(table)
    members = members or toy_members(config)
    write_toml(root / "server" / "experiment.toml", table)
    write_toml(root / "server" / "server.toml", {"clients": list(names), "classes": list(members.labels), **server})
    write_balanced(root / "server" / "balanced.npz", members)
    for number, name in enumerate(names):
        folder = root / "clients" / name
        write_toml(folder / "experiment.toml", table)
        write_toml(folder / "client.toml", {"name": name})
        write_toml(folder / "policy.toml", {"may_send": sorted(kinds_sent(config.method))})
        write_client_data(folder / "data.npz", members, number)
    return members


def federate(root: Path, grid: LocalGrid | None = None, **options: Any) -> Result:
    """Run the server of a deployment; its clients answer in this process."""
    grid = grid or LocalGrid(root)
    return serve(grid, root / "server", clock=grid.clock, **options)


def without_time(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of rounds.jsonl without the seconds that they took."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rounds]
