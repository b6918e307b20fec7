"""Random crops and flips of whole batches; every draw is a hash of a key, so nothing depends on who trains beside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.draws import hashed
from protofed.errors import UserError

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


CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"crop": crop, "flip": flip}


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
            x = CHANGES[name](x, torch.tensor(key))
        return x

    return change
