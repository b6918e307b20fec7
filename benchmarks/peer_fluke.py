"""Rounds of fluke-fl's FedProto or FedAvg with the images, net and batch size of `speed.py`.

    python peer_fluke.py IMAGES.npz SETTINGS

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
from fluke.algorithms import CentralizedFL  # noqa: E402
from fluke.algorithms.fedproto import FedProto, FedProtoClient, FedProtoServer  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.nets import EncoderHeadNet  # noqa: E402
from fluke.server import Server  # noqa: E402
from speed_nets import NETS  # noqa: E402


class Counts:
    """The local trainings and optimiser steps of all clients."""

    def __init__(self) -> None:
        self.trainings = self.steps = 0
        register_optimizer_step_post_hook(self.add_step)

    def add_step(self, *_: Any) -> None:
        self.steps += 1


COUNTS = Counts()


def counted(kind: type) -> type:
    """The class of a client that counts its local trainings and trains only in rounds.

    `run(..., finalize=False)` of fluke-fl 0.8.1 calls `finalize` nevertheless, and FedProto's trains once more.
    """

    def fit(self: Any, override_local_epochs: int = 0) -> Any:
        COUNTS.trainings += 1
        return kind.fit(self, override_local_epochs)

    return type(f"Counted{kind.__name__}", (kind,), {"fit": fit, "finalize": lambda self: None})


def federation(images: Any, settings: dict[str, Any]) -> Any:
    """FedProto, or FedAvg."""
    optimiser = OptimizerConfigurator(DDict(name="SGD", lr=settings["lr"], momentum=settings["momentum"]))
    clients: list[Any] = []
    for number, rows in enumerate(np.split(np.arange(len(images["y"])), np.cumsum(images["sizes"])[:-1])):
        x, y = torch.from_numpy(images["x"][rows]), torch.from_numpy(images["y"][rows])
        loader = FastDataLoader(x, y, num_labels=10, batch_size=settings["batch"], shuffle=True)
        if settings["method"] == "FedProto":
            arguments = (EncoderHeadNet(*NETS[settings["net"]]()), loader, None, optimiser, nn.CrossEntropyLoss(), 1)
            clients.append(counted(FedProtoClient)(number, *arguments, 10, 1.0))
        else:
            clients.append(counted(Client)(number, loader, None, optimiser, nn.CrossEntropyLoss(), 1))
    if settings["method"] == "FedProto":
        server = FedProtoServer(None, None, clients, n_protos=10)
        return FedProto(len(clients), None, {}, clients, server)
    server = Server(nn.Sequential(*NETS[settings["net"]]()), None, clients, weighted=True)
    return CentralizedFL(len(clients), None, {}, clients, server)


def main(file: str, settings: dict[str, Any]) -> None:
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False, eval_every=1)
    made = federation(np.load(file), settings)
    for _ in sys.stdin:
        trainings, steps = COUNTS.trainings, COUNTS.steps
        wall, cpu = time.perf_counter(), time.process_time()
        made.run(1, 1.0)
        seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        work = {"trainings": COUNTS.trainings - trainings, "steps": COUNTS.steps - steps}
        print("\n" + json.dumps(seconds | work), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
