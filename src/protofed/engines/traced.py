"""A step that has been watched once and is then replayed: the same operations, without the calls that led to them.

`vmap`, `grad` and the net's modules cost more than the arithmetic of small nets. What they come to in the end is a list
of torch operations that depends on nothing but the inputs' shapes and types; it is written down once and run from then
on. Results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

PATIENCE = 30
"""How many steps of a kind are taken as they are before one is watched, which takes as long."""


class Recorded(NamedTuple):
    run: Callable[..., Any]
    gives: TreeSpec


class Traced:
    """A function of trees of tensors, recorded for each kind of input that comes often, and compiled if asked to."""

    def __init__(self, function: Callable[..., Any], compiled: bool = False, patience: int = PATIENCE) -> None:
        self.function, self.compiled = function, compiled
        self.patience = 0 if compiled else patience  # compiled steps differ in the last bits: all are, or none
        self.seen: dict[Any, int] = {}
        self.recorded: dict[Any, Recorded] = {}

    def __call__(self, *inputs: Any) -> Any:
        leaves, spec = tree_flatten(inputs)
        kind = (spec, *((leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves))
        if kind not in self.recorded:
            self.seen[kind] = self.seen.get(kind, 0) + 1
            if self.seen[kind] <= self.patience:
                return self.function(*inputs)
            self.recorded[kind] = self.record(leaves, spec)
        run, gives = self.recorded[kind]
        return tree_unflatten(run(*leaves), gives)

    def record(self, leaves: list[Tensor], spec: TreeSpec) -> Recorded:
        """What the function does with such inputs, as one list of torch operations."""
        gives: list[TreeSpec] = []

        def flat(*leaves: Tensor) -> list[Tensor]:
            outputs, out = tree_flatten(self.function(*tree_unflatten(leaves, spec)))
            gives.append(out)
            return outputs

        module = make_fx(flat)(*[leaf.detach() for leaf in leaves])  # one tensor in two places is two inputs
        module.graph.eliminate_dead_code()
        module.recompile()
        return Recorded(torch.compile(module, dynamic=False) if self.compiled else module, gives[-1])
