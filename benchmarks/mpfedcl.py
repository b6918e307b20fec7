"""The time of MP-FedCL's contrast, compared with FedAvg's steps, and of its clustering, compared with a round.

    python benchmarks/mpfedcl.py

MNIST net, 40 clients with 10 classes, 4 prototypes per class and 50 images each, batches of 32, one process; the best
of six turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from protofed import Config
from protofed.core import Phase
from protofed.engines.stack_training import Trainee, train_together
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
    """The shortest time of each task in seconds, over several turns."""
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(TURNS):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def training(runner: Runner, stacked: bool) -> Callable[[], Any]:
    """A task: the local steps of ten clients in one round, without keep and upload."""
    method, members, config = runner.method, runner.members, runner.config
    down = method.broadcast(runner.server, 0)
    prepared, params, phases = method.prepare(down), method.receive((), down), [Phase(1)]
    clients = [members.client(0, 1, number) for number in range(LARGEST_STACK)]
    engine = Stacked(members, method, config.train, 0)

    def together() -> None:
        trainees = [Trainee(client, params, prepared, (), phases) for client in clients]
        train_together(method, trainees, config.train, engine.step_for)

    def alone() -> None:
        for client in clients:
            train_client(method, client, client.data, params, prepared, (), phases, config.train)

    return together if stacked else alone


@torch.no_grad()
def clustering(runner: Runner) -> Callable[[], Any]:
    """A task: the k-means of ten clients."""
    net, params = runner.members.nets[0], runner.server.params
    features = [net.features(params, runner.members.train[number]) for number in range(LARGEST_STACK)]
    return lambda: [clusters.kmeans(z, y, net.classes, 4, torch.Generator().manual_seed(0)) for z, y in features]


def main() -> None:
    config = Config.load("recipes/mpfedcl-mnist.toml", WORDS)
    members = Members.of(config)
    config = config.with_clients(len(members))
    runners = {}
    for name, word in METHODS.items():
        method_config = replace(Config.load("recipes/mpfedcl-mnist.toml", [*WORDS, word]), data=config.data)
        runners[name] = Runner(resolve_engine(method_config, members), members, None)
        for number in range(2):  # fills the pool
            runners[name].one_round(number)
    pool = runners["mpfedcl"].server.pool
    print(f"Pool of {int((pool.support > 0).sum()):,} prototypes; seconds per round of {LARGEST_STACK} clients:")
    for stacked in (False, True):
        tasks = {name: training(runner, stacked) for name, runner in runners.items()}
        for _ in range(16 if stacked else 1):  # until the steps are recorded
            for task in tasks.values():
                task()
        seconds = fastest({**tasks, "k-means": clustering(runners["mpfedcl"])})
        print(
            f"{'stacked' if stacked else 'loop':<8} fedavg {seconds['fedavg']:.3f}  mpfedcl {seconds['mpfedcl']:.3f}  "
            f"k-means {seconds['k-means']:.4f}  "
            f"steps with the contrast: {seconds['mpfedcl'] / seconds['fedavg']:.2f} times fedavg's, "
            f"k-means: {seconds['k-means'] / (seconds['mpfedcl'] + seconds['k-means']):.0%} of a round"
        )


if __name__ == "__main__":
    with one_thread():
        main()
