"""Rounds of fluke-fl's FedProto with the images, net and batch size of `speed.py`.

    python peer_fluke.py IMAGES.npz

`speed.py` runs this in a separate environment. For every line on standard input it trains one round without evaluation
and prints the seconds (wall, CPU), the number of local trainings and the number of optimiser steps as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook


class Absent(ModuleType):
    """Replaces torchvision, which does not load with torch's CPU build; fluke-fl imports it for data and ResNets."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return type(name, (), {}) if name[0].isupper() else MagicMock()


for name in ("", ".models", ".transforms", ".datasets", ".datasets.utils", ".datasets.vision"):
    sys.modules[f"torchvision{name}"] = Absent(f"torchvision{name}")
sys.modules["torchvision"].__spec__ = None

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedproto import FedProto, FedProtoClient, FedProtoServer  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.nets import EncoderHeadNet  # noqa: E402


def net() -> Any:
    """FedProto's MNIST net: 21,840 parameters."""
    body = nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.Dropout2d(0.5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
    )
    return EncoderHeadNet(body, nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 10)))


class Counted(FedProtoClient):
    """A client that counts its local trainings and trains only in rounds.

    `run(..., finalize=False)` of fluke-fl 0.8.1 calls `finalize` nevertheless, and FedProto's trains once more.
    """

    trainings = 0

    def fit(self, override_local_epochs: int = 0) -> Any:
        Counted.trainings += 1
        return super().fit(override_local_epochs)

    def finalize(self) -> None:
        pass


class Steps:
    """Counts the steps of all optimisers."""

    def __init__(self) -> None:
        self.count = 0
        register_optimizer_step_post_hook(self.add)

    def add(self, *_: Any) -> None:
        self.count += 1


def main(file: str) -> None:
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False, eval_every=1)
    images = np.load(file)
    optimiser = OptimizerConfigurator(DDict(name="SGD", lr=0.01, momentum=0.5))
    clients = []
    for number, rows in enumerate(np.split(np.arange(len(images["y"])), np.cumsum(images["sizes"])[:-1])):
        x, y = torch.from_numpy(images["x"][rows]), torch.from_numpy(images["y"][rows])
        loader = FastDataLoader(x, y, num_labels=10, batch_size=8, shuffle=True)
        clients.append(Counted(number, net(), loader, None, optimiser, nn.CrossEntropyLoss(), 1, 10, 1.0))
    server = FedProtoServer(None, None, clients, n_protos=10)
    federation = FedProto(len(clients), None, {}, clients, server)
    steps = Steps()
    for _ in sys.stdin:
        trainings_before, steps_before = Counted.trainings, steps.count
        wall, cpu = time.perf_counter(), time.process_time()
        federation.run(1, 1.0)
        seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        work = {"trainings": Counted.trainings - trainings_before, "steps": steps.count - steps_before}
        print("\n" + json.dumps(seconds | work), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
