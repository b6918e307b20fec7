"""Does `engine.name = "auto"` choose well? A round of training by each engine, in turns, best of several.

    python benchmarks/auto.py

The rule never looks at a clock, so this does: nets from small to large, one process. Nothing else should run.
"""

from __future__ import annotations

import time
from typing import Any

from protofed.engines.loop import Loop
from protofed.engines.replay import PATIENCE
from protofed.engines.stacked import Stacked
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.run import resolve_engine

CASES: dict[str, dict[str, Any]] = {
    "mnist, cnn, batch 8": {"data": "mnist", "net": "cnn", "batch": 8, "shots": 40},
    "mnist, mlp, batch 32": {"data": "mnist", "net": "mlp", "batch": 32, "shots": 64},
    "cifar10, cnn_fednh, batch 64": {"data": "cifar10", "net": "cnn_fednh", "batch": 64, "shots": 13},
    "cifar10, resnet18, batch 32": {"data": "cifar10", "net": "resnet18", "batch": 32, "shots": 4},
}
CLIENTS = 10


def case(data: str, net: str, batch: int, shots: int) -> tuple[Config, Members]:
    """Ten clients with equal shares."""
    config = Config.of(
        {
            "data": {"name": data, "clients": CLIENTS},
            "partition": {"name": "nway", "ways": 10, "stdev": 0, "shots": shots, "test": 1},
            "net": {"name": net},
            "method": {"name": "fedproto"},
            "train": {"batch": batch, "lr": 0.01},
            "engine": {"name": "auto"},
        }
    )
    return config, Members.of(config)


def main() -> None:
    for title, about in CASES.items():
        config, members = case(**about)
        engines = {kind.__name__.lower(): kind(members, config.method, config.train, 0) for kind in (Loop, Stacked)}
        server = config.method.start(members.server(0, 0))
        downs = {client: config.method.broadcast(server, client) for client in range(CLIENTS)}
        steps = about["shots"] * 10 // about["batch"]
        best = dict.fromkeys(engines, float("inf"))
        for turn in range(3 + (PATIENCE // steps if about["net"] != "resnet18" else 0)):
            for name, engine in engines.items():
                began = time.perf_counter()
                engine.train(turn, downs)
                best[name] = min(best[name], time.perf_counter() - began)
        choice = resolve_engine(config, members).engine
        told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in best.items())
        print(f"{title}: {told}; auto takes {choice.name}, {best[choice.name] / min(best.values()):.2f} of the best")


if __name__ == "__main__":
    main()
