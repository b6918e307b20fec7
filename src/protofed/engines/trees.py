"""The trees of tensors of several clients (messages, or what they keep) as one tree with a client dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from protofed.messages import with_sorted_names


class StackedTrees:
    """The trees of tensors (messages, or what clients keep) of several clients, stacked leaf by leaf.

    If all clients have the same tree object, its leaves are shared instead: they have no client dimension.
    """

    def __init__(self, trees: Sequence[Any]) -> None:
        leaves, specs = zip(*(tree_flatten(with_sorted_names(tree)) for tree in trees), strict=True)
        self.spec = specs[0]
        columns = list(zip(*leaves, strict=True))
        shared = all(tree is trees[0] for tree in trees)  # not per tensor: a worker process gets copies of tensors
        self.dims = [None if shared else 0 for _ in columns]
        self.leaves = [column[0] if shared else torch.stack(column) for column in columns]

    @property
    def key(self) -> tuple[Any, ...]:
        """The structure, shapes and types per client. A step can be used for all trees with the same key."""
        per_client = [
            (tuple(leaf.shape if dim is None else leaf.shape[1:]), leaf.dtype)
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        ]
        return str(self.spec), tuple(self.dims), *per_client

    def on(self, device: torch.device) -> StackedTrees:
        """The same trees with their leaves on a device."""
        self.leaves = [leaf.to(device) for leaf in self.leaves]
        return self

    def first(self, count: int) -> list[Tensor]:
        """The leaves for the first `count` clients."""
        return [leaf if dim is None else leaf[:count] for leaf, dim in zip(self.leaves, self.dims, strict=True)]


def tree_shapes(tree: Any) -> tuple[Any, ...]:
    """The structure, shapes and types of a tree. They must be equal for trees to be stacked."""
    leaves, spec = tree_flatten(with_sorted_names(tree))
    return (str(spec), *((tuple(leaf.shape), leaf.dtype) for leaf in leaves))
