"""EfficientNet-Lite0 (Tan and Le 2019, in its Lite form of 2020): 4,652,008 parameters with 1,000 classes.

The Lite form has ReLU6 instead of swish, and no squeeze-and-excitation. The stochastic depth with which the published
weights were trained is left out: it would only change training.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Ge, Lt
from torch import Tensor, nn

from protofed.errors import UserError
from protofed.net import Params

_STAGES = (  # blocks, kernel, stride of the first block, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _FEATURES = 32, 1280
_LOW_BLOCK = 3
"""The block after which a map has a quarter of the image's height and width: the last of the second stage."""
_PUBLISHED_NAMES = {
    "_conv_stem": "conv1",
    "_bn0": "norm1",
    "_conv_head": "conv2",
    "_bn1": "norm2",
    "_fc": "out",
}
_PUBLISHED_BLOCK_NAMES = {
    "_expand_conv": "conv1",
    "_bn0": "norm1",
    "_depthwise_conv": "conv2",
    "_bn1": "norm2",
    "_project_conv": "conv3",
    "_bn2": "norm3",
}


@dataclass(frozen=True)
class EfficientNetLite0:
    """16 inverted residual blocks with batch norm. The embedding has 1,280 numbers."""

    dropout: Annotated[float, Ge(0), Lt(1)] = 0.2
    """dropout probability of the embedding before the head"""
    bias: bool = True
    """whether the classifier head has a bias"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise UserError(
                "net efficientnet_lite0 needs images of at least 16x16 with channels first, got inputs of shape "
                f"{shape}. Use larger images (for data.encoder, set data.encoder_size), or net mlp."
            )
        layers = lite0_layers(shape, Lite0Form())
        body = OrderedDict(**layers, mean=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten())
        head = OrderedDict[str, nn.Module](
            drop=nn.Dropout(self.dropout), out=nn.Linear(_FEATURES, classes, bias=self.bias)
        )
        return nn.Sequential(body), nn.Sequential(head)


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    """Batch norm with the constants of the published net."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Lite0Form(NamedTuple):
    """What may differ from the published net."""

    stride: int = 32  # size of the image divided by that of the last map; later strides become dilations
    scaled: Callable[[int], int] = lambda channels: channels  # the number of channels in place of the published one
    norm: Callable[[int], nn.Module] = _batch_norm
    last: bool = True  # whether the 1x1 convolution to 1,280 channels is there


def lite0_layers(shape: tuple[int, ...], form: Lite0Form) -> OrderedDict[str, nn.Module]:
    """The layers up to the last map, by their names in the body, for inputs of this shape."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    sides: tuple[int, ...] = shape[1:]
    ins, number, size, rate = form.scaled(_STEM), 0, 2, 1
    layers["conv1"] = _same_convolution(sides, shape[0], ins, 3, 2)
    layers["norm1"], layers["relu1"] = form.norm(ins), nn.ReLU6()
    sides = _sides_after(sides, 2)
    for blocks, kernel, first_stride, expansion, published in _STAGES:
        outs = form.scaled(published)
        for stride in (first_stride, *[1] * (blocks - 1)):
            number, used = number + 1, stride if size * stride <= form.stride else 1
            layers[f"block{number}"] = InvertedBlock(sides, ins, outs, kernel, used, expansion, rate, form.norm)
            sides, ins = _sides_after(sides, used), outs
            size, rate = size * used, rate * (stride // used)
    if form.last:
        features = form.scaled(_FEATURES)
        layers["conv2"] = nn.Conv2d(ins, features, 1, bias=False)
        layers["norm2"], layers["relu2"] = form.norm(features), nn.ReLU6()
    return layers


class Lite0Maps(nn.Sequential):
    """An encoder of maps: it returns the map of the early blocks and the last one. `low_channels` is of the first."""

    def __init__(self, shape: tuple[int, ...], form: Lite0Form) -> None:
        super().__init__(lite0_layers(shape, form))
        self.low_channels = form.scaled(_STAGES[1][-1])
        self.channels = form.scaled(_FEATURES if form.last else _STAGES[-1][-1])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low = x
        for name, layer in self.named_children():
            x = layer(x)
            low = x if name == f"block{_LOW_BLOCK}" else low
        return low, x


class InvertedBlock(nn.Module):
    """A 1x1 convolution to more channels, a convolution per channel, and a 1x1 convolution to fewer channels.

    x is added if the shape does not change. Without an expansion, the first convolution is left out.
    """

    def __init__(
        self,
        sides: tuple[int, ...],
        ins: int,
        outs: int,
        kernel: int,
        stride: int,
        expansion: int,
        rate: int,
        norm: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        wide = ins * expansion
        self.expands = expansion > 1
        if self.expands:
            self.conv1 = nn.Conv2d(ins, wide, 1, bias=False)
            self.norm1 = norm(wide)
        self.conv2 = _same_convolution(sides, wide, wide, kernel, stride, rate, groups=wide)
        self.norm2 = norm(wide)
        self.conv3 = nn.Conv2d(wide, outs, 1, bias=False)
        self.norm3 = norm(outs)
        self.relu = nn.ReLU6()
        self.adds_input = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        wide = self.relu(self.norm1(self.conv1(x))) if self.expands else x
        z: Tensor = self.norm3(self.conv3(self.relu(self.norm2(self.conv2(wide)))))
        return z + x if self.adds_input else z


class PaddedConvolution(nn.Conv2d):
    """A convolution of images that are first padded with zeros: by other numbers before and after them."""

    borders: tuple[int, int, int, int]  # left, right, above, below

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(nn.functional.pad(x, self.borders))
        return out


def _same_convolution(
    sides: tuple[int, ...], ins: int, outs: int, kernel: int, stride: int, rate: int = 1, groups: int = 1
) -> nn.Conv2d:
    """A convolution of images with these sides, padded as TensorFlow's "same" does it. `rate`: its dilation.

    The output has sides / stride pixels, rounded up. If the number of pixels to add is odd, the larger half comes
    after the image.
    """
    covered = (kernel - 1) * rate + 1
    added = [max((-(-side // stride) - 1) * stride + covered - side, 0) for side in sides]
    (above, below), (left, right) = ((number // 2, number - number // 2) for number in added)
    if above == below and left == right:
        return nn.Conv2d(ins, outs, kernel, stride, (above, left), rate, groups, bias=False)
    convolution = PaddedConvolution(ins, outs, kernel, stride, 0, rate, groups, bias=False)
    convolution.borders = (left, right, above, below)
    return convolution


def _sides_after(sides: tuple[int, ...], stride: int) -> tuple[int, ...]:
    """Height and width after a convolution with this stride."""
    return tuple(-(-side // stride) for side in sides)


def from_published_names(layers: Params) -> Params:
    """The tensors of the published state dict (efficientnet_lite_pytorch) by the names of this net.

    Tensors with other names are returned as they are.

    >>> list(from_published_names({"_conv_stem.weight": 0, "_blocks.0._bn1.bias": 1, "_fc.bias": 2}))
    ['body.conv1.weight', 'body.block1.norm2.bias', 'head.out.bias']
    """
    if "_conv_stem.weight" not in layers:
        return layers
    renamed = {}
    for name, value in layers.items():
        layer, _, tensor = name.rpartition(".")
        block, _, part = layer.removeprefix("_blocks.").partition(".")
        if layer.startswith("_blocks.") and block.isdigit() and part in _PUBLISHED_BLOCK_NAMES:
            name = f"body.block{int(block) + 1}.{_PUBLISHED_BLOCK_NAMES[part]}.{tensor}"
        elif layer in _PUBLISHED_NAMES:
            name = f"{'head' if layer == '_fc' else 'body'}.{_PUBLISHED_NAMES[layer]}.{tensor}"
        renamed[name] = value
    return renamed
