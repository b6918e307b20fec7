"""The time of a round: FedProto on MNIST, 20 clients, batch 8, by every engine, compared with one central model.

    python benchmarks/speed.py [--json FILE] [--quick] [--peers [THREADS ...]]

Engines take turns, and the best of several rounds counts: CPU and wall seconds of a round's training, and of an
evaluation by head and by prototype. `central` is the lower bound: one model on the same images, batch 20 x 8, plain
torch, one thread. `--peers` adds fluke-fl with one thread, `--peers 1 2` with one and with two. The local trainings and
optimiser steps of every timed round are counted, and the benchmark stops if they differ. Nothing else should run on the
machine; if something does, only the CPU seconds of one thread are reliable.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from protofed.engines.choice import make_engine
from protofed.engines.engine import Engine
from protofed.engines.loop import Loop
from protofed.engines.memory import keep_freed_memory
from protofed.engines.pool import Pool
from protofed.engines.stacked import Stacked
from protofed.experiment.config import Config
from protofed.experiment.members import Members

RECIPE = Path(__file__).parents[1] / "recipes" / "fedproto-mnist-n3.toml"
PEERS = Path(__file__).parents[1] / ".peers"


class Work(NamedTuple):
    """The work of all clients in a round, counted by the trainer."""

    trainings: int
    steps: int  # of the optimiser, over all clients


class Used(NamedTuple):
    """A timed round of training: CPU seconds (None if other processes used them), wall seconds, and the work done."""

    cpu: float | None
    wall: float
    work: Work | None = None  # None for the central model, which is not a federation


class Trainer(Protocol):
    """Something that trains a round when it is its turn."""

    def train(self, turn: int) -> Used: ...


def cpu() -> float:
    """CPU seconds of this process, without those of running workers; engines with workers are timed by the wall."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(task: Callable[[], Any]) -> tuple[float, float, Any]:
    """CPU and wall seconds of a task, and its result."""
    cpu_before, wall_before = cpu(), time.perf_counter()
    result = task()
    return cpu() - cpu_before, time.perf_counter() - wall_before, result


class Central:
    """One model on the images of all clients, with a batch size of that of a client times the number of clients."""

    def __init__(self, config: Config, members: Members) -> None:
        self.config, self.members = config, members
        self.module = members.nets[0].new_module(torch.Generator().manual_seed(0))
        self.optimiser = torch.optim.SGD(self.module.parameters(), config.train.lr, momentum=config.train.momentum)
        self.index = torch.cat([train.index for train in members.train])

    def train(self, turn: int) -> Used:
        used, wall, _ = timed(self.epoch)
        return Used(used, wall)

    def epoch(self) -> None:
        data = self.members.train[0]
        self.module.train()
        order = self.index[torch.randperm(len(self.index), generator=torch.Generator().manual_seed(1))]
        for rows in order.split(self.config.train.batch * len(self.members)):
            self.optimiser.zero_grad()
            x = data.normalised(data.x[rows]).flatten(1).unflatten(1, data.shape)  # channels first, as torch expects
            logits = self.module["head"](self.module["body"](x))
            F.cross_entropy(logits, data.y[rows]).backward()
            self.optimiser.step()


class Ours:
    """A federation by one of our engines: the server sends, all clients train, the server aggregates."""

    def __init__(self, config: Config, members: Members, engine: Engine) -> None:
        self.config, self.members, self.engine = config, members, engine
        self.server = config.method.start(members.server(config.run.seed, 0))

    def downs(self) -> dict[int, Any]:
        return {client: self.config.method.broadcast(self.server, client) for client in range(len(self.members))}

    def round(self, turn: int) -> Work:
        reports = self.engine.train(turn, self.downs())
        site = self.members.server(self.config.run.seed, turn)
        self.server = self.config.method.aggregate(site, self.server, [report.upload for report in reports])
        return Work(len(reports), sum(report.upload.steps for report in reports))

    def train(self, turn: int) -> Used:
        used, wall, work = timed(lambda: self.round(turn))
        return Used(None if isinstance(self.engine, Pool) else used, wall, work)

    def evaluate(self, turn: int) -> Used:
        used, wall, _ = timed(lambda: self.engine.evaluate(turn, self.downs()))
        return Used(None if isinstance(self.engine, Pool) else used, wall)


class Fluke:
    """The same federation by fluke-fl, in a separate process that trains a round for every line it reads."""

    def __init__(self, images: Path, threads: int) -> None:
        self.process = subprocess.Popen(
            [PEERS / "bin" / "python", Path(__file__).with_name("peer_fluke.py"), images],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            cwd=images.parent,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def train(self, turn: int) -> Used:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # the process has ended; the error is raised below
            print(turn, file=self.process.stdin, flush=True)
        for line in self.process.stdout:  # which also has progress bars
            if line.startswith("{"):
                report = json.loads(line)
                return Used(report["cpu"], report["wall"], Work(report["trainings"], report["steps"]))
        raise SystemExit(f"fluke-fl stopped with exit code {self.process.wait()}; its output is above.")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def with_fluke(folder: Path, config: Config, members: Members, threads: Sequence[int]) -> dict[str, Fluke]:
    """fluke-fl with these numbers of threads, in a separate environment that is created at the first call."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        print(f"creating {PEERS.name}/ for fluke-fl; this takes some minutes", file=sys.stderr)
        venv.create(PEERS, with_pip=True)
        for packages in (["torch==2.13.0"], ["torch==2.13.0", "fluke-fl==0.8.1"]):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    batch = config.train.batch
    full = [torch.arange(len(train) // batch * batch) for train in members.train]  # fluke-fl has no drop_last
    parts = [train.take(rows) for train, rows in zip(members.train, full, strict=True)]
    x, y = (torch.cat(part).contiguous().numpy() for part in zip(*parts, strict=True))
    images = folder / "images.npz"
    np.savez(images, x=x, y=y, sizes=list(map(len, full)))
    return {fluke_name(number): Fluke(images, number) for number in threads}


def fluke_name(threads: int) -> str:
    return f"fluke-fl, {threads} thread{'s' * (threads > 1)}"


def same_work(done: Mapping[str, Work]) -> None:
    """Stop if the federations did different work in a round, because their seconds cannot be compared then."""
    if len(set(done.values())) > 1:
        counts = "\n".join(
            f"  {name}: {work.trainings} local trainings, {work.steps} optimiser steps" for name, work in done.items()
        )
        raise SystemExit(
            f"The work in a timed round differs, so that the seconds cannot be compared:\n{counts}\n"
            "All must train the same clients on the same number of batches, and nothing outside the round."
        )


def in_turns(trainers: Mapping[str, Trainer], turns: int) -> dict[str, list[Used]]:
    """Rounds of training in turns. All federations must do the same work in each round."""
    rounds: dict[str, list[Used]] = {name: [] for name in trainers}
    for turn in range(turns):
        for name, trainer in trainers.items():
            rounds[name].append(trainer.train(turn))
        latest = {name: used[-1].work for name, used in rounds.items()}
        same_work({name: work for name, work in latest.items() if work is not None})
    return rounds


def measure(quick: bool, peers: Sequence[int]) -> dict[str, Any]:
    """The times of all engines. `peers` are the numbers of threads for fluke-fl."""
    config = Config.load(RECIPE)
    members = Members.of(config)
    arguments = (members, config.method, config.train, config.run.seed)
    turns, load_before = 2 if quick else 6, os.getloadavg()
    with ExitStack() as stack:
        pool = make_engine("stacked", 2, *arguments)
        stack.callback(pool.close)
        engines: dict[str, Engine] = {"loop": Loop(*arguments), "stacked": Stacked(*arguments), "pool of 2": pool}
        ours = {name: Ours(config, members, engine) for name, engine in engines.items()}
        others: dict[str, Fluke] = {}
        if peers:
            others = with_fluke(Path(stack.enter_context(tempfile.TemporaryDirectory())), config, members, peers)
        for other in others.values():
            stack.callback(other.close)
            other.train(0)  # the first round has no prototypes yet, and is therefore shorter
        warming = {}
        for name, federation in ours.items():  # records the steps
            warming[name] = sum(federation.train(0).wall for _ in range(1 if quick else 6))
        trained = in_turns({"central": Central(config, members), **ours, **others}, turns)
        evaluated = {name: [federation.evaluate(turn) for turn in range(turns)] for name, federation in ours.items()}
    rounds = {
        name: {
            "train_cpu": [used.cpu for used in turns_used],
            "train_wall": [used.wall for used in turns_used],
            "evaluate_cpu": [used.cpu for used in evaluated.get(name, [])],
            "evaluate_wall": [used.wall for used in evaluated.get(name, [])],
        }
        for name, turns_used in trained.items()
    }
    return {
        "images": sum(map(len, members.train)),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__},
        "load": {"before": load_before, "after": os.getloadavg()},
        "work": {name: turns_used[-1].work._asdict() for name, turns_used in trained.items() if turns_used[-1].work},
        "warming_seconds": warming,
        "rounds": rounds,
        **summary(rounds),
    }


def summary(rounds: Mapping[str, Mapping[str, list[float | None]]]) -> dict[str, Any]:
    """The shortest times over all rounds, and ratios of them."""
    seconds = {
        name: {kind: min((s for s in values if s is not None), default=None) for kind, values in times.items()}
        for name, times in rounds.items()
    }
    central, stacked, pool = (seconds[name] for name in ("central", "stacked", "pool of 2"))
    ratios = {
        "loop_cpu_to_central": seconds["loop"]["train_cpu"] / central["train_cpu"],
        "stacked_cpu_to_central": stacked["train_cpu"] / central["train_cpu"],
        "pool_wall_to_central_cpu": pool["train_wall"] / central["train_cpu"],
        "evaluation_to_round": stacked["evaluate_cpu"] / (stacked["train_cpu"] + stacked["evaluate_cpu"]),
    }
    one_thread, two_threads = (seconds.get(fluke_name(threads)) for threads in (1, 2))
    if one_thread:
        ratios["fluke_cpu_to_stacked_cpu"] = one_thread["train_cpu"] / stacked["train_cpu"]
        ratios["fluke_cpu_to_loop_cpu"] = one_thread["train_cpu"] / seconds["loop"]["train_cpu"]
    if one_thread and two_threads:
        fluke_wall = min(one_thread["train_wall"], two_threads["train_wall"])
        ratios["fluke_wall_to_pool_wall"] = fluke_wall / pool["train_wall"]
    return {"seconds": seconds, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all measurements to this file")
    threads_help = "also measure fluke-fl, with these numbers of threads (default: 1)"
    parser.add_argument("--peers", type=int, nargs="*", metavar="THREADS", help=threads_help)
    quick_help = "two turns instead of six, and few steps recorded, so that the times are too long"
    parser.add_argument("--quick", action="store_true", help=quick_help)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as protofed.run does
    peers = [] if options.peers is None else options.peers or [1]
    measurements = measure(options.quick, peers)
    if options.json:
        options.json.write_text(json.dumps(measurements, indent=1) + "\n", encoding="utf-8")
    load = " and ".join(f"{when[0]:.1f} {name}" for name, when in measurements["load"].items())
    print(f"{measurements['images']:,} images; {measurements['machine']}; load {load}")
    (work,) = {Work(**counts) for counts in measurements["work"].values()}
    names = "; ".join(measurements["work"])
    print(f"{work.trainings} local trainings and {work.steps} optimiser steps per round: {names}")
    print(f"{'':<20} {'train, CPU s':>12} {'wall s':>7} {'evaluate, CPU s':>16} {'wall s':>7}")
    for name, times in measurements["seconds"].items():
        cells = [f"{value:.2f}" if value else "-" for value in times.values()]
        print(f"{name:<20} {cells[0]:>12} {cells[1]:>7} {cells[2]:>16} {cells[3]:>7}")
    warming = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in measurements["warming_seconds"].items())
    print(f"warm-up, in which steps are recorded: {warming}")
    for name, ratio in measurements["ratios"].items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
