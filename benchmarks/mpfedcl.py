"""What MP-FedCL's contrast and clustering cost on its MNIST net, beside FedAvg's step and beside a round.

    python benchmarks/mpfedcl.py

40 clients with 10 classes and 4 prototypes each, batches of 32, 50 images each, one process; best of six turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from protofed import Config
from protofed.core import Phase
from protofed.engines.stack_training import train_together
from protofed.engines.stacked import LARGEST_STACK, Stacked
from protofed.engines.threads import one_thread
from protofed.experiment.members import Members
from protofed.experiment.run import resolve_engine
from protofed.experiment.runner import Runner
from protofed.methods.parts import clusters
from protofed.training import train_client

WORDS = ["data.clients=40", 'partition.name="iid"', "data.limit=2000", "engine.workers=1", "eval.personal=false"]
METHODS = {"fedavg": 'method.name="fedavg"', "mpfedcl": "method.k=4"}
TURNS = 6


def fastest(tasks: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least seconds of each, in turns."""
    found = dict.fromkeys(tasks, float("inf"))
    for _ in range(TURNS):
        for name, task in tasks.items():
            began = time.perf_counter()
            task()
            found[name] = min(found[name], time.perf_counter() - began)
    return found


def training(runner: Runner, stacked: bool) -> Callable[[], Any]:
    """A round's steps of ten clients, without what comes after them."""
    method, members, config = runner.method, runner.members, runner.config
    down = method.broadcast(runner.server, 0)
    ready, start, phases = method.prepare(down), method.receive((), down), [Phase(1)]
    clients = [members.client(0, 1, number) for number in range(LARGEST_STACK)]
    engine = Stacked(members, method, config.train, 0)
    engine_step = engine.step_for

    def together() -> None:
        many = len(clients)
        train_together(
            method, clients, [start] * many, [ready] * many, [()] * many, [phases] * many, config.train, engine_step
        )

    def alone() -> None:
        for client in clients:
            train_client(method, client, client.data, start, ready, (), phases, config.train)

    return together if stacked else alone


@torch.no_grad()
def clustering(runner: Runner) -> Callable[[], Any]:
    """The k-means of ten clients."""
    net, params = runner.members.nets[0], runner.server.params
    features = [net.features(params, runner.members.train[number]) for number in range(LARGEST_STACK)]
    return lambda: [clusters.kmeans(z, y, net.classes, 4, torch.Generator().manual_seed(0)) for z, y in features]


def main() -> None:
    config = Config.load("recipes/mpfedcl-mnist.toml", WORDS)
    members = Members.of(config)
    config = config.counted(len(members))
    runners = {}
    for name, word in METHODS.items():
        own = Config.load("recipes/mpfedcl-mnist.toml", [*WORDS, word])
        runners[name] = Runner(resolve_engine(replace(own, data=config.data), members), members, None)
        for number in range(2):  # so that the pool is full
            runners[name].one_round(number)
    pool = runners["mpfedcl"].server.pool
    print(f"a pool of {int((pool.support > 0).sum()):,} prototypes; seconds for a round of {LARGEST_STACK} clients")
    for kind in (False, True):
        tasks = {name: training(runner, kind) for name, runner in runners.items()}
        for _ in range(16 if kind else 1):  # until its steps are recorded
            for task in tasks.values():
                task()
        found = fastest({**tasks, "k-means": clustering(runners["mpfedcl"])})
        print(
            f"{'stacked' if kind else 'loop':<8} fedavg {found['fedavg']:.3f}  mpfedcl {found['mpfedcl']:.3f}  "
            f"k-means {found['k-means']:.4f}  contrast: {found['mpfedcl'] / found['fedavg']:.2f} times fedavg's steps, "
            f"k-means {found['k-means'] / (found['mpfedcl'] + found['k-means']):.0%} of a round"
        )


if __name__ == "__main__":
    with one_thread():
        main()
