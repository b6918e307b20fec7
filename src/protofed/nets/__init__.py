"""Nets: one file per family; this is the only registry. `own.py` accepts modules, `from_outside.py` names of others.

A net is described by a frozen dataclass, its design: the fields are the options, and `build` makes a (body, head) pair.
This package may import only the vocabulary at the root.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from functools import partial
from typing import Any, Protocol, cast

from torch import nn

from protofed.errors import UserError, is_out_of_memory
from protofed.net import Net
from protofed.nets.cnn import Cnn
from protofed.nets.convnet import Cnn1d, Cnn256, CnnCelebA, CnnFedNH, ConvNet, LeNet
from protofed.nets.deeplab import DeepLab
from protofed.nets.efficientnet import EfficientNetLite0
from protofed.nets.from_outside import OutsideDesign, design_class
from protofed.nets.mlp import LinearNet, Mlp, MlpFeatures, MlpMpFedCL, MlpSpiral, MlpSynthetic
from protofed.nets.resnet import ResNet18
from protofed.nets.unet import UNet
from protofed.plugins import Registry, label


class Design(Protocol):
    """The options of a net. `build` makes a new body and head for inputs of a shape and a number of classes."""

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]: ...


_DESIGNS: dict[str, type[Design]] = {
    "cnn": Cnn,
    "cnn1d": Cnn1d,
    "cnn256": Cnn256,
    "cnn_celeba": CnnCelebA,
    "cnn_fednh": CnnFedNH,
    "convnet": ConvNet,
    "deeplab": DeepLab,
    "efficientnet_lite0": EfficientNetLite0,
    "lenet": LeNet,
    "linear": LinearNet,
    "mlp": Mlp,
    "mlp_features": MlpFeatures,
    "mlp_mpfedcl": MlpMpFedCL,
    "mlp_spiral": MlpSpiral,
    "mlp_synthetic": MlpSynthetic,
    "resnet18": ResNet18,
    "unet": UNet,
}
NETS: Registry[type[Design]] = Registry("nets", design_class, _DESIGNS)


def make_net(name: str, design: Design, shape: tuple[int, ...], classes: int, others: Sequence[Design] = ()) -> Net:
    """The net of a design for inputs of a shape.

    `others`: all designs of the experiment. The name of the net lists the options in which it differs from the default
    or from another design of the same type.
    """
    options, name = _options(design), label(name)
    compared = [_defaults(type(design)), *(_options(other) for other in others if type(other) is type(design))]
    listed = [f"{key}={value}" for key, value in options.items() if any(other.get(key) != value for other in compared)]
    title = f"{name}({', '.join(listed)})" if listed else name
    if isinstance(design, OutsideDesign):
        return design.net(title, shape, classes)
    source = json.dumps({"name": name, **options})
    try:
        return Net(title, partial(design.build, shape, classes), shape, classes, source=source)
    except (RuntimeError, MemoryError, OverflowError) as problem:
        if is_out_of_memory(problem):
            raise UserError(f"net {title} does not fit into memory ({problem}). Use a smaller net.") from problem
        raise


def _defaults(kind: type[Design]) -> dict[str, Any]:
    """The defaults of a design as JSON values."""
    values = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(cast("Any", kind))
    }
    return dict(json.loads(json.dumps({key: value for key, value in values.items() if value is not MISSING})))


def _options(design: Design) -> dict[str, Any]:
    """The options of a design as JSON values: tuples become lists."""
    return dict(json.loads(json.dumps(asdict(cast("Any", design)))))
