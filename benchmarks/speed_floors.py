"""What plain torch needs for the work of a round: one central model, and a loop over the clients."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from speed_workloads import Workload
from torch import nn


class Work(NamedTuple):
    """The work of all clients in a round, counted by the trainer."""

    trainings: int
    steps: int  # of the optimiser, over all clients


class Central:
    """One model on the images of all clients, weights and images channels last, one thread."""

    def __init__(self, workload: Workload, batch: int, device: torch.device) -> None:
        self.train, self.batch, self.device = workload.config.train, batch, device
        self.module = _module(workload).to(device, memory_format=torch.channels_last)
        self.optimiser = torch.optim.SGD(self.module.parameters(), self.train.lr, momentum=self.train.momentum)
        self.data = [train.for_steps for train in workload.members.train]
        self.rows = torch.cat([train.index for train in self.data])

    def round(self, turn: int) -> None:
        data = self.data[0]
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(turn))
        for positions in order.to(self.rows.device).split(self.batch):
            x, y = data.at_rows(self.rows[positions])
            _step(self.module, self.optimiser, x, y)


class PlainLoop:
    """FedAvg as one would write it: copy the model, train it on a client, average. Default layout, images ready."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.train, self.device = workload.config.train, device
        self.module = _module(workload).to(device)
        examples = [(train.for_steps, torch.arange(len(train))) for train in workload.members.train]
        self.data = [data.take(rows) for data, rows in examples]
        self.data = [(x.contiguous(), y) for x, y in self.data]

    def round(self, turn: int) -> Work:
        models, sizes, steps = [], [], 0
        generator = torch.Generator().manual_seed(turn)
        for x, y in self.data:
            model = copy.deepcopy(self.module)
            optimiser = torch.optim.SGD(model.parameters(), self.train.lr, momentum=self.train.momentum)
            order = torch.randperm(len(y), generator=generator).to(self.device)
            for positions in order[: len(y) // self.train.batch * self.train.batch].split(self.train.batch):
                _step(model, optimiser, x[positions], y[positions])
                steps += 1
            models.append(model.state_dict())
            sizes.append(len(y) / sum(len(y) for _, y in self.data))
        average = {name: sum(s * model[name] for s, model in zip(sizes, models, strict=True)) for name in models[0]}
        self.module.load_state_dict(average)
        return Work(len(self.data), steps)


def _module(workload: Workload) -> nn.Module:
    parts = workload.members.nets[0].new_module(torch.Generator().manual_seed(0))
    return nn.Sequential(parts["body"], parts["head"]).train()


def _step(module: nn.Module, optimiser: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimiser.zero_grad()
    F.cross_entropy(module(x), y).backward()
    optimiser.step()
