"""The device that steps and evaluations run on. This is the only place that decides about it.

Parameters, messages and batches are moved to the device for training and evaluation, and results are moved back. Every
hook but `loss`, `predict` and `predict_global` therefore sees tensors on the CPU. All draws are made on the CPU, or are
hashes of integers, so that batches and dropout are the same on every device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from protofed.errors import UserError

__all__ = ["CPU", "Precision", "called", "check_device_name", "choose_device", "moved"]

CPU = torch.device("cpu")
Precision = Literal["float32", "bfloat16"]
"""The types in which the layers of a net may compute during training, as in `train.precision`."""


def check_device_name(name: Any) -> str:
    """Check the value of `engine.device`.

    >>> check_device_name("cuda:1")
    'cuda:1'
    """
    if isinstance(name, str) and re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        return name
    raise ValueError('must be "cpu", "cuda", "cuda:1" (the second GPU), "mps" or "auto"')


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is the first of cuda, mps and cpu that exists. An error if it does not exist."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if gpus else "mps" if has_mps else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        found = f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else "no GPU that it can use"
        raise UserError(
            f'engine.device: got "{name}", but torch {torch.__version__} finds {found} here. Use "cpu" or "auto", or '
            "install torch with CUDA (https://pytorch.org/get-started)."
        )
    if device.type == "mps" and not has_mps:
        raise UserError('engine.device: got "mps", but torch finds no Apple GPU here. Use "cpu" or "auto".')
    return device


def moved(tree: Any, device: torch.device) -> Any:
    """A tree of tensors on a device. Tensors that are there already are not copied."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


def called(module: nn.Module, params: Mapping[str, Tensor], x: Any, precision: Precision) -> Any:
    """The output of a module with these parameters, always in float32.

    With bfloat16, its convolutions and matrix products compute in this type (autocast).
    """
    if precision == "float32":
        return functional_call(module, dict(params), (x,))
    device = x[0].device if isinstance(x, tuple) else x.device
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        out = functional_call(module, dict(params), (x,))
    return tree_map(Tensor.float, out)
