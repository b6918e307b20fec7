"""How fast a round is: FedProto on MNIST, 20 clients, batch 8, by every engine, beside one central model.

    python benchmarks/speed.py [--json] [--quick] [--compile]

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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from protofed.config import Config
from protofed.engines.loop import Loop
from protofed.engines.pool import Pool
from protofed.engines.stacked import Stacked
from protofed.members import Members

RECIPE = Path(__file__).parents[1] / "recipes" / "fedproto-mnist-n3.toml"


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
            logits = self.module["head"](self.module["body"](data.normalised(data.x[rows])))
            F.cross_entropy(logits, data.y[rows]).backward()
            self.optimiser.step()


def measured(quick: bool, compiled: bool) -> dict[str, Any]:
    """The best of several rounds of each, in turns."""
    config = Config.load(RECIPE)
    members = Members.of(config)
    about = (members, config.method, config.train, config.run.seed)
    engines: dict[str, Any] = {
        "loop": Loop(*about), "stacked": Stacked(*about), "pool of 2": Pool(Stacked(*about), 2),
    }  # fmt: skip
    if compiled:
        engines["stacked, compiled"] = Stacked(*about, compiled=True)
    server = config.method.start(members.server(config.run.seed, 0))
    downs = {client: config.method.broadcast(server, client) for client in range(len(members))}
    for engine in engines.values():
        engine.train(0, downs)  # warm
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
    return {
        "images": sum(map(len, members.train)),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__},
        "seconds": {
            name: {"train_cpu": None if "pool" in name else used[0], "train_wall": used[1], "evaluate_wall": used[2]}
            for name, used in best.items()
        },
        "ratios": {
            "loop_cpu_to_central": best["loop"][0] / floor,
            "stacked_cpu_to_central": best["stacked"][0] / floor,
            **({"compiled_cpu_to_central": best["stacked, compiled"][0] / floor} if compiled else {}),
            "pool_wall_to_central_cpu": best["pool of 2"][1] / floor,
            "evaluation_to_round": best["stacked"][2] / (best["stacked"][1] + best["stacked"][2]),
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile, which takes minutes")
    parser.add_argument("--quick", action="store_true", help="two turns instead of six")
    words = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(words.quick, words.compile)
    if words.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['images']:,} images a round; {found['machine']}")
    print(f"{'':<18} {'train, CPU s':>12} {'train, wall s':>14} {'evaluate, wall s':>17}")
    for name, used in found["seconds"].items():
        cells = [f"{value:.2f}" if value else "-" for value in used.values()]
        print(f"{name:<18} {cells[0]:>12} {cells[1]:>14} {cells[2]:>17}")
    for name, ratio in found["ratios"].items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
