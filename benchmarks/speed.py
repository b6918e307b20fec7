"""The time of a round by every engine, compared with plain torch and with other libraries, on two workloads.

    python benchmarks/speed.py --peers --json docs/results/data/speed.json      (then: python scripts/speed_page.py)
    python benchmarks/speed.py --workloads W --turns 3
    python benchmarks/speed.py --device cuda

W is FedProto's MNIST round (20 clients, batch 8, a small net), P the round of pfl-research's CIFAR-10 benchmark (50
clients with 50 images, batch 10, a net of 1.6 million weights). All take turns; CPU and wall seconds of each round are
kept, and the median counts. `central` is one model on the same images, channels last, with a client's batch size and
with that of all clients together; `plain loop` is FedAvg in a few lines of torch. `--peers` adds fluke-fl, pfl-research
and fedjax, each in an environment of its own, which is made at the first call: with one core, and with all. The local
trainings and optimiser steps of every timed round are counted, and the benchmark stops if they differ. Nothing else
should run on the machine; if something does, only the CPU seconds of one core are reliable.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

sys.path.insert(0, str(Path(__file__).parent))
from speed_floors import Central, PlainLoop, Work
from speed_profile import profiled
from speed_workloads import Workload, workload

from protofed.devices import CPU, choose_device
from protofed.engines.choice import choose_engine, make_engine
from protofed.engines.engine import Engine
from protofed.engines.loop import Loop
from protofed.engines.memory import keep_freed_memory
from protofed.engines.pool import Pool
from protofed.engines.stacked import Stacked
from protofed.engines.threads import cores
from protofed.experiment.config import Config
from protofed.experiment.member_copies import placed_members
from protofed.experiment.members import Members

PEERS = Path(__file__).parents[1] / ".peers"
PACKAGES = {
    "fluke-fl": ("fluke", [["torch==2.13.0"], ["torch==2.13.0", "fluke-fl==0.8.1"]]),
    "pfl-research": ("pfl", [["torch==2.13.0"], ["torch==2.13.0", "pfl==0.6.0", "dp-accounting<0.6"]]),
    "fedjax": ("fedjax", [["fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2"]]),
}
"""Per peer its folder in .peers, which is also the end of the name of its script, and what pip installs there."""
HAVE_FEDPROTO = {"fluke-fl"}


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


def timed(task: Callable[[], Any], device: torch.device = CPU) -> tuple[float, float, Any]:
    """CPU and wall seconds of a task, and its result."""
    cpu_before, wall_before = cpu(), time.perf_counter()
    result = task()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return cpu() - cpu_before, time.perf_counter() - wall_before, result


class Floor:
    """Plain torch."""

    def __init__(self, trainer: Central | PlainLoop, device: torch.device) -> None:
        self.trainer, self.device = trainer, device

    def train(self, turn: int) -> Used:
        return Used(*timed(lambda: self.trainer.round(turn), self.device))


class Ours:
    """A federation by one of our engines: the server sends, all clients train, the server aggregates."""

    def __init__(self, config: Config, members: Members, engine: Engine, device: torch.device = CPU) -> None:
        self.config, self.members, self.engine, self.device = config, members, engine, device
        self.server = config.method.start(members.server(config.run.seed, 0))

    def downs(self) -> dict[int, Any]:
        return {client: self.config.method.broadcast(self.server, client) for client in range(len(self.members))}

    def round(self, turn: int) -> Work:
        reports = self.engine.train(turn, self.downs())
        site = self.members.server(self.config.run.seed, turn)
        self.server = self.config.method.aggregate(site, self.server, [report.upload for report in reports])
        return Work(len(reports), sum(report.upload.steps for report in reports))

    def train(self, turn: int) -> Used:
        used, wall, work = timed(lambda: self.round(turn), self.device)
        return Used(None if isinstance(self.engine, Pool) else used, wall, work)

    def evaluate(self, turn: int) -> Used:
        used, wall, _ = timed(lambda: self.engine.evaluate(turn, self.downs()), self.device)
        return Used(None if isinstance(self.engine, Pool) else used, wall)


class Peer:
    """The same federation by another library, in a separate process that trains a round for every line it reads."""

    def __init__(self, name: str, images: Path, settings: Mapping[str, Any], num_cores: int) -> None:
        self.name, folder = name, PACKAGES[name][0]
        script = Path(__file__).with_name(f"peer_{folder}.py")
        self.process = subprocess.Popen(
            [PEERS / folder / "bin" / "python", script, images, json.dumps({**settings, "cores": num_cores})],
            env={**os.environ, "OMP_NUM_THREADS": str(num_cores), "JAX_PLATFORMS": "cpu"},
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
        raise SystemExit(f"{self.name} stopped with exit code {self.process.wait()}; its output is above.")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def install(name: str) -> None:
    """Make the environment of a peer, if there is none yet."""
    folder, installs = PACKAGES[name]
    python, done = PEERS / folder / "bin" / "python", PEERS / folder / "installed"
    if done.exists():
        return
    print(f"creating {PEERS.name}/{folder} for {name}; this takes some minutes", file=sys.stderr)
    venv.create(PEERS / folder, with_pip=True)
    for packages in installs:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    done.touch()


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


def in_turns(trainers: Mapping[str, Trainer], turns: int, first: int = 0) -> dict[str, list[Used]]:
    """Rounds of training in turns. All federations must do the same work in each round."""
    rounds: dict[str, list[Used]] = {name: [] for name in trainers}
    for turn in range(first, first + turns):
        for name, trainer in trainers.items():
            rounds[name].append(trainer.train(turn))
        latest = {name: used[-1].work for name, used in rounds.items()}
        same_work({name: work for name, work in latest.items() if work is not None})
    return rounds


def core_words(number: int) -> str:
    return f"{number} core{'s' * (number > 1)}"


def our_engines(task: Workload, device: torch.device, stack: ExitStack) -> dict[str, Ours]:
    """Every engine with FedAvg, and with FedProto if the workload has it, before any peer or thread is started."""
    made: dict[str, Ours] = {}
    for method, config in (("FedAvg", task.config), ("FedProto", task.fedproto)):
        if config is None:
            continue
        arguments = (task.members, config.method, config.train, config.run.seed)
        engines: dict[str, Engine] = {"loop": Loop(*arguments), "stacked": Stacked(*arguments)}
        if device == CPU and cores() > 1:
            auto, _ = choose_engine(task.members.nets, config.train.batch, len(task.members))
            engines[f"{auto}, {cores()} workers"] = make_engine(auto, cores(), *arguments)
        for name, engine in engines.items():
            stack.callback(engine.close)
            made[f"{name}, {method}"] = Ours(config, task.members, engine, device)
    return made


def measure(task: Workload, turns: int, warming: int, peers: Sequence[str], device: torch.device) -> dict[str, Any]:
    """All rounds of one workload."""
    batch, clients = task.config.train.batch, len(task.members)
    load_before = os.getloadavg()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = our_engines(task, device, stack)
        others: dict[str, Peer] = {}
        task.write_images(folder / "images.npz")
        for name in peers:
            install(name)
            method = "FedProto" if task.fedproto and name in HAVE_FEDPROTO else "FedAvg"
            for number in sorted({1, cores()}):
                settings = {**task.settings, "method": method}
                peer = Peer(name, folder / "images.npz", settings, number)
                stack.callback(peer.close)
                others[f"{name}, {core_words(number)}, {method}"] = peer
        floors = {
            f"central, batch {batch}": Floor(Central(task, batch, device), device),
            f"central, batch {batch * clients}": Floor(Central(task, batch * clients, device), device),
            "plain loop, FedAvg": Floor(PlainLoop(task, device), device),
        }
        trainers: dict[str, Trainer] = {**floors, **ours, **others}
        in_turns(trainers, warming)  # our engines record steps, jax compiles, and all allocate memory
        trained = in_turns(trainers, turns, warming)
        evaluated = {name: [federation.evaluate(turn) for turn in range(turns)] for name, federation in ours.items()}
        images = sum(map(len, task.members.train))
        profiles = {
            name: profiled(partial(trainers[name].train, turns + warming), images) for name in compared(task, batch)
        }
    return {
        "title": task.title,
        "clients": clients,
        "images": images,
        "batch": batch,
        "profiles": profiles,
        "load": {"before": load_before, "after": os.getloadavg()},
        "work": {name: used[-1].work._asdict() for name, used in trained.items() if used[-1].work},
        "rounds": {
            name: {
                "train_cpu": [used.cpu for used in turns_used],
                "train_wall": [used.wall for used in turns_used],
                "evaluate_cpu": [used.cpu for used in evaluated.get(name, [])],
                "evaluate_wall": [used.wall for used in evaluated.get(name, [])],
            }
            for name, turns_used in trained.items()
        },
    }


def compared(task: Workload, batch: int) -> tuple[str, str]:
    """The engine and the central model whose ratio is a goal of the workload."""
    if task.fedproto:
        return "stacked, FedProto", f"central, batch {batch * len(task.members)}"
    return "loop, FedAvg", f"central, batch {batch}"


def middle(values: Sequence[float | None]) -> float | None:
    """The median; None without values."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def seconds(found: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """The medians of a workload's rounds."""
    return {name: {kind: middle(values) for kind, values in times.items()} for name, times in found["rounds"].items()}


def goals(name: str, found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Ratios within one run, each with its goal; a ratio must not be above it, or must not be below it (at_least)."""
    times, batch, clients = seconds(found), found["batch"], found["clients"]
    single, all_together = times[f"central, batch {batch}"], times[f"central, batch {batch * clients}"]
    engines = {key: value for key, value in times.items() if key.startswith(("loop", "stacked"))}
    one_process = {key: value for key, value in engines.items() if value["train_cpu"] is not None}
    peers = {key: value for key, value in times.items() if key.startswith(tuple(PACKAGES))}
    loop = times["loop, FedAvg"]["train_cpu"] / times["plain loop, FedAvg"]["train_cpu"]
    ratios = {"loop to plain loop": {"ratio": loop, "at_most": 1.1}}
    best = min(value["train_cpu"] for value in one_process.values())
    pools = [value["train_wall"] for key, value in engines.items() if "workers" in key]
    if name == "W":
        stacked = times["stacked, FedProto"]
        ratios["stacked to central, all clients' batch"] = {
            "ratio": stacked["train_cpu"] / all_together["train_cpu"],
            "at_most": 0.8,
        }
        if pools:
            wall = min(pools) / all_together["train_cpu"]
            ratios["workers' wall to central's CPU"] = {"ratio": wall, "at_most": 0.45}
        share = stacked["evaluate_cpu"] / (stacked["train_cpu"] + stacked["evaluate_cpu"])
        ratios["evaluation's share of a round"] = {"ratio": share, "at_most": 0.1}
    else:
        ratios["best engine to central, a client's batch"] = {"ratio": best / single["train_cpu"], "at_most": 1.1}
    if peers:
        cheapest = min(value["train_cpu"] for value in peers.values())
        ratios["best peer to best engine, CPU"] = {"ratio": cheapest / best, "at_least": 3.0 if name == "W" else 1.0}
        if pools:
            fastest = min(value["train_wall"] for value in peers.values())
            ratios["best peer to our workers, wall"] = {"ratio": fastest / min(pools), "at_least": 1.0}
    return ratios


def is_reached(goal: Mapping[str, float]) -> bool:
    """Whether a ratio is on the right side of its goal."""
    return goal["ratio"] <= goal.get("at_most", float("inf")) and goal["ratio"] >= goal.get("at_least", 0.0)


def report(name: str, found: Mapping[str, Any]) -> str:
    """A table of a workload for a terminal."""
    (work,) = {Work(**counts) for counts in found["work"].values()}
    lines = [
        f"{name}: {found['title']}; {found['clients']} clients, {found['images']:,} images, batch {found['batch']}",
        f"{work.trainings} local trainings and {work.steps} optimiser steps per round, counted for all of them",
        f"{'':<36} {'train, CPU s':>12} {'wall s':>7} {'evaluate, CPU s':>16}",
    ]
    for trainer, times in seconds(found).items():
        cells = [f"{times[key]:.2f}" if times[key] else "-" for key in ("train_cpu", "train_wall", "evaluate_cpu")]
        lines.append(f"{trainer:<36} {cells[0]:>12} {cells[1]:>7} {cells[2]:>16}")
    for text, goal in goals(name, found).items():
        limit = f"at most {goal['at_most']}" if "at_most" in goal else f"at least {goal['at_least']}"
        lines.append(f"{text}: {goal['ratio']:.2f} (goal: {limit}; {'' if is_reached(goal) else 'not '}reached)")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all measurements to this file")
    parser.add_argument("--workloads", nargs="+", choices=["W", "P"], default=["W", "P"])
    names = list(PACKAGES)
    parser.add_argument("--peers", nargs="*", choices=names, metavar="NAME", help=f"of {', '.join(names)}; alone: all")
    parser.add_argument("--turns", type=int, default=5, help="timed rounds of each (default: 5)")
    parser.add_argument("--warming", type=int, default=3, help="rounds before them (default: 3)")
    parser.add_argument("--clients", type=int, default=0, help="only this many clients, for a quick look")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps or auto (default: cpu)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as protofed.run does
    device = choose_device(options.device)
    peers = [] if options.peers is None else options.peers or names
    found: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"processor": platform.machine(), "cores": cores(), "torch": torch.__version__},
        "device": str(device),
        "turns": options.turns,
        "only_clients": options.clients,  # 0: all clients of the workloads
        "workloads": {},
    }
    for name in options.workloads:
        task = workload(name, options.clients)
        task = task._replace(members=placed_members(task.members, device))
        found["workloads"][name] = measure(task, options.turns, options.warming, peers, device)
        print(report(name, found["workloads"][name]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
