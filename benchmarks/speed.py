"""How fast a round is: FedProto on MNIST, 20 clients, batch 8, by every engine, beside one central model.

    python benchmarks/speed.py [--json] [--quick] [--peers]

Engines take turns, and the best of several rounds counts: CPU and wall seconds of a round's training, and of an
evaluation by head and by prototype. `central` is the floor: one model on the same images, batch 20 x 8, plain torch,
one thread. Nothing else should run.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from protofed.engines.choice import has_compiler
from protofed.engines.loop import Loop
from protofed.engines.pool import Pool
from protofed.engines.stacked import Stacked
from protofed.experiment.config import Config
from protofed.experiment.members import Members

RECIPE = Path(__file__).parents[1] / "recipes" / "fedproto-mnist-n3.toml"
PEERS = Path(__file__).parents[1] / ".peers"


def cpu() -> float:
    """CPU seconds of this process; workers' are counted when they have ended, so they are timed by the wall."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall seconds."""
    before, began = cpu(), time.perf_counter()
    work()
    return cpu() - before, time.perf_counter() - began


class Central:
    """One model on the images of all clients, in batches as large as all clients' together."""

    def __init__(self, config: Config, members: Members) -> None:
        self.config, self.members = config, members
        self.module = members.nets[0].made(torch.Generator().manual_seed(0))
        self.optimiser = torch.optim.SGD(self.module.parameters(), config.train.lr, momentum=config.train.momentum)
        self.index = torch.cat([train.index for train in members.train])

    def train(self) -> None:
        data = self.members.train[0]
        self.module.train()
        order = self.index[torch.randperm(len(self.index), generator=torch.Generator().manual_seed(1))]
        for rows in order.split(self.config.train.batch * len(self.members)):
            self.optimiser.zero_grad()
            x = data.normalised(data.x[rows]).flatten(1).unflatten(1, data.shape)  # channels first, as torch has them
            logits = self.module["head"](self.module["body"](x))
            F.cross_entropy(logits, data.y[rows]).backward()
            self.optimiser.step()


def measured(quick: bool, peers: bool) -> dict[str, Any]:
    """The best of several rounds of each, in turns."""
    config = Config.load(RECIPE)
    members = Members.of(config)
    about = (members, config.method, config.train, config.run.seed)
    engines: dict[str, Any] = {
        "loop": Loop(*about),
        "stacked": Stacked(*about),
        "pool of 2": Pool(Stacked(*about), 2),
    }
    if has_compiler() and not quick:
        engines["stacked, compiled"] = Stacked(*about, compiled=True)
    server = config.method.start(members.server(config.run.seed, 0))
    downs = {client: config.method.broadcast(server, client) for client in range(len(members))}
    warming = {}
    for name, engine in engines.items():  # steps are recorded, or compiled
        warming[name] = timed(lambda engine=engine: [engine.train(0, downs) for _ in range(1 if quick else 6)])[1]
    central, best = Central(config, members), {name: [9e9] * 3 for name in ("central", *engines)}
    try:
        for turn in range(2 if quick else 6):
            used = timed(central.train)
            best["central"] = [*map(min, best["central"][:2], used), 0.0]
            for name, engine in engines.items():
                used = timed(lambda engine=engine, turn=turn: engine.train(turn, downs))
                tested = timed(lambda engine=engine, turn=turn: engine.evaluate(turn, downs))[1]
                best[name] = list(map(min, best[name], (*used, tested)))
    finally:
        engines["pool of 2"].close()
    floor = best["central"][0]
    seconds: dict[str, Any] = {
        name: {"train_cpu": None if "pool" in name else used[0], "train_wall": used[1], "evaluate_wall": used[2]}
        for name, used in best.items()
    }
    ratios = {
        "loop_cpu_to_central": best["loop"][0] / floor,
        "stacked_cpu_to_central": best["stacked"][0] / floor,
        "pool_wall_to_central_cpu": best["pool of 2"][1] / floor,
        "evaluation_to_round": best["stacked"][2] / (best["stacked"][1] + best["stacked"][2]),
    }
    if "stacked, compiled" in best:
        ratios["compiled_cpu_to_central"] = best["stacked, compiled"][0] / floor
    if peers:
        for threads in (1, 2):
            found = fluke(members, threads, 2 if quick else 4)
            seconds[f"fluke-fl, {threads} threads"] = {
                "train_cpu": found["cpu"],
                "train_wall": found["wall"],
                "evaluate_wall": None,
            }
        wall = min(used["train_wall"] for name, used in seconds.items() if "fluke" in name)
        ratios["fluke_wall_to_pool_wall"] = wall / best["pool of 2"][1]
    return {
        "images": sum(map(len, members.train)),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__},
        "warming_seconds": warming,
        "seconds": seconds,
        "ratios": ratios,
    }


def fluke(members: Members, threads: int, rounds: int) -> dict[str, float]:
    """The same round by fluke-fl, in an environment of its own that is made the first time."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        print(f"making {PEERS.name}/ for fluke-fl; this takes some minutes", file=sys.stderr)
        venv.create(PEERS, with_pip=True)
        for wanted in (["torch==2.13.0"], ["torch==2.13.0", "fluke-fl==0.8.1"]):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    with tempfile.TemporaryDirectory() as folder:
        parts = [train.take(torch.arange(len(train))) for train in members.train]
        x, y = (torch.cat(part).contiguous().numpy() for part in zip(*parts, strict=True))
        images = Path(folder) / "images.npz"
        np.savez(images, x=x, y=y, sizes=[len(train) for train in members.train])
        done = subprocess.run(
            [python, Path(__file__).with_name("peer_fluke.py"), images, str(rounds)],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peers", action="store_true", help="also fluke-fl, in an environment of its own")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two turns instead of six, nothing compiled, few steps recorded: slower than it is",
    )
    words = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(words.quick, words.peers)
    if words.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['images']:,} images a round; {found['machine']}")
    print(f"{'':<20} {'train, CPU s':>12} {'train, wall s':>14} {'evaluate, wall s':>17}")
    for name, used in found["seconds"].items():
        cells = [f"{value:.2f}" if value else "-" for value in used.values()]
        print(f"{name:<20} {cells[0]:>12} {cells[1]:>14} {cells[2]:>17}")
    warming = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in found["warming_seconds"].items())
    print(f"beforehand, in which steps are recorded or compiled: {warming}")
    for name, ratio in found["ratios"].items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
