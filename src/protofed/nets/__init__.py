"""Nets: one file per family; this is the only registry. `own.py` accepts modules from Python.

A net is a frozen dataclass: its fields are its options, and its `build` makes a (body, head) pair. This package may
import the vocabulary only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, cast

from torch import nn

from protofed.net import Net
from protofed.nets.cnn import Cnn
from protofed.nets.convnet import Cnn1d, Cnn256, CnnCelebA, CnnFedNH, ConvNet, LeNet
from protofed.nets.mlp import Mlp, MlpFeatures, MlpMpFedCL, MlpSpiral, MlpSynthetic
from protofed.nets.resnet import ResNet18


class Design(Protocol):
    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]: ...


NETS: dict[str, type[Design]] = {
    "cnn": Cnn,
    "cnn1d": Cnn1d,
    "cnn256": Cnn256,
    "cnn_celeba": CnnCelebA,
    "cnn_fednh": CnnFedNH,
    "convnet": ConvNet,
    "lenet": LeNet,
    "mlp": Mlp,
    "mlp_features": MlpFeatures,
    "mlp_mpfedcl": MlpMpFedCL,
    "mlp_spiral": MlpSpiral,
    "mlp_synthetic": MlpSynthetic,
    "resnet18": ResNet18,
}


def make_net(name: str, design: Design, shape: tuple[int, ...], classes: int, beside: Sequence[Design] = ()) -> Net:
    """The net of a design for inputs of a shape.

    It is called by its name and by the options that are not the default or differ among the designs it stands `beside`.
    """
    others = [_options(other) for other in (type(design)(), *beside) if type(other) is type(design)]
    told = [f"{key}={value}" for key, value in _options(design).items() if any(other[key] != value for other in others)]
    title = f"{name}({', '.join(told)})" if told else name
    source = json.dumps({"name": name, **_options(design)})
    return Net(title, partial(design.build, shape, classes), shape, classes, source=source)


def _options(design: Design) -> dict[str, Any]:
    """The design's fields as JSON has them: lists for tuples."""
    return dict(json.loads(json.dumps(asdict(cast("Any", design)))))
