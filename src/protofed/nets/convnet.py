"""Convolutional nets: convolutions with pooling, then dense layers. The last dense layer is the embedding."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Lt
from torch import nn

from protofed.errors import UserError
from protofed.nets.mlp import Units


@dataclass(frozen=True)
class ConvNet:
    """Convolutions with ReLU and max pooling by 2, then dense layers; for images and one-dimensional signals."""

    channels: tuple[Units, ...] = (32, 64)
    """channels of each convolution"""
    kernel: Units = 5
    """side of the convolutions' kernels in pixels"""
    padding: Literal["none", "same"] = "same"
    """none: every convolution makes images smaller by kernel - 1 pixels; same: images keep their size"""
    dense: tuple[Units, ...] = (128,)
    """units of each dense layer; the last one is the embedding. []: the last convolution is the embedding"""
    norm: Literal["none", "batch", "group"] = "none"
    """normalisation after each convolution: none, batch norm, or group norm with 2 groups"""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """dropout probability of the embedding before the head"""
    bias: bool = True
    """whether the classifier head has a bias"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        if len(shape) not in (2, 3):
            raise UserError(
                "this net needs images [channels, height, width] or signals [channels, length], got inputs of shape "
                f"{shape}. Use net mlp."
            )
        if not self.channels:
            raise UserError("net.channels: got []; must have at least one number.")
        if self.norm == "group" and any(channels % 2 for channels in self.channels):
            raise UserError(f"net.channels: got {list(self.channels)}; must be even numbers for group norm.")
        conv, pool, batch_norm = (
            (nn.Conv2d, nn.MaxPool2d, nn.BatchNorm2d) if len(shape) == 3 else (nn.Conv1d, nn.MaxPool1d, nn.BatchNorm1d)
        )
        border = self.kernel // 2 if self.padding == "same" else 0
        body: OrderedDict[str, nn.Module] = OrderedDict()
        sides = list(shape[1:])
        for number, (ins, outs) in enumerate(pairwise((shape[0], *self.channels)), 1):
            body[f"conv{number}"] = conv(ins, outs, self.kernel, padding=border)
            if self.norm != "none":
                body[f"norm{number}"] = batch_norm(outs) if self.norm == "batch" else nn.GroupNorm(2, outs)
            body[f"relu{number}"] = nn.ReLU()
            body[f"pool{number}"] = pool(2)
            sides = [(side + 2 * border - self.kernel + 1) // 2 for side in sides]
        if min(sides) < 1:
            raise UserError(
                f"inputs of shape {shape} are too small for {len(self.channels)} convolutions. Use fewer of them."
            )
        body["flat"] = nn.Flatten()
        sizes = (self.channels[-1] * torch.Size(sides).numel(), *self.dense)
        for number, (ins, outs) in enumerate(pairwise(sizes), 1):
            body[f"fc{number}"] = nn.Linear(ins, outs)
            body[f"act{number}"] = nn.ReLU()
        head = OrderedDict[str, nn.Module](drop=nn.Dropout(self.dropout), out=nn.Linear(sizes[-1], classes, self.bias))
        return nn.Sequential(body), nn.Sequential(head)


@dataclass(frozen=True)
class Cnn256(ConvNet):
    """Prototype-guided FL's net for MNIST and FEMNIST: 5x5 convolutions with 32 and 64 channels, 256 units."""

    dense: tuple[Units, ...] = (256,)


@dataclass(frozen=True)
class CnnCelebA(ConvNet):
    """Prototype-guided FL's net for CelebA: four 3x3 convolutions with 32 channels; the last one is the embedding."""

    channels: tuple[Units, ...] = (32, 32, 32, 32)
    kernel: Units = 3
    dense: tuple[Units, ...] = ()


@dataclass(frozen=True)
class CnnFedNH(ConvNet):
    """FedNH's net for CIFAR: 5x5 convolutions with 64 channels, 384 and 192 units, a head without bias."""

    channels: tuple[Units, ...] = (64, 64)
    padding: Literal["none", "same"] = "none"
    dense: tuple[Units, ...] = (384, 192)
    bias: bool = False


@dataclass(frozen=True)
class LeNet(ConvNet):
    """FedProto's net for CIFAR, from its code: 5x5 convolutions with 6 and 16 channels, 120 and 84 units."""

    channels: tuple[Units, ...] = (6, 16)
    padding: Literal["none", "same"] = "none"
    dense: tuple[Units, ...] = (120, 84)


@dataclass(frozen=True)
class Cnn1d(ConvNet):
    """A net for signals [channels, length], such as those of uci_har."""

    channels: tuple[Units, ...] = (32, 64, 64)
    dense: tuple[Units, ...] = (128,)
