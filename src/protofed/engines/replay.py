"""A step that has been watched once and is then replayed: the same operations, without the calls that led to them.

`vmap`, `grad` and the net's modules cost more than the arithmetic of small nets. What they come to in the end is a list
of torch operations that depends on nothing but the inputs' shapes and types; it is written down once, made short, and
run from then on. Results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

PATIENCE = 30
"""How many steps of a kind are taken as they are before one is watched, which takes as long."""
_BOUND = {
    "add",
    "bitwise_and",
    "bitwise_xor",
    "bmm",
    "convolution",
    "div",
    "eq",
    "ge",
    "gt",
    "mean",
    "mul",
    "ne",
    "neg",
    "relu",
    "sub",
    "sum",
    "where",
}
"""Operations that torch.NAME calls in half the time that torch.ops.aten.NAME takes to read its arguments."""


class Recorded(NamedTuple):
    run: Callable[..., Any]
    gives: TreeSpec


class Replayed:
    """A function of trees of tensors, which is recorded for each kind of input that comes often.

    Nobody may write into what it returns: that may be a constant of the recording, or an input.
    """

    def __init__(self, function: Callable[..., Any], patience: int = PATIENCE) -> None:
        self.function, self.patience = function, patience
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

        inputs = [leaf.detach() for leaf in leaves]  # one tensor in two places is two inputs
        module = make_fx(flat)(*inputs)
        module.graph.eliminate_dead_code()
        if not any(target._schema.is_mutable for target in _operations(module)):
            _make_constants(module)
            _shorten_views(module, inputs)
        _bind(module)
        module.recompile()
        return Recorded(module.forward, gives[-1])


def _operations(module: GraphModule) -> list[Any]:
    """The torch operations of a recorded step."""
    return [node.target for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def _make_constants(module: GraphModule) -> None:
    """Tensors that are made from nothing, as a row of numbers is, are made now, once."""
    for place, node in enumerate(module.graph.nodes):
        made_from_nothing = isinstance(node.target, torch._ops.OpOverload) and not node.all_input_nodes
        if made_from_nothing and not node.is_impure() and torch.Tag.nondeterministic_seeded not in node.target.tags:
            module.register_buffer(f"constant{place}", node.target(*node.args, **node.kwargs))
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(f"constant{place}"))
            module.graph.erase_node(node)


class Layout(NamedTuple):
    """Where a tensor lies in memory, how its numbers are read, and how they are ordered."""

    memory: tuple[Any, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Layouts(Interpreter):
    """Runs a recorded step and notes the layout of each of its tensors."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)  # two tensors at one place are one's views
        self.found: dict[Node, Layout] = {}

    def run_node(self, node: Node) -> Any:
        result = super().run_node(node)
        if isinstance(result, Tensor) and result.layout is torch.strided:
            read = result.dtype, result.is_conj(), result.is_neg()
            memory = result.untyped_storage().data_ptr(), result.storage_offset(), *read
            self.found[node] = Layout(memory, tuple(result.shape), result.stride())
        return result


def _shorten_views(module: GraphModule, inputs: list[Tensor]) -> None:
    """A view of a view of a tensor is one look at that tensor, with the sizes and strides that are known now."""
    layouts = Layouts(module)
    layouts.run(*inputs)
    found, graph = layouts.found, module.graph
    looks: dict[tuple[Any, ...], Node] = {}
    bases: dict[Node, Node] = {}  # of each look the tensor that it looks at
    for node in graph.nodes:
        sources = node.all_input_nodes
        if not isinstance(node.target, torch._ops.OpOverload) or len(sources) != 1 or node not in found:
            continue
        base = bases.get(sources[0], sources[0])
        if base not in found or found[base].memory != found[node].memory:
            continue  # it is no view, or one that begins elsewhere, or is read otherwise
        if node.target is torch.ops.aten.as_strided.default:  # begins where it says, wherever the tensor begins
            continue
        key = (base, found[node].shape, found[node].strides)
        if found[base] == found[node]:
            looks[key] = base
        elif key not in looks:
            with graph.inserting_before(node):
                looks[key] = graph.call_function(torch.as_strided, key)
            bases[looks[key]] = base
        node.replace_all_uses_with(looks[key])
    graph.eliminate_dead_code()


def _bind(module: GraphModule) -> None:
    """The operations that are called most get their quick names."""
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.args and isinstance(node.args[0], Node):
            name = node.target._schema.name.removeprefix("aten::")
            node.target = getattr(torch, name) if name in _BOUND else node.target
