"""Small federations and messages made by hand, for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from protofed.core import AnyMethod, Prototypes
from protofed.data.partitions.base import Holding
from protofed.engines.pool import Pool
from protofed.examples import Examples
from protofed.experiment.config import Config
from protofed.experiment.final_figures import result_summary
from protofed.experiment.folder import Folder
from protofed.experiment.members import Members
from protofed.experiment.run import resolve_engine
from protofed.experiment.runner import Runner
from protofed.messages import flatten
from protofed.net import Net
from protofed.training import TrainSection

CLASSES = 3
INPUTS = 4


def dense(dim: int = 5, hidden: int = 6, dropout: float = 0.0, norm: bool = False) -> tuple[nn.Module, nn.Module]:
    middle = [nn.BatchNorm1d(hidden)] if norm else []
    body = nn.Sequential(nn.Linear(INPUTS, hidden), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, dim))
    return body, nn.Linear(dim, CLASSES)


def net(name: str = "toy", **options: Any) -> Net:
    return Net(name, partial(dense, **options), (INPUTS,), CLASSES)


def examples(labels: Sequence[int], seed: int = 0) -> Examples:
    """One blob per class, far enough apart to be learned."""
    y = np.asarray(labels, dtype=np.int64)
    noise = np.random.RandomState(seed).normal(size=(len(y), INPUTS))
    return Examples.of((noise + 3 * np.eye(CLASSES, INPUTS)[y]).astype(np.float32), y)


LABELS = [[0, 1, 2] * 4, [0, 1] * 3, [2], [], [1] * 5, [0, 2, 2, 2]]
"""Unequal clients: all classes; two; a single example; none at all; a single class; a class with one example."""


def federation(labels: Sequence[Sequence[int]] = LABELS, nets: Sequence[Net] | None = None) -> Members:
    nets = nets or [net()] * len(labels)
    train = tuple(examples(own, seed) for seed, own in enumerate(labels))
    test = tuple(examples([0, 1, 2] if len(own) else [], 100 + seed) for seed, own in enumerate(labels))
    parts = tuple(Holding(np.arange(len(own)), np.arange(len(own))) for own in labels)
    return Members("toy", tuple(range(CLASSES)), tuple(nets), train, test, (examples([0, 1, 2] * 5, 7),), parts)


def config(method: str | AnyMethod = "fedproto", /, rounds: int = 3, **sections: dict[str, Any]) -> Config:
    """An experiment; a method that is not registered may be given as an object."""
    name = method if isinstance(method, str) else "local"
    table: dict[str, Any] = {"run": {"rounds": rounds}, "train": {"batch": 4, "lr": 0.1}, "method": {"name": name}}
    for section, keys in sections.items():
        table[section] = {**table.get(section, {}), **keys}
    made = Config.of(table)
    return made if isinstance(method, str) else replace(made, method=method)


def runner_of(experiment: Config, members: Members, folder: Folder | None = None) -> Runner:
    """A run that has not started."""
    return Runner(resolve_engine(experiment, members), members, folder)


def played(experiment: Config, members: Members) -> Runner:
    """A run that has been run."""
    runner = runner_of(experiment, members)
    runner.go()
    return runner


def played_on(kind: Any, experiment: Config, members: Members) -> Runner:
    """A run that has been run on an engine."""
    runner = runner_of(experiment, members)
    runner.engine = kind(members, experiment.method, experiment.train, experiment.run.seed)
    try:
        runner.go()
        return runner
    finally:
        runner.engine.close()


def pool_of(inner: Any, workers: int = 2) -> Any:
    """A pool of workers around an engine, made like an engine."""

    def make(members: Members, method: AnyMethod, training: TrainSection, seed: int) -> Pool:
        sizes = [len(train) for train in members.train]
        return Pool(inner(members, method, training, seed), method.types(), sizes, workers)

    return make


def figures(runner: Runner) -> dict[str, Any]:
    """What result.json would have."""
    return result_summary(runner.config, runner.members, runner.rounds, runner.evaluations, runner.personal())


def everything(runner: Runner) -> dict[str, Tensor]:
    """All state of a run, flat: the server's and every client's."""
    return flatten(
        {
            "server": runner.server,
            "kept": {str(client): state for client, state in sorted(runner.engine.state().items())},
        }
    )


def bank(rows: dict[int, list[float]], counts: dict[int, int] | None = None, classes: int = CLASSES) -> Prototypes:
    """Prototypes with these means, each with 1 example behind it unless told otherwise."""
    dim = len(next(iter(rows.values())))
    made = Prototypes.empty(classes, dim)
    for label, values in rows.items():
        made.mean[label, 0] = torch.tensor(values)
        made.support[label, 0] = (counts or {}).get(label, 1)
    return made
