"""Copies of the clients' examples on the device that trains them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from protofed.devices import CPU

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.examples import Examples

_SHARE_FOR_DATA = 0.5
"""The share of a GPU's free memory that the examples may take; the rest is for models and steps."""


class DeviceCopies:
    """Gives sets of examples a copy on a device. Arrays that sets share are copied once.

    If all arrays together are too large for the device, they stay in the computer's memory, and each batch is copied
    through pinned memory when it is needed.
    """

    def __init__(self, device: torch.device, sets: Iterable[Examples]) -> None:
        self.device = device
        arrays = {id(array): array for examples in sets for array in (examples.x, examples.y, examples.mask)}
        size = sum(array.numel() * array.element_size() for array in arrays.values() if array is not None)
        self.on_device = fits(size, device)
        self.copies: dict[int, tuple[Tensor, Tensor]] = {}  # by id: the array itself, so that it stays alive, its copy

    def placed(self, sets: Sequence[Examples]) -> tuple[Examples, ...]:
        """These sets, each with its copy."""
        if self.device == CPU:
            return tuple(sets)
        return tuple(replace(examples, copy=self.copy(examples)) for examples in sets)

    def copy(self, examples: Examples) -> Examples:
        """The set with arrays on the device, or with arrays here and batches on the device."""
        if not self.on_device:
            return replace(examples, device=self.device)
        mask = None if examples.mask is None else self.array(examples.mask)
        x, y, index = self.array(examples.x), self.array(examples.y), examples.index.to(self.device)
        return replace(examples, x=x, y=y, index=index, mask=mask, device=self.device)

    def array(self, array: Tensor) -> Tensor:
        """An array on the device."""
        if id(array) not in self.copies:
            self.copies[id(array)] = array, array.to(self.device)
        return self.copies[id(array)][1]


def fits(size: int, device: torch.device) -> bool:
    """Whether examples of this number of bytes may be kept on the device."""
    if device.type != "cuda":
        return True
    return size <= _SHARE_FOR_DATA * torch.cuda.mem_get_info(device)[0]
