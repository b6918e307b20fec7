"""Small federations for checks and tests: points in 4 dimensions, unequal clients, and short runs on an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from protofed.data.partitions.base import Holding
from protofed.engines.pool import Pool
from protofed.examples import Examples
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.run import resolve_engine
from protofed.experiment.runner import Runner
from protofed.messages import flatten
from protofed.net import Net

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.core import AnyMethod
    from protofed.experiment.folder import Folder
    from protofed.training import TrainSection

TOY_CLASSES = 3
TOY_INPUTS = 4
UNEQUAL_LABELS = [[0, 1, 2] * 4, [0, 1] * 3, [2], [], [1] * 5, [0, 2, 2, 2]]
"""Unequal clients: all classes; two; a single example; none at all; a single class; a class with one example."""


def toy_layers(dim: int = 5, hidden: int = 6, dropout: float = 0.0, norm: bool = False) -> tuple[nn.Module, nn.Module]:
    """The body and head of a small net."""
    middle = [nn.BatchNorm1d(hidden)] if norm else []
    body = nn.Sequential(nn.Linear(TOY_INPUTS, hidden), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, dim))
    return body, nn.Linear(dim, TOY_CLASSES)


def toy_net(name: str = "toy", **options: Any) -> Net:
    """A small net; `options` are those of `toy_layers`."""
    return Net(name, partial(toy_layers, **options), (TOY_INPUTS,), TOY_CLASSES)


def toy_examples(labels: Sequence[int], seed: int = 0) -> Examples:
    """One cloud of points per class, far enough apart to be learned."""
    y = np.asarray(labels, dtype=np.int64)
    noise = np.random.RandomState(seed).normal(size=(len(y), TOY_INPUTS))
    return Examples.of((noise + 3 * np.eye(TOY_CLASSES, TOY_INPUTS)[y]).astype(np.float32), y)


def toy_members(labels: Sequence[Sequence[int]] = UNEQUAL_LABELS, nets: Sequence[Net] | None = None) -> Members:
    """Clients with these labels."""
    nets = nets or [toy_net()] * len(labels)
    train = tuple(toy_examples(own, seed) for seed, own in enumerate(labels))
    test = tuple(toy_examples([0, 1, 2] if len(own) else [], 100 + seed) for seed, own in enumerate(labels))
    parts = tuple(Holding(np.arange(len(own)), np.arange(len(own))) for own in labels)
    balanced = (toy_examples([0, 1, 2] * 5, 7),)
    return Members("toy", tuple(range(TOY_CLASSES)), tuple(nets), train, test, balanced, parts)


def toy_config(method: str | AnyMethod = "fedproto", /, rounds: int = 3, **sections: Mapping[str, Any]) -> Config:
    """An experiment; a method that is not registered may be given as an object."""
    name = method if isinstance(method, str) else "local"
    table: dict[str, Any] = {"run": {"rounds": rounds}, "train": {"batch": 4, "lr": 0.1}, "method": {"name": name}}
    for section, keys in sections.items():
        table[section] = {**table.get(section, {}), **keys}
    config = Config.of(table)
    return config if isinstance(method, str) else replace(config, method=method)


def toy_runner(config: Config, members: Members, folder: Folder | None = None) -> Runner:
    """A run that has not started."""
    return Runner(resolve_engine(config, members), members, folder)


def finished_runner(make_engine: Callable[..., Any], config: Config, members: Members) -> Runner:
    """A run that has been run on an engine; `make_engine` is called like the class of an engine."""
    runner = toy_runner(config, members)
    runner.engine = make_engine(members, config.method, config.train, config.run.seed)
    try:
        runner.go()
        return runner
    finally:
        runner.engine.close()


def pool_of(inner: Any, workers: int = 2) -> Callable[..., Pool]:
    """A pool of workers around an engine, made like an engine."""

    def make(members: Members, method: AnyMethod, training: TrainSection, seed: int) -> Pool:
        sizes = [len(train) for train in members.train]
        return Pool(inner(members, method, training, seed), method.types(), sizes, workers)

    return make


def complete_state(runner: Runner) -> dict[str, Tensor]:
    """All state of a run by name: the server's and every client's."""
    kept = {str(client): state for client, state in sorted(runner.engine.state().items())}
    return flatten({"server": runner.server, "kept": kept})
