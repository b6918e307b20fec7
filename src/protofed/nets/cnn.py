"""FedProto's net for MNIST: two convolutions, an embedding of 50 numbers, 21,840 parameters with 20 channels."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt
from torch import nn

from protofed.errors import UserError


@dataclass(frozen=True)
class Cnn:
    """Two 5x5 convolutions with max pooling, then a dense embedding. Dropout as in FedProto's code."""

    channels: Annotated[int, Ge(1)] = 20
    """channels of the second convolution; FedProto's mixed models have 18, 20 and 22"""
    kernel: Annotated[int, Ge(1)] = 5
    """side of the first convolution's kernel in pixels; FedProto's FEMNIST net has 3"""
    dim: Annotated[int, Ge(1)] = 50
    """size of the embedding"""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.5
    """dropout probability, of the second convolution's channels and of the embedding before the head"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise UserError(
                f"net cnn needs images of at least 16x16 with channels first, got inputs of shape {shape}. "
                "Use net mlp or larger images (if it is an encoder: data.encoder_size)."
            )
        image_channels, *sides = shape
        height, width = (((side - self.kernel + 1) // 2 - 4) // 2 for side in sides)
        body = OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(image_channels, 10, self.kernel),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(10, self.channels, 5),
            drop2=nn.Dropout2d(self.dropout),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flat=nn.Flatten(),
            fc=nn.Linear(self.channels * height * width, self.dim),
            relu3=nn.ReLU(),
        )
        return nn.Sequential(body), nn.Sequential(
            OrderedDict(drop=nn.Dropout(self.dropout), out=nn.Linear(self.dim, classes))
        )
