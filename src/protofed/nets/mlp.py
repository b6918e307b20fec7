"""Dense nets for small images, tables and features."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Annotated, Literal

from annotated_types import Ge, Lt
from torch import nn

Units = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class Mlp:
    """Dense layers with ReLU. The last one is the embedding."""

    hidden: tuple[Units, ...] = (64,)
    """units of each hidden layer"""
    dim: Units = 50
    """size of the embedding"""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """dropout probability of the embedding before the head"""
    embedding: Literal["relu", "linear"] = "relu"
    """relu: the embedding is taken after a ReLU; linear: without one"""
    logits: Literal["linear", "relu"] = "linear"
    """linear: the head is a linear layer; relu: followed by a ReLU, as in MP-FedCL's Table III"""
    bias: bool = True
    """whether the classifier head has a bias"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        sizes = (prod(shape), *self.hidden, self.dim)
        body: OrderedDict[str, nn.Module] = OrderedDict(flat=nn.Flatten())
        for number, (ins, outs) in enumerate(pairwise(sizes), 1):
            body[f"fc{number}"] = nn.Linear(ins, outs)
            body[f"relu{number}"] = nn.ReLU()
        if self.embedding == "linear":
            body.popitem()
        head = OrderedDict[str, nn.Module](
            drop=nn.Dropout(self.dropout), out=nn.Linear(self.dim, classes, bias=self.bias)
        )
        if self.logits == "relu":
            head["relu"] = nn.ReLU()
        return nn.Sequential(body), nn.Sequential(head)


@dataclass(frozen=True)
class LinearNet:
    """A linear classifier, for features. The embedding is the input itself."""

    bias: bool = True
    """whether the classifier head has a bias"""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        head = OrderedDict[str, nn.Module](out=nn.Linear(prod(shape), classes, bias=self.bias))
        return nn.Flatten(), nn.Sequential(head)


@dataclass(frozen=True)
class MlpSynthetic(Mlp):
    """Prototype-guided FL's net for the synthetic data: 128 and 256 units."""

    hidden: tuple[Units, ...] = (128,)
    dim: Units = 256


@dataclass(frozen=True)
class MlpMpFedCL(Mlp):
    """MP-FedCL's net for MNIST: 512, 512 and 256 units, 798,474 parameters."""

    hidden: tuple[Units, ...] = (512, 512)
    dim: Units = 256


@dataclass(frozen=True)
class MlpFeatures(Mlp):
    """MP-FedCL's net for the features of a frozen encoder (data.encoder): 512-256-C, 133,898 parameters."""

    hidden: tuple[Units, ...] = ()
    dim: Units = 256


@dataclass(frozen=True)
class MlpSpiral(Mlp):
    """FedNH's net for the spiral: 16, 8, 4 and 2 units, of which the last are the embedding; a head without bias."""

    hidden: tuple[Units, ...] = (16, 8, 4)
    dim: Units = 2
    embedding: Literal["relu", "linear"] = "linear"
    bias: bool = False
