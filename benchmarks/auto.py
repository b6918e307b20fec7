"""Check the choice of `engine.name = "auto"`: a round of training by each engine in turn, the best of several.

    python benchmarks/auto.py

The rule of "auto" does not measure time; this benchmark does, for nets from small to large in one process. Nothing else
should run on the machine.
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
    "mnist, mlp_mpfedcl, batch 32": {"data": "mnist", "net": "mlp_mpfedcl", "batch": 32, "shots": 64},
    "cifar10, cnn_fednh, batch 64": {"data": "cifar10", "net": "cnn_fednh", "batch": 64, "shots": 13},
    "cifar10, resnet18, batch 32": {"data": "cifar10", "net": "resnet18", "batch": 32, "shots": 4},
}
CLIENTS = 10


def make_case(data: str, net: str, batch: int, shots: int) -> tuple[Config, Members]:
    """An experiment with ten clients of equal size."""
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
    for title, options in CASES.items():
        config, members = make_case(**options)
        engines = {kind.__name__.lower(): kind(members, config.method, config.train, 0) for kind in (Loop, Stacked)}
        server = config.method.start(members.server(0, 0))
        downs = {client: config.method.broadcast(server, client) for client in range(CLIENTS)}
        steps = options["shots"] * 10 // options["batch"]
        best = dict.fromkeys(engines, float("inf"))
        for turn in range(3 + (PATIENCE // steps if options["net"] != "resnet18" else 0)):
            for name, engine in engines.items():
                start = time.perf_counter()
                engine.train(turn, downs)
                best[name] = min(best[name], time.perf_counter() - start)
        choice = resolve_engine(config, members).engine
        times, ratio = (
            ", ".join(f"{name} {s:.2f} s" for name, s in best.items()),
            best[choice.name] / min(best.values()),
        )
        print(f"{title}: {times}; auto chooses {choice.name}, which takes {ratio:.2f} times the best")


if __name__ == "__main__":
    main()
