"""Rounds of pfl-research's federated averaging with the images, net and batch size of `speed.py`.

    python peer_pfl.py IMAGES.npz SETTINGS

`speed.py` runs this in a separate environment. For every line on standard input it trains one round without evaluation
and prints the seconds (wall, CPU), the number of local trainings and the number of optimiser steps as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from speed_nets import NETS
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook


class WithLoss(nn.Sequential):
    """A net with the methods that pfl-research calls."""

    def loss(self, x: Any, y: Any, is_eval: bool = False) -> Any:
        self.train(not is_eval)
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Any, y: Any, is_eval: bool = True) -> dict[str, Any]:
        raise NotImplementedError("nothing is evaluated here")


class Counted(PyTorchModel):
    """A model that counts local trainings, and the steps of all optimisers but the server's."""

    trainings = steps = 0

    def do_multiple_epochs_of(self, *arguments: Any, **options: Any) -> Any:
        self.trainings += 1
        return super().do_multiple_epochs_of(*arguments, **options)

    def add_step(self, optimiser: Any, *_: Any) -> None:
        self.steps += optimiser is not self._central_optimizer


def main(file: str, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    images = np.load(file)
    x, y = torch.from_numpy(images["x"]), torch.from_numpy(images["y"])
    parts = [torch.from_numpy(p) for p in np.split(np.arange(len(y)), np.cumsum(images["sizes"])[:-1])]
    data = [Dataset(raw_data=[x[rows], y[rows]]) for rows in parts]
    users = FederatedDataset(data.__getitem__, get_user_sampler("minimize_reuse", list(range(len(data)))))
    net = WithLoss(*NETS[settings["net"]]())
    local = partial(torch.optim.SGD, momentum=settings["momentum"])
    model = Counted(net, local, torch.optim.SGD(net.parameters(), 1.0))
    register_optimizer_step_post_hook(model.add_step)
    backend = SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()])
    train = NNTrainHyperParams(
        local_learning_rate=settings["lr"], local_num_epochs=1, local_batch_size=settings["batch"]
    )
    one_round = NNAlgorithmParams(
        central_num_iterations=2, evaluation_frequency=10**9, train_cohort_size=len(data), val_cohort_size=0
    )
    for _ in sys.stdin:
        trainings, steps = model.trainings, model.steps
        wall, cpu = time.perf_counter(), time.process_time()
        algorithm = FederatedAveraging()
        algorithm._current_central_iteration = 1  # of 0 and 1; the first one would be evaluated
        algorithm.run(one_round, backend, model, train, send_metrics_to_platform=False)
        seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        work = {"trainings": model.trainings - trainings, "steps": model.steps - steps}
        print("\n" + json.dumps(seconds | work), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
