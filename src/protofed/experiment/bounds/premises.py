"""The premises that the three proofs share, and which of them an experiment breaks."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.roster import clients_per_round

_KINKED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.MaxPool1d, nn.MaxPool2d)


def common_premises(config: Config, members: Members) -> list[str]:
    """A sentence per premise that the experiment breaks, whatever the method."""
    train, run, per_round = config.train, config.run, clients_per_round(config, len(members))
    layers = [layer for net in dict.fromkeys(members.nets) for layer in net.module.modules()]
    broken = {
        f'train.optimiser = "{train.optimiser}": the proofs are for plain SGD': train.optimiser != "sgd",
        f"train.momentum = {train.momentum:g}: the proofs are for plain SGD": train.optimiser == "sgd"
        and train.momentum > 0,
        f'train.schedule = "{train.schedule}": the number of rounds is for a constant learning rate': (
            train.rate_changes
        ),
        'train.schedule_by = "step": the bounds of a round are for one learning rate; they have the mean': (
            train.rate_changes and train.schedule_by == "step"
        ),
        f"train.weight_decay = {train.weight_decay:g}: the steps also shrink the weights": train.weight_decay > 0,
        f"train.clip = {train.clip:g}: a clipped gradient is biased": train.clip > 0,
        f"train.augment = {list(train.augment)}: the examples change from step to step": bool(train.augment),
        f"run.sample = {run.sample}: the proofs need all clients in every round": per_round < len(members),
        f"system.slow = {config.system.slow:g}: clients take different numbers of steps": config.system.slow > 0,
        "clients have different numbers of examples, and so of steps; what follows from the server's step has the "
        "largest": len({-(-len(examples) // train.batch) for examples in members.train if len(examples)}) > 1,
        "dropout: the steps follow another function than the loss that is measured": any(
            isinstance(layer, _DropoutNd) and layer.p > 0 for layer in layers
        ),
        "batch norm: the loss of an example depends on its batch": any(net.has_batch_norm for net in members.nets),
        "ReLU or max-pooling: the gradient is not continuous, so there is no L1": any(
            isinstance(layer, _KINKED) for layer in layers
        ),
        "the batches of an epoch are drawn without replacement: a batch depends on those before it": any(
            len(examples) > train.batch for examples in members.train
        ),
    }
    return [sentence for sentence, is_broken in broken.items() if is_broken]
