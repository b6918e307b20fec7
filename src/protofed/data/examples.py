"""A set of examples: one shared array, an index into it, and the constants that normalise a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.errors import UserError


@dataclass(frozen=True)
class Examples:
    """Raw inputs stay as they are stored; a batch is gathered and normalised whole: (x / scale - mean) / std."""

    x: Tensor  # [all, ...], shared by every subset
    y: Tensor  # [all]
    index: Tensor  # [n]: which of them are in this set
    scale: float = 1.0
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, scale: float = 1.0, mean: float = 0.0, std: float = 1.0) -> Examples:
        """All of the arrays x [n, ...] and y [n]."""
        labels = torch.from_numpy(np.ascontiguousarray(y)).long()
        return cls(torch.from_numpy(np.ascontiguousarray(x)), labels, torch.arange(len(labels)), scale, mean, std)

    @classmethod
    def none(cls, shape: Sequence[int], scale: float, mean: float, std: float) -> Examples:
        """No examples of what `input` describes: it can still be told how inputs are shaped and normalised."""
        return cls.of(np.zeros((0, *shape), np.float32), np.zeros(0, np.int64), scale, mean, std)

    @property
    def input(self) -> dict[str, Any]:
        """How one input is shaped and normalised."""
        return {"shape": list(self.shape), "scale": self.scale, "mean": self.mean, "std": self.std}

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """The labels [n] of this set."""
        return self.y[self.index]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    def subset(self, positions: np.ndarray) -> Examples:
        """The examples at these positions of this set, without a copy of the inputs."""
        chosen = self.index[torch.from_numpy(np.asarray(positions, dtype=np.int64))]
        return Examples(self.x, self.y, chosen, self.scale, self.mean, self.std)

    def take(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised inputs [m, ...] and labels [m] at the positions [m] of this set."""
        rows = self.index[positions]
        return self.normalised(self.x[rows]), self.y[rows]

    def normalised(self, raw: Tensor) -> Tensor:
        """Inputs [m, ...] as a net gets them, from inputs as they are stored."""
        return (raw.float() / self.scale - self.mean) / self.std

    def checked(self, x: Any) -> Tensor:
        """New raw inputs [m, ...], if they are like those of this set; a dimension of 1 may be left out."""
        raw, wanted = np.asarray(x), self.shape
        if raw.dtype.kind not in "biuf":
            raise UserError(f"The inputs are of type {raw.dtype}; they must be numbers.")
        if raw.ndim < 1 or raw.shape[1:] not in (wanted, tuple(size for size in wanted if size != 1)):
            raise UserError(
                f"The inputs have shape {list(raw.shape)}; must be [n{''.join(f', {size}' for size in wanted)}]."
            )
        if bad := np.count_nonzero(~np.isfinite(raw)):
            raise UserError(f"{bad:,} of the inputs' {raw.size:,} values are not finite. Fill them in.")
        return torch.from_numpy(np.ascontiguousarray(raw).reshape(len(raw), *wanted))

    def batches(self, size: int) -> list[tuple[Tensor, Tensor]]:
        """The whole set in order, in batches."""
        return [self.take(part) for part in torch.arange(len(self)).split(size)] if len(self) else []
