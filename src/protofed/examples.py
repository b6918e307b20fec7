"""A set of examples: one shared array, an index into it, and the constants that normalise a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.draws import hashed
from protofed.errors import UserError

Constant = float | tuple[float, ...]
"""One number for all of an input, or one for each entry of its first dimension: a channel, or a column of a table."""


@dataclass(frozen=True)
class Examples:
    """Raw inputs stay as they are stored; a batch is gathered and normalised whole: (x / scale - mean) / std."""

    x: Tensor  # [all, ...], shared by every subset
    y: Tensor  # [all]
    index: Tensor  # [n]: which of them are in this set
    scale: float = 1.0
    mean: Constant = 0.0
    std: Constant = 1.0
    fill: Constant | None = None  # what stands for a missing value (NaN), before all else

    @classmethod
    def of(
        cls,
        x: np.ndarray,
        y: np.ndarray,
        scale: float = 1.0,
        mean: Constant = 0.0,
        std: Constant = 1.0,
        fill: Constant | None = None,
    ) -> Examples:
        """All of the arrays x [n, ...] and y [n]."""
        labels = torch.from_numpy(np.ascontiguousarray(y)).long()
        return cls(torch.from_numpy(np.ascontiguousarray(x)), labels, torch.arange(len(labels)), scale, mean, std, fill)

    @classmethod
    def none(cls, shape: Sequence[int], **constants: Any) -> Examples:
        """No examples of what `input` describes: it can still be told how inputs are shaped and normalised."""
        for key, value in constants.items():
            constants[key] = tuple(value) if isinstance(value, list) else value
        return cls.of(np.zeros((0, *shape), np.float32), np.zeros(0, np.int64), **constants)

    @property
    def input(self) -> dict[str, Any]:
        """How one input is shaped and normalised."""
        constants = {"scale": self.scale, "mean": self.mean, "std": self.std, "fill": self.fill}
        return {
            "shape": list(self.shape),
            **{key: list(value) if isinstance(value, tuple) else value for key, value in constants.items()},
        }

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
        return replace(self, index=self.index[torch.from_numpy(np.asarray(positions, dtype=np.int64))])

    def take(self, positions: Tensor, change: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Normalised inputs [m, ...] and labels [m] at the positions [m] of this set; `change` sees the raw inputs."""
        rows = self.index[positions]
        raw = self.x[rows]
        return self.normalised(change(raw) if change else raw), self.y[rows]

    def normalised(self, raw: Tensor) -> Tensor:
        """Inputs [m, ...] as a net gets them, from inputs as they are stored."""
        x = raw.float()
        if self.fill is not None:
            x = torch.where(torch.isnan(x), self.along(self.fill), x)
        return channels_last((x / self.scale - self.along(self.mean)) / self.along(self.std))

    def along(self, constant: Constant) -> Any:
        """A constant in a form that fits inputs [m, ...]."""
        if isinstance(constant, float):
            return constant
        return torch.tensor(constant).reshape(-1, *[1] * (self.x.dim() - 2))

    def normalised_like(self, other: Examples) -> Examples:
        """This set with the other one's constants."""
        return replace(self, scale=other.scale, mean=other.mean, std=other.std, fill=other.fill)

    def by_own_statistics(self) -> Examples:
        """This set normalised by its own medians (for what is missing), means and standard deviations."""
        raw = self.x[self.index].double().numpy()
        rows = np.moveaxis(raw, 1, 0).reshape(raw.shape[1], -1)  # [channels or columns, all values]
        fill = None
        if self.x.is_floating_point():  # a value may be missing in a test example, though in no training example
            median = [np.median(row[~np.isnan(row)]) if (~np.isnan(row)).any() else 0.0 for row in rows]
            rows, fill = np.where(np.isnan(rows), np.array(median)[:, None], rows), tuple(map(float, median))
        empty = rows.shape[1] == 0
        mean = np.zeros(len(rows)) if empty else rows.mean(1)
        std = np.ones(len(rows)) if empty else rows.std(1)
        std = np.where(std > 1e-8, std, 1.0)
        return replace(self, scale=1.0, mean=tuple(map(float, mean)), std=tuple(map(float, std)), fill=fill)

    def checked(self, x: Any) -> Tensor:
        """New raw inputs [m, ...], if they are like those of this set; a dimension of 1 may be left out."""
        raw, wanted = np.asarray(x), self.shape
        if raw.dtype.kind not in "biuf":
            raise UserError(f"The inputs are of type {raw.dtype}; they must be numbers.")
        if raw.ndim < 1 or raw.shape[1:] not in (wanted, tuple(size for size in wanted if size != 1)):
            raise UserError(
                f"The inputs have shape {list(raw.shape)}; must be [n{''.join(f', {size}' for size in wanted)}]."
            )
        with np.errstate(over="ignore"):
            raw = raw.astype(np.float32) if raw.dtype.kind == "f" else raw
        strange = ~np.isfinite(raw) if self.fill is None else np.isinf(raw)
        if bad := np.count_nonzero(strange):
            raise UserError(f"{bad:,} of the inputs' {raw.size:,} values are not finite. Fill them in.")
        return torch.from_numpy(np.ascontiguousarray(raw).reshape(len(raw), *wanted))

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole set in order, in batches, made one by one."""
        return (self.take(part) for part in torch.arange(len(self)).split(size) if len(part))


def channels_last(x: Tensor) -> Tensor:
    """Images [m, channels, high, wide] with the channels of a pixel side by side in memory: convolutions are faster."""
    if x.dim() != 4:
        return x
    _, channels, high, wide = x.shape
    x = x.contiguous(memory_format=torch.channels_last)
    return x.as_strided(x.shape, (channels * high * wide, 1, channels * wide, channels))  # torch leaves one channel be


Change = Literal["crop", "flip"]


def crop(x: Tensor, key: Tensor) -> Tensor:
    """Each image [n, channels, high, wide] shifted either way by up to an eighth of its side; the rim is 0."""
    n, _, high, wide = x.shape
    rim = max(high // 8, 1)
    down, right = (hashed(key, call, n) % (2 * rim + 1) for call in (1, 3))  # an image's does not depend on n
    padded = F.pad(x, (rim, rim, rim, rim))
    rows = (down[:, None] + torch.arange(high))[:, None, :, None]
    columns = (right[:, None] + torch.arange(wide))[:, None, None, :]
    images, channels = torch.arange(n)[:, None, None, None], torch.arange(x.shape[1])[None, :, None, None]
    return padded[images, channels, rows, columns]


def flip(x: Tensor, key: Tensor) -> Tensor:
    """Each image [n, channels, high, wide] mirrored or not, by a fair coin."""
    heads = (hashed(key, 2, len(x)) % 2 == 1)[:, None, None, None]
    return torch.where(heads, x.flip(-1), x)


_CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"crop": crop, "flip": flip}


def changer(names: tuple[Change, ...], key: int) -> Callable[[Tensor], Tensor] | None:
    """What is done to a batch of raw images before it is normalised; None: nothing."""
    if not names:
        return None

    def change(x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise UserError(
                f"train.augment: got {list(names)}, but inputs of shape {tuple(x.shape[1:])} are no images."
            )
        for name in names:
            x = _CHANGES[name](x, torch.tensor(key))
        return x

    return change
