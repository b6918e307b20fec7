"""Class sums: what a client gathers during training for the mean embedding of each class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.core import Batch


def class_sums(z: Tensor, batch: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """The sum of the embeddings [classes, dim] and the number of examples [classes] of each class in a batch."""
    is_class = (batch.y.unsqueeze(1) == torch.arange(classes, device=z.device)).to(z.dtype)  # [n, classes]
    weight = is_class * batch.weight.unsqueeze(1)
    return weight.T @ z, weight.sum(0)
