"""Weights from files: safetensors, or a state dict through torch's safe loader, which runs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from protofed.errors import UserError
from protofed.examples import Examples

Layers = dict[str, Tensor]


def read_weights(path: str | Path) -> Layers:
    """Tensors by name from a .safetensors file, as `protofed export` writes it, or from a .pt or .pth state dict."""
    return read_weights_and_metadata(path)[0]


def read_weights_and_metadata(path: str | Path) -> tuple[Layers, dict[str, Any]]:
    """The tensors, and what the file says about itself."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"There is no file {path} to take weights from.")
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch's loader has many ways to fail on a strange file
        kind = "a .safetensors file" if path.suffix == ".safetensors" else "a state dict of tensors alone"
        raise UserError(f"{path} is not readable as {kind}: {str(problem).partition(chr(10))[0]}") from problem
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path} is not a state dict: it must be names and tensors, nothing else.")
    return found, {}


def design(metadata: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """The net that the weights are of, if the file says so."""
    try:
        return dict(json.loads(metadata["source"]))
    except (KeyError, ValueError, TypeError):
        raise UserError(
            f"{path} does not say which net its weights are of. Use a file that `protofed export` or `pretrain` wrote."
        ) from None


def inputs(metadata: dict[str, Any]) -> Examples | None:
    """How the inputs were shaped and normalised that the weights were trained on, if the file says so."""
    try:
        return Examples.none(**json.loads(metadata["input"]))
    except (KeyError, ValueError, TypeError):
        return None


def origin(metadata: dict[str, Any]) -> str:
    """What is to be said of weights that `protofed pretrain` made, wherever a result with them is shown."""
    try:
        return f"own pre-training on {' and '.join(json.loads(metadata['pretraining'])['data'])}"
    except (KeyError, ValueError, TypeError):
        return ""
