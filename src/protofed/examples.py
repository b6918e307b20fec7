"""A set of examples: one shared array, an index into it, and the constants that normalise a batch.

The augmentations of training images, `crop` and `flip`, are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.devices import CPU
from protofed.draws import hashed_integers
from protofed.errors import UserError

__all__ = [
    "IGNORED",
    "Augmentation",
    "Constant",
    "Examples",
    "augmenter",
    "channels_last",
    "check_augmentation",
    "crop",
    "flip",
]

Constant = float | tuple[float, ...]
"""One number for the entire input, or one per entry of its first dimension (a channel, or a column of a table)."""
IGNORED = 255
"""The value of a pixel of a mask that has no label. It counts in no loss, prototype or measure."""
_MOST_MASKS = 32
"""The largest batch of images with masks when nothing is trained: scores per pixel take much memory."""


@dataclass(frozen=True)
class Examples:
    """Raw inputs and labels. A batch is normalised when it is taken: (x / scale - mean) / std.

    If every pixel has a label, `mask` holds these classes, and `y` the label of the image, by which images are divided
    among clients. It may be another set of labels than the classes of the pixels.
    """

    x: Tensor  # [all, ...]: raw inputs, shared by all subsets
    y: Tensor  # [all]: labels, shared by all subsets
    index: Tensor  # [n]: the rows of x and y that belong to this set
    scale: float = 1.0
    mean: Constant = 0.0
    std: Constant = 1.0
    fill: Constant | None = None  # replaces missing values (NaN) before all else; None: they stay
    mask: Tensor | None = None  # [all, height, width], bytes: the class of each pixel, or `IGNORED`
    device: torch.device = CPU  # where `take` puts batches; the arrays are there, too, if they fit
    copy: Examples | None = None  # the same set for another device, on which steps and evaluations run

    @classmethod
    def of(
        cls,
        x: np.ndarray,
        y: np.ndarray,
        scale: float = 1.0,
        mean: Constant = 0.0,
        std: Constant = 1.0,
        fill: Constant | None = None,
        mask: np.ndarray | None = None,
    ) -> Examples:
        """All examples of the arrays x [n, ...], y [n] and, if every pixel has a label, mask [n, height, width]."""
        inputs, labels = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y)).long()
        masks = None if mask is None else torch.from_numpy(np.ascontiguousarray(mask, dtype=np.uint8))
        return cls(inputs, labels, torch.arange(len(labels)), scale, mean, std, fill, masks)

    @classmethod
    def empty(cls, shape: Sequence[int], **constants: Any) -> Examples:
        """A set without examples for inputs that `input` describes. It can still check and normalise new inputs."""
        constants = {key: tuple(value) if isinstance(value, list) else value for key, value in constants.items()}
        return cls.of(np.zeros((0, *shape), np.float32), np.zeros(0, np.int64), **constants)

    @property
    def input(self) -> dict[str, Any]:
        """The shape of one input and the constants that normalise it, for JSON."""
        constants = {"scale": self.scale, "mean": self.mean, "std": self.std, "fill": self.fill}
        return {
            "shape": list(self.shape),
            **{key: list(value) if isinstance(value, tuple) else value for key, value in constants.items()},
        }

    def __len__(self) -> int:
        return len(self.index)

    @property
    def for_steps(self) -> Examples:
        """The copy of this set on the device of steps and evaluations; without one, this set."""
        return self.copy or self

    @property
    def labels(self) -> Tensor:
        """The labels [n] of this set; of images with masks, one per image."""
        return self.y[self.index]

    @property
    def num_labels(self) -> int:
        """The number of labels: one per example, or of images with masks one per pixel that is not ignored."""
        return len(self) if self.mask is None else int((self.mask[self.index] != IGNORED).sum())

    def targets(self, rows: Tensor) -> Tensor:
        """What a net is to predict for these rows [...] of the arrays: labels [...], or masks [..., height, width]."""
        return self.y[rows] if self.mask is None else self.mask[rows].long()

    def class_counts(self, classes: int) -> Tensor:
        """The number of examples of each class [classes]; of images with masks, the number of pixels."""
        if self.mask is None:
            return torch.bincount(self.labels, minlength=classes)
        return torch.bincount(self.mask[self.index].flatten(), minlength=IGNORED + 1)[:classes]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    def subset(self, positions: np.ndarray) -> Examples:
        """The examples at these positions of this set, without a copy of the inputs."""
        return replace(self, index=self.index[torch.from_numpy(np.asarray(positions, dtype=np.int64))], copy=None)

    def take(self, positions: Tensor, augment: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Normalised inputs [m, ...] and labels [m] (or masks [m, height, width]) at these positions [m] of the set.

        `augment` is applied to the raw inputs, and in the same way to masks, where new pixels are ignored ones.
        """
        return self.at_rows(self.index[positions.to(self.index.device)], augment)

    def at_rows(self, rows: Tensor, augment: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Like `take`, for these rows [m] of the shared arrays."""
        raw, y = (self._on_device(part) for part in (self.x[rows], self.targets(rows)))
        if augment and self.mask is not None:
            y = augment(y.unsqueeze(1) - IGNORED).squeeze(1) + IGNORED  # an augmentation fills new pixels with 0
        return self.normalised(augment(raw) if augment else raw), y

    def _on_device(self, part: Tensor) -> Tensor:
        """A part of a batch on the device of this set."""
        if part.device == self.device:
            return part
        return part.pin_memory().to(self.device, non_blocking=True)

    def normalised(self, raw: Tensor) -> Tensor:
        """Normalised inputs [m, ...], as a net gets them, from raw inputs."""
        return channels_last(self.normalised_values(raw))

    def normalised_values(self, raw: Tensor) -> Tensor:
        """Normalised inputs [m, ...] from raw inputs, in torch's default order in memory."""
        x = raw.float()
        if self.fill is not None:
            x = torch.where(torch.isnan(x), self._shaped(self.fill, x), x)
        normalised: Tensor = (x / self.scale - self._shaped(self.mean, x)) / self._shaped(self.std, x)
        return normalised

    def _shaped(self, constant: Constant, x: Tensor) -> Any:
        """A constant in a shape that broadcasts with inputs [m, ...]."""
        if isinstance(constant, float):
            return constant
        return torch.tensor(constant, device=x.device).reshape(-1, *[1] * (self.x.dim() - 2))

    def normalised_like(self, other: Examples) -> Examples:
        """This set with the constants of another one."""
        return replace(self, scale=other.scale, mean=other.mean, std=other.std, fill=other.fill, copy=None)

    def by_own_statistics(self) -> Examples:
        """This set normalised by its own means and standard deviations; medians replace missing values."""
        raw = self.x[self.index].double().numpy()
        rows = np.moveaxis(raw, 1, 0).reshape(raw.shape[1], -1)  # [channels or columns, all values]
        fill = None
        if self.x.is_floating_point():  # test examples may have missing values even if no training example has
            medians = [np.median(row[~np.isnan(row)]) if (~np.isnan(row)).any() else 0.0 for row in rows]
            rows, fill = np.where(np.isnan(rows), np.array(medians)[:, None], rows), tuple(map(float, medians))
        empty = rows.shape[1] == 0
        mean = np.zeros(len(rows)) if empty else rows.mean(1)
        std = np.ones(len(rows)) if empty else rows.std(1)
        std = np.where(std > 1e-8, std, 1.0)
        return replace(self, scale=1.0, mean=tuple(map(float, mean)), std=tuple(map(float, std)), fill=fill, copy=None)

    def checked_inputs(self, x: Any) -> Tensor:
        """New raw inputs [m, ...] as a tensor; an error if they do not have the shape of this set's inputs.

        A dimension of size 1 may be left out.
        """
        raw, shape = np.asarray(x), self.shape
        if raw.dtype.kind not in "biuf":
            raise UserError(
                f"The inputs are of type {raw.dtype}; they must be numbers of shape "
                f"[n{''.join(f', {size}' for size in shape)}], for example in a .npy file."
            )
        if raw.ndim < 1 or raw.shape[1:] not in (shape, tuple(size for size in shape if size != 1)):
            raise UserError(
                f"The inputs have shape {list(raw.shape)}; must be [n{''.join(f', {size}' for size in shape)}]."
            )
        with np.errstate(over="ignore"):
            raw = raw.astype(np.float32) if raw.dtype.kind == "f" else raw
        invalid = ~np.isfinite(raw) if self.fill is None else np.isinf(raw)
        if count := np.count_nonzero(invalid):
            first = int(np.flatnonzero(invalid.reshape(len(raw), -1).any(1))[0]) + 1
            raise UserError(
                f"{count:,} of the inputs' {raw.size:,} values are not finite, the first of them in row {first}. Fill "
                "them in."
            )
        empty = np.isnan(raw).reshape(len(raw), -1).all(1) if raw.dtype.kind == "f" and raw.size else np.zeros(0, bool)
        if empty.any():
            rows = ", ".join(map(str, (np.flatnonzero(empty) + 1)[:5]))
            raise UserError(
                f"{empty.sum():,} of the {len(raw):,} inputs have only missing values (row {rows}). Delete them."
            )
        return torch.from_numpy(np.ascontiguousarray(raw).reshape(len(raw), *shape))

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All examples in order, in batches of up to `size`. Each batch is made when it is needed."""
        size = size if self.mask is None else min(size, _MOST_MASKS)
        return (self.take(positions) for positions in torch.arange(len(self)).split(size) if len(positions))


def channels_last(x: Tensor) -> Tensor:
    """Images [m, channels, height, width] with the channels of a pixel adjacent in memory: convolutions are faster.

    Other inputs are returned unchanged.
    """
    if x.dim() != 4:
        return x
    _, channels, height, width = x.shape
    x = x.contiguous(memory_format=torch.channels_last)
    strides = (channels * height * width, 1, channels * width, channels)  # torch does not set them for one channel
    return x.as_strided(x.shape, strides)


Augmentation = Literal["crop", "flip"]
"""The names of the augmentations, as in `train.augment`."""


def crop(x: Tensor, key: Tensor) -> Tensor:
    """Each image [n, channels, height, width] shifted in both directions by up to an eighth of its height, at random.

    The pixels that become free are 0. The shift of an image does not depend on the number of images.
    """
    (n, _, height, width), device = x.shape, x.device
    border = max(height // 8, 1)
    down, right = (hashed_integers(key, call, n) % (2 * border + 1) for call in (1, 3))
    padded = F.pad(x, (border, border, border, border))
    rows = (down[:, None] + torch.arange(height, device=device))[:, None, :, None]
    columns = (right[:, None] + torch.arange(width, device=device))[:, None, None, :]
    images = torch.arange(n, device=device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=device)[None, :, None, None]
    return padded[images, channels, rows, columns]


def flip(x: Tensor, key: Tensor) -> Tensor:
    """Each image [n, channels, height, width] mirrored left to right with probability 1/2."""
    mirrored = (hashed_integers(key, 2, len(x)) % 2 == 1)[:, None, None, None]
    return torch.where(mirrored, x.flip(-1), x)


_AUGMENTATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"crop": crop, "flip": flip}


def check_augmentation(names: Sequence[str], x: Tensor) -> None:
    """Raise an error if these inputs [n, ...] are to be augmented, but are not images."""
    if names and x.dim() != 4:
        raise UserError(
            f"train.augment: got {list(names)}, but inputs of shape {tuple(x.shape[1:])} are not images. Set it to []."
        )


def augmenter(names: tuple[Augmentation, ...], key: int) -> Callable[[Tensor], Tensor] | None:
    """The function that augments a batch of raw images with draws from this key; None if there are no augmentations."""
    if not names:
        return None

    def augment(x: Tensor) -> Tensor:
        check_augmentation(names, x)
        for name in names:
            x = _AUGMENTATIONS[name](x, torch.tensor(key, device=x.device))
        return x

    return augment
