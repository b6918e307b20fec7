"""The MNIST net of FedProto: two convolutions, a 50-dimensional embedding, 21,840 parameters at 20 channels."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt
from torch import nn

from protofed.errors import UserError


@dataclass(frozen=True)
class Cnn:
    """Two 5x5 convolutions, pooled, then a dense embedding; dropout as in FedProto's code."""

    channels: Annotated[int, Ge(1)] = 20
    """of the second convolution; FedProto's mixed models have 18, 20 and 22"""
    kernel: Annotated[int, Ge(1)] = 5
    """side of the first convolution's kernel; FedProto's FEMNIST net has 3"""
    dim: Annotated[int, Ge(1)] = 50
    """size of the embedding"""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.5
    """the share left out in training, of the second convolution's channels and of the embedding before the head"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise UserError(
                f"net cnn wants images of at least 16x16 with channels first, got inputs of shape {shape}. "
                "Use net mlp, or larger images."
            )
        planes, *sides = shape
        high, wide = (((side - self.kernel + 1) // 2 - 4) // 2 for side in sides)
        body = OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(planes, 10, self.kernel),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(10, self.channels, 5),
            drop2=nn.Dropout2d(self.dropout),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flat=nn.Flatten(),
            fc=nn.Linear(self.channels * high * wide, self.dim),
            relu3=nn.ReLU(),
        )
        return nn.Sequential(body), nn.Sequential(
            OrderedDict(drop=nn.Dropout(self.dropout), out=nn.Linear(self.dim, classes))
        )
