"""A small U-Net (Ronneberger et al. 2015) with group norm: a quick net that labels every pixel."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.errors import UserError
from protofed.nets.mlp import Units

Maps = tuple[Tensor, ...]


@dataclass(frozen=True)
class UNet:
    """Labels every pixel: convolutions with pooling, then back to the size of the image. Group norm with 2 groups."""

    channels: tuple[Units, ...] = (16, 32, 64)
    """channels of each level; every level after the first has half the height and width. The last is the embedding"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        halvings = len(self.channels) - 1
        if len(shape) != 3 or any(side % 2**halvings for side in shape[1:]):
            raise UserError(
                f"net unet with {len(self.channels)} levels needs images with sides that are multiples of "
                f"{2**halvings}, got inputs of shape {shape}. Use other images, or fewer net.channels."
            )
        if halvings < 1 or any(channels % 2 for channels in self.channels):
            raise UserError(f"net.channels: got {list(self.channels)}; must be two or more even numbers.")
        return UNetBody(shape[0], self.channels), UNetHead(self.channels, classes)


def _convolution(ins: int, outs: int) -> nn.Module:
    """A 3x3 convolution with group norm and ReLU."""
    return nn.Sequential(
        OrderedDict(conv=nn.Conv2d(ins, outs, 3, padding=1, bias=False), norm=nn.GroupNorm(2, outs), relu=nn.ReLU())
    )


class UNetBody(nn.Module):
    """Returns the maps of all levels, the smallest one first: it is the embedding."""

    def __init__(self, ins: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.levels = nn.ModuleList(_convolution(before, after) for before, after in pairwise((ins, *channels)))

    def forward(self, x: Tensor) -> Maps:
        maps: list[Tensor] = []
        for level in self.levels:
            maps.insert(0, level(F.max_pool2d(maps[0], 2) if maps else x))
        return tuple(maps)


class UNetHead(nn.Module):
    """Enlarges the smallest map step by step; at each step the map of the same size of the body is appended."""

    def __init__(self, channels: tuple[int, ...], classes: int) -> None:
        super().__init__()
        upwards = channels[::-1]
        self.levels = nn.ModuleList(_convolution(low + high, high) for low, high in pairwise(upwards))
        self.out = nn.Conv2d(upwards[-1], classes, 1)

    def forward(self, maps: Maps) -> Tensor:
        z, *larger = maps
        for level, skip in zip(self.levels, larger, strict=True):
            z = level(torch.cat([F.interpolate(z, scale_factor=2.0, mode="nearest"), skip], 1))
        out: Tensor = self.out(z)
        return out
