"""The nets of the two workloads of `speed.py`, as plain torch modules. Peers import this file in their environments."""

from __future__ import annotations

from torch import nn


def mnist_net() -> tuple[nn.Module, nn.Module]:
    """Workload W: FedProto's MNIST net, 21,840 weights."""
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
    return body, nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 10))


def cifar_net() -> tuple[nn.Module, nn.Module]:
    """Workload P: the CNN of pfl-research's CIFAR-10 benchmark, 1,626,442 weights."""
    body = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(12544, 128),
        nn.ReLU(),
    )
    return body, nn.Sequential(nn.Dropout(0.5), nn.Linear(128, 10))


NETS = {"W": mnist_net, "P": cifar_net}
