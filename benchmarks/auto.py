"""Check the choice of `engine.name = "auto"`: a round of training by each engine in turn, the best of several.

    python benchmarks/auto.py

The rule of "auto" does not measure time; this benchmark does, for nets from small to large in one process. Nothing else
should run on the machine.
"""

from __future__ import annotations

import time

from protofed.engines.loop import Loop
from protofed.engines.replay import PATIENCE
from protofed.engines.stacked import Stacked
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.recipes import recipe_file
from protofed.experiment.run import resolve_engine

CLIENTS = 10


def equal_clients(data: str, net: str, batch: int, shots: int) -> Config:
    """An experiment with ten clients of equal size."""
    return Config.of(
        {
            "data": {"name": data, "clients": CLIENTS},
            "partition": {"name": "nway", "ways": 10, "stdev": 0, "shots": shots, "test": 1},
            "net": {"name": net},
            "method": {"name": "fedproto"},
            "train": {"batch": batch, "lr": 0.01},
            "engine": {"name": "auto"},
        }
    )


CASES = {
    "mnist, cnn, batch 8": equal_clients("mnist", "cnn", 8, 40),
    "mnist, mlp, batch 32": equal_clients("mnist", "mlp", 32, 64),
    "mnist, mlp_mpfedcl, batch 32": equal_clients("mnist", "mlp_mpfedcl", 32, 64),
    "cifar10, cnn_fednh, batch 64": equal_clients("cifar10", "cnn_fednh", 64, 13),
    "cifar10, resnet18, batch 32": equal_clients("cifar10", "resnet18", 32, 4),
    "synthetic_1_1, mlp_synthetic, batch 64": Config.load(
        recipe_file("protomargin-synthetic"), ["engine.name=auto", "train.epochs=2"]
    ),
}


def main() -> None:
    for title, config in CASES.items():
        members = Members.of(config)
        largest = sorted(range(len(members)), key=lambda client: -len(members.train[client]))[:CLIENTS]
        engines = {kind.__name__.lower(): kind(members, config.method, config.train, 0) for kind in (Loop, Stacked)}
        server = config.method.start(members.server(0, 0))
        downs = {client: config.method.broadcast(server, client) for client in largest}
        steps = max(1, len(members.train[largest[0]]) // config.train.batch)
        best = dict.fromkeys(engines, float("inf"))
        for turn in range(3 + (PATIENCE // steps if config.nets[0].name != "resnet18" else 0)):
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
