"""A round of fluke-fl's FedProto on the images, net and batch of `speed.py`, which runs this in its own environment.

    python peer_fluke.py IMAGES.npz ROUNDS

Its evaluation is off. Prints the seconds (wall, CPU) of the best round as JSON.
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


class Absent(ModuleType):
    """Stands for torchvision, which does not load beside torch's CPU build; fluke-fl asks it for data and ResNets."""

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


def main(file: str, rounds: int) -> None:
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False, eval_every=1)
    given = np.load(file)
    optimiser = OptimizerConfigurator(DDict(name="SGD", lr=0.01, momentum=0.5))
    clients = []
    for place, rows in enumerate(np.split(np.arange(len(given["y"])), np.cumsum(given["sizes"])[:-1])):
        x, y = torch.from_numpy(given["x"][rows]), torch.from_numpy(given["y"][rows])
        loader = FastDataLoader(x, y, num_labels=10, batch_size=8, shuffle=True)
        clients.append(FedProtoClient(place, net(), loader, None, optimiser, nn.CrossEntropyLoss(), 1, 10, 1.0))
    server = FedProtoServer(None, None, clients, n_protos=10)
    federation = FedProto(len(clients), None, {}, clients, server)
    best = [float("inf")] * 2
    for _ in range(rounds):
        began, used = time.perf_counter(), time.process_time()
        federation.run(1, 1.0, finalize=False)
        best = [min(best[0], time.perf_counter() - began), min(best[1], time.process_time() - used)]
    print(json.dumps({"wall": best[0], "cpu": best[1]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
