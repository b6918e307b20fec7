"""Class sums: what a client gathers during training for the mean embedding of each class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.core import Batch, Trained


def class_sums(z: Tensor, batch: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """The sum of the embeddings [classes, dim] and the number of examples [classes] of each class in a batch."""
    is_class = (batch.y.unsqueeze(1) == torch.arange(classes, device=z.device)).to(z.dtype)  # [n, classes]
    weight = is_class * batch.weight.unsqueeze(1)
    return weight.T @ z, weight.sum(0)


def gathered_prototypes(trained: Trained[Any, Any]) -> Prototypes:
    """The mean embedding of each class, from the class sums that the loss observed.

    A part of an epoch after the last one shows some examples twice; in the support, each counts once.
    """
    sums, counts = trained.observed
    held = trained.data.class_counts(trained.net.classes).to(counts.dtype)
    gathered = Prototypes.from_sums(sums, counts)
    return gathered._replace(support=gathered.support.minimum(held.unsqueeze(1)))
