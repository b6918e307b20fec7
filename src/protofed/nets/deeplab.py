"""DeepLab-V3+ (Chen et al. 2018): a net that labels every pixel.

Its encoder is a MobileNetV2 (Sandler et al. 2018) or an EfficientNet-Lite0, for which there are weights. At full width
they have 2,223,872 and 3,371,008 parameters with their last convolution, which `last` adds. The embedding is the output
of the atrous pyramid, which the paper counts as part of the encoder; the decoder is the head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from protofed.errors import UserError
from protofed.net import Params
from protofed.nets.efficientnet import Lite0Form, Lite0Maps

_MOBILENET_STAGES = (  # expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_LOW_LEVEL = 2
"""Stages whose output, at a quarter of the image's height and width, the decoder gets."""
_STEM, _LAST, _PYRAMID, _REDUCED = 32, 1280, 256, 48
"""Channels at full width: of the first and the last convolution, of the pyramid and the decoder, and of what the
decoder makes of the map of the early stages."""

NormLayer = Callable[[int], nn.Module]


@dataclass(frozen=True)
class DeepLab:
    """Labels every pixel: DeepLab-V3+ with an encoder, an atrous pyramid and a decoder."""

    width: Annotated[float, Gt(0)] = 1.0
    """multiplies all numbers of channels, which are rounded to multiples of 8"""
    stride: Literal[8, 16] = 16
    """size of the image divided by that of the map of embeddings; later strides become dilations"""
    rates: tuple[Annotated[int, Ge(1)], ...] = (6, 12, 18)
    """dilations of the pyramid's 3x3 convolutions; for images of 64x64 [1, 2] cover the map"""
    norm: Literal["group", "batch"] = "group"
    """group: groups of 8 channels, no running statistics; batch: as in the paper, for published weights, not stacked"""
    last: bool = False
    """whether the encoder ends with its 1x1 convolution to 1,280 channels before the pyramid"""
    encoder: Literal["mobilenetv2", "efficientnet_lite0"] = "mobilenetv2"
    """the encoder's layers; net.weights = "efficientnet_lite0" has those of the second, trained on ImageNet"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        if len(shape) != 3 or any(side % 16 for side in shape[1:]):
            raise UserError(
                "net deeplab needs images with sides that are multiples of 16, with channels first, got inputs of "
                f"shape {shape}. Use other images."
            )
        body = DeepLabBody(shape, self)
        return body, DeepLabDecoder(self.scaled(_PYRAMID), body.encoder.low_channels, classes, self)

    def scaled(self, channels: int) -> int:
        """A number of channels at this width: a multiple of 8, at least 8, and not less than 90 % of the product."""
        rounded = max(8, int(channels * self.width + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * channels * self.width else rounded

    def norm_layer(self, channels: int) -> nn.Module:
        """A new normalisation layer."""
        return nn.BatchNorm2d(channels) if self.norm == "batch" else nn.GroupNorm(max(channels // 8, 1), channels)


def _unit(
    ins: int, outs: int, kernel: int, norm: NormLayer, stride: int = 1, rate: int = 1, groups: int = 1
) -> nn.Module:
    """A convolution, a norm and ReLU6."""
    padding = kernel // 2 * rate
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(ins, outs, kernel, stride, padding, rate, groups, bias=False),
            norm=norm(outs),
            relu=nn.ReLU6(),
        )
    )


class Inverted(nn.Module):
    """MobileNetV2's block: 1x1 to more channels, 3x3 per channel, 1x1 to fewer. x is added if the shape is the same."""

    def __init__(self, ins: int, outs: int, stride: int, rate: int, expansion: int, norm: NormLayer) -> None:
        super().__init__()
        wide = ins * expansion
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if expansion > 1:
            layers["expand"] = _unit(ins, wide, 1, norm)
        layers["depthwise"] = _unit(wide, wide, 3, norm, stride, rate, groups=wide)
        layers["project"] = nn.Conv2d(wide, outs, 1, bias=False)
        layers["norm"] = norm(outs)
        self.layers = nn.Sequential(layers)
        self.adds_input = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(x)
        return z + x if self.adds_input else z


class MobileNetV2(nn.Module):
    """The encoder. It returns the map of the early stages and the last one."""

    def __init__(self, ins: int, design: DeepLab) -> None:
        super().__init__()
        channels, size, rate = design.scaled(_STEM), 2, 1
        self.stem = _unit(ins, channels, 3, design.norm_layer, 2)
        self.stages = nn.ModuleList()
        for number, (expansion, full, blocks, first_stride) in enumerate(_MOBILENET_STAGES, 1):
            outs, stage = design.scaled(full), nn.Sequential()
            for stride in (first_stride, *[1] * (blocks - 1)):
                used = stride if size * stride <= design.stride else 1
                stage.append(Inverted(channels, outs, used, rate, expansion, design.norm_layer))
                size, rate, channels = size * used, rate * (stride // used), outs
            self.stages.append(stage)
            if number == _LOW_LEVEL:
                self.low_channels = channels
        self.last = _unit(channels, design.scaled(_LAST), 1, design.norm_layer) if design.last else nn.Identity()
        self.channels = design.scaled(_LAST) if design.last else channels

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, low = self.stem(x), x
        for number, stage in enumerate(self.stages, 1):
            x = stage(x)
            low = x if number == _LOW_LEVEL else low
        return low, self.last(x)


def _encoder(shape: tuple[int, ...], design: DeepLab) -> MobileNetV2 | Lite0Maps:
    """The encoder of a design. Batch norm of EfficientNet-Lite0 has the published 1e-3 in its denominator."""
    if design.encoder == "mobilenetv2":
        return MobileNetV2(shape[0], design)
    norm = partial(nn.BatchNorm2d, eps=1e-3) if design.norm == "batch" else design.norm_layer
    return Lite0Maps(shape, Lite0Form(design.stride, design.scaled, norm, design.last))


class Pyramid(nn.Module):
    """The atrous pyramid: 1x1 and dilated 3x3 convolutions and the mean of the image side by side, then 1x1.

    A 3x3 convolution here is one per channel and then 1x1, as in the paper.
    """

    def __init__(self, ins: int, outs: int, design: DeepLab) -> None:
        super().__init__()
        norm = design.norm_layer
        self.point = _unit(ins, outs, 1, norm)
        self.dilated = nn.ModuleList(
            nn.Sequential(_unit(ins, ins, 3, norm, rate=rate, groups=ins), _unit(ins, outs, 1, norm))
            for rate in design.rates
        )
        # a norm of a single pixel would see too few numbers: the branch of the mean has a bias instead
        self.mean = nn.Conv2d(ins, outs, 1)
        self.join = _unit(outs * (2 + len(design.rates)), outs, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        mean = F.relu6(self.mean(x.mean((2, 3), keepdim=True))).expand(-1, -1, *x.shape[2:])
        out: Tensor = self.join(torch.cat([self.point(x), *(branch(x) for branch in self.dilated), mean], 1))
        return out


class DeepLabBody(nn.Module):
    """The encoder and the pyramid. It returns the embedding and the map of the early stages."""

    def __init__(self, shape: tuple[int, ...], design: DeepLab) -> None:
        super().__init__()
        self.encoder = _encoder(shape, design)
        self.pyramid = Pyramid(self.encoder.channels, design.scaled(_PYRAMID), design)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.encoder(x)
        return self.pyramid(high), low


class DeepLabDecoder(nn.Module):
    """The head: the enlarged embedding joined with the map of the early stages, two 3x3 convolutions, the classes."""

    def __init__(self, ins: int, low: int, classes: int, design: DeepLab) -> None:
        super().__init__()
        norm, reduced = design.norm_layer, design.scaled(_REDUCED)
        self.reduce = _unit(low, reduced, 1, norm)
        joined = ins + reduced
        self.refine = nn.Sequential(
            _unit(joined, joined, 3, norm, groups=joined),
            _unit(joined, ins, 1, norm),
            _unit(ins, ins, 3, norm, groups=ins),
            _unit(ins, ins, 1, norm),
        )
        self.out = nn.Conv2d(ins, classes, 1)

    def forward(self, maps: tuple[Tensor, Tensor]) -> Tensor:
        z, low = maps
        enlarged = F.interpolate(z, low.shape[2:], mode="bilinear")
        logits = self.out(self.refine(torch.cat([enlarged, self.reduce(low)], 1)))
        return F.interpolate(logits, scale_factor=4.0, mode="bilinear")


def mobilenet_from_torchvision(layers: Params) -> Params:
    """The tensors of torchvision's mobilenet_v2 by the names of this net. Those with other names stay as they are.

    >>> names = ("features.0.0.weight", "features.1.conv.0.1.bias", "features.2.conv.3.bias", "features.18.1.bias")
    >>> for name in mobilenet_from_torchvision(dict.fromkeys(names, 0)): print(name)
    body.encoder.stem.conv.weight
    body.encoder.stages.0.0.layers.depthwise.norm.bias
    body.encoder.stages.1.0.layers.norm.bias
    body.encoder.last.norm.bias
    """
    if "features.0.0.weight" not in layers or not any(name.startswith("features.18.") for name in layers):
        return layers
    places = [(stage, block) for stage, (_, _, blocks, _) in enumerate(_MOBILENET_STAGES) for block in range(blocks)]
    renamed = {}
    for name, value in layers.items():
        parts = name.split(".")
        if parts[0] != "features":
            continue  # the classifier
        number, tensor = int(parts[1]), parts[-1]
        unit_part = {"0": "conv", "1": "norm"}
        if number in (0, len(places) + 1):
            unit = "stem" if number == 0 else "last"
            renamed[f"body.encoder.{unit}.{unit_part[parts[2]]}.{tensor}"] = value
            continue
        stage, block = places[number - 1]
        units = ["depthwise"] if _MOBILENET_STAGES[stage][0] == 1 else ["expand", "depthwise"]
        at = int(parts[3])
        after = "project" if at == len(units) else "norm"
        layer = f"{units[at]}.{unit_part[parts[4]]}" if at < len(units) else after
        renamed[f"body.encoder.stages.{stage}.{block}.layers.{layer}.{tensor}"] = value
    return renamed
