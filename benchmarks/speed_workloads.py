"""The two workloads of `speed.py`: the clients, their images, and how they train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from speed_nets import NETS

from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.net import Net

RECIPE = Path(__file__).parents[1] / "recipes" / "fedproto-mnist-n3.toml"


class Workload(NamedTuple):
    """A federation that every library trains."""

    name: str
    title: str
    members: Members
    config: Config  # its method is FedAvg
    fedproto: Config | None  # the same with FedProto; None: the workload has FedAvg only

    @property
    def settings(self) -> dict[str, Any]:
        """What a peer needs to know, next to the images."""
        train = self.config.train
        return {"net": self.name, "batch": train.batch, "lr": train.lr, "momentum": train.momentum}

    def write_images(self, file: Path) -> None:
        """The normalised images of all clients, without those of short batches, which our clients leave out."""
        batch = self.config.train.batch
        full = [torch.arange(len(train) // batch * batch) for train in self.members.train]
        parts = [train.take(rows) for train, rows in zip(self.members.train, full, strict=True)]
        x, y = (torch.cat(part).contiguous().numpy() for part in zip(*parts, strict=True))
        np.savez(file, x=x, y=y, sizes=list(map(len, full)))


def workload(name: str, clients: int = 0) -> Workload:
    """The workload W or P; `clients`: only the first ones, for a quick look."""
    return (_mnist if name == "W" else _cifar)(clients)


def _mnist(clients: int) -> Workload:
    config = Config.load(RECIPE, ["train.drop_last=true"])
    members = _shortened(_with_net(Members.of(config), "W"), clients)
    fedavg = Config.load(RECIPE, ["train.drop_last=true", "method.name=fedavg"])
    return Workload("W", "FedProto's MNIST round: a net of 22 thousand weights", members, fedavg, config)


def _cifar(clients: int) -> Workload:
    config = Config.of(
        {
            "data": {"name": "cifar10", "clients": 50, "limit": 2500},
            "partition": {"name": "iid"},
            "method": {"name": "fedavg"},
            "train": {"batch": 10, "lr": 0.1, "momentum": 0.0, "drop_last": True},
        }
    )
    members = _shortened(_with_net(Members.of(config), "P"), clients)
    title = "pfl-research's CIFAR-10 round: a net of 1.6 million weights"
    return Workload("P", title, members, config, None)


def _with_net(members: Members, name: str) -> Members:
    """The members with the workload's net, the same for all."""
    net = Net(name, NETS[name], members.train[0].shape, members.classes)
    return replace(members, nets=(net,) * len(members))


def _shortened(members: Members, clients: int) -> Members:
    if not clients:
        return members
    lists = {key: getattr(members, key)[:clients] for key in ("nets", "train", "test", "parts")}
    return replace(members, **lists, groups=(), names=())
