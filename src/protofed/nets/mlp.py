"""A dense net for small images and tables."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Annotated

from annotated_types import Ge, Lt
from torch import nn

Units = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class Mlp:
    """Dense layers with ReLU; the last one is the embedding."""

    hidden: tuple[Units, ...] = (64,)
    """sizes of the hidden layers"""
    dim: Units = 50
    """size of the embedding"""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """the share of the embedding that is left out before the head, in training"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        sizes = (prod(shape), *self.hidden, self.dim)
        body: OrderedDict[str, nn.Module] = OrderedDict(flat=nn.Flatten())
        for number, (ins, outs) in enumerate(pairwise(sizes), 1):
            body[f"fc{number}"] = nn.Linear(ins, outs)
            body[f"relu{number}"] = nn.ReLU()
        return nn.Sequential(body), nn.Sequential(
            OrderedDict(drop=nn.Dropout(self.dropout), out=nn.Linear(self.dim, classes))
        )
