"""The parameters of a net by name, and parts of them."""

from __future__ import annotations

from torch import Tensor

__all__ = ["ADDED", "Params", "added", "selected", "without_added"]

ADDED = "method."
"""Prefix of the names of parameters that a method adds to the net: a scale, a second head, a second model."""
Params = dict[str, Tensor]
"""Tensors by name: "body.*", "head.*", and "method.*" for what a method adds. Buffers are included, but never train."""


def selected(params: Params, part: str) -> Params:
    """A part of the parameters.

    `part` is the beginning of a name ("body."; "" for all), "convs" (convolutions with their biases), or "not " and one
    of these for all other parameters.
    """
    if part.startswith("not "):
        others = selected(params, part.removeprefix("not "))
        return {name: value for name, value in params.items() if name not in others}
    if part == "convs":
        layers = {name.rpartition(".")[0] for name, value in params.items() if value.dim() > 2}
        return {name: value for name, value in params.items() if name.rpartition(".")[0] in layers}
    return {name: value for name, value in params.items() if name.startswith(part)}


def added(params: Params) -> Params:
    """The parameters that a method added, by their names without the prefix."""
    return {name.removeprefix(ADDED): value for name, value in params.items() if name.startswith(ADDED)}


def without_added(params: Params) -> Params:
    """The parameters of the net itself."""
    return {name: value for name, value in params.items() if not name.startswith(ADDED)}
