"""ResNet18 (He et al. 2016): 11,689,512 parameters with batch norm, ImageNet's stem and 1,000 classes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge
from torch import Tensor, nn

from protofed.errors import UserError
from protofed.net import Params

Stride = Annotated[int, Ge(1)]
_NARROW = 16
"""Below this number of channels, oneDNN's gradient of a 1x1 convolution with a stride writes outside of its memory
(issue 6035 of uxlfoundation/oneDNN): the process crashes, or the gradient is wrong."""


@dataclass(frozen=True)
class ResNet18:
    """Eight residual blocks. The embedding has 8 * width numbers, 512 by default."""

    stem: Literal["imagenet", "cifar"] = "cifar"
    """imagenet: a 7x7 convolution and 3x3 max pooling; cifar: a 3x3 convolution"""
    norm: Literal["batch", "group"] = "batch"
    """batch norm, or group norm with 2 groups, which keeps no running statistics"""
    strides: tuple[Stride, ...] = (2, 2)
    """strides of the imagenet stem's convolution and pooling; FedProto's clients have [1, 4] or [2, 2]"""
    width: Annotated[int, Ge(2)] = 64
    """channels of the first blocks; the embedding has eight times this number"""
    bias: bool = True
    """whether the classifier head has a bias"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise UserError(
                f"net resnet18 needs images of at least 16x16 with channels first, got inputs of shape {shape}. "
                "Use net mlp or larger images (if it is an encoder: data.encoder_size)."
            )
        if self.norm == "group" and self.width % 2:
            raise UserError(f"net.width: got {self.width}; must be even for group norm.")
        if len(self.strides) != 2:
            raise UserError(
                f"net.strides: got {list(self.strides)}; must be two numbers, for the stem's convolution and pooling."
            )
        width = self.width
        body: OrderedDict[str, nn.Module] = OrderedDict()
        if self.stem == "imagenet":
            body["conv1"] = nn.Conv2d(shape[0], width, 7, self.strides[0], 3, bias=False)
        else:
            body["conv1"] = nn.Conv2d(shape[0], width, 3, 1, 1, bias=False)
        body["norm1"] = self.norm_layer(width)
        body["relu"] = nn.ReLU()
        if self.stem == "imagenet":
            body["pool"] = nn.MaxPool2d(3, self.strides[1], 1)
        ins = width
        for number, outs in enumerate((width, 2 * width, 4 * width, 8 * width), 1):
            first = Block(ins, outs, 1 if number == 1 else 2, self)
            body[f"layer{number}"] = nn.Sequential(first, Block(outs, outs, 1, self))
            ins = outs
        body["mean"] = nn.AdaptiveAvgPool2d(1)
        body["flat"] = nn.Flatten()
        return nn.Sequential(body), nn.Sequential(OrderedDict(out=nn.Linear(ins, classes, self.bias)))

    def norm_layer(self, channels: int) -> nn.Module:
        """A new normalisation layer."""
        return nn.BatchNorm2d(channels) if self.norm == "batch" else nn.GroupNorm(2, channels)


def from_torchvision_names(layers: Params) -> Params:
    """The tensors of torchvision's resnet18 by the names of this net. Those with other names are returned as they are.

    >>> list(from_torchvision_names({"bn1.bias": 0, "layer2.0.downsample.1.bias": 1, "layer1.0.bn2.bias": 2}))
    ['body.norm1.bias', 'body.layer2.0.short.norm.bias', 'body.layer1.0.norm2.bias']
    """
    if "bn1.bias" not in layers:
        return layers
    new_names = {"downsample.0": "short.conv", "downsample.1": "short.norm", "bn": "norm"}
    renamed = {}
    for name, value in layers.items():
        new = f"head.out.{name.removeprefix('fc.')}" if name.startswith("fc.") else f"body.{name}"
        for old_part, new_part in new_names.items():
            new = new.replace(old_part, new_part)
        renamed[new] = value
    return renamed


class Block(nn.Module):
    """Adds two 3x3 convolutions of x to x. Where the shape changes, x passes through a 1x1 convolution first."""

    def __init__(self, ins: int, outs: int, stride: int, design: ResNet18) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
        self.norm1 = design.norm_layer(outs)
        self.conv2 = nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
        self.norm2 = design.norm_layer(outs)
        self.relu = nn.ReLU()
        self.short: nn.Module = nn.Identity()
        if stride > 1 or ins != outs:
            short: OrderedDict[str, nn.Module] = OrderedDict()
            if stride > 1 and ins < _NARROW:
                short["pick"], stride = nn.AvgPool2d(1, stride), 1  # picks the same pixels as the stride would
            short["conv"] = nn.Conv2d(ins, outs, 1, stride, bias=False)
            short["norm"] = design.norm_layer(outs)
            self.short = nn.Sequential(short)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu(z + self.short(x))
        return out
