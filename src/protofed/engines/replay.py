"""Training steps that are recorded once and then replayed, because Python is slower than the arithmetic of small nets.

A step of a stack goes through `vmap`, autograd, the method's `loss` and the net's modules. In the end this Python code
calls a list of torch operations (matrix products, sums, views), which depends only on the shapes, strides and types of
the inputs. What is recorded is this list, once per kind of input. It is shortened: constants are computed once, and
chains of views become one view. Later steps of the kind run the list directly, without the Python code; so `loss` is
not called again for them. The results are identical to the last bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from protofed.engines.gpu_graph import captured

PATIENCE = 30
"""Steps of a kind that run normally before one is recorded. Recording takes about as long as these steps."""
_FAST_NAMES = {
    "_log_softmax",
    "add",
    "addmm",
    "bitwise_and",
    "bitwise_xor",
    "bmm",
    "clamp",
    "convolution",
    "div",
    "eq",
    "ge",
    "gt",
    "mean",
    "mm",
    "mul",
    "ne",
    "neg",
    "relu",
    "sub",
    "sum",
    "where",
}
"""Operations for which `torch.NAME` takes half the time that `torch.ops.aten.NAME` needs to read its arguments."""


class Recorded(NamedTuple):
    """A recorded step."""

    run: Callable[..., Any]  # flat list of input tensors -> flat list of output tensors
    out_spec: TreeSpec  # the tree that the output tensors form


class Replayed:
    """A function of trees of tensors that is recorded for each kind of input seen more than `patience` times.

    `patience` None: never. The outputs must not be changed in place: they may be inputs, or constants of the recording.
    """

    def __init__(self, function: Callable[..., Any], patience: int | None = PATIENCE) -> None:
        self.function, self.patience = function, patience
        self.calls: dict[Any, int] = {}
        self.recorded: dict[Any, Recorded] = {}

    def __call__(self, *inputs: Any) -> Any:
        leaves, spec = tree_flatten(inputs)
        recorded = self._recording((spec, *map(_input_kind, leaves)), inputs)
        if recorded is None:
            return self.function(*inputs)
        return tree_unflatten(recorded.run(*leaves), recorded.out_spec)

    def bound(self, *fixed: Any) -> Callable[..., Any]:
        """The function with its first arguments fixed; the others must be tensors.

        The fixed tensors may change in place between calls.
        """
        fixed_leaves, fixed_spec = tree_flatten(fixed)
        fixed_kind = (fixed_spec, *map(_input_kind, fixed_leaves))
        recordings: dict[Any, Recorded] = {}  # those of the fixed arguments, found without comparing them again

        def call(*tensors: Tensor) -> Any:
            kind = tuple(map(_input_kind, tensors))
            recorded = recordings.get(kind) or self._recording((fixed_kind, kind), (*fixed, *tensors))
            if recorded is None:
                return self.function(*fixed, *tensors)
            recordings[kind] = recorded
            return tree_unflatten(recorded.run(*fixed_leaves, *tensors), recorded.out_spec)

        return call

    def _recording(self, kind: Any, inputs: tuple[Any, ...]) -> Recorded | None:
        """The recorded function for inputs of this kind, which is recorded now if it is time; None if it is not."""
        if kind not in self.recorded:
            self.calls[kind] = self.calls.get(kind, 0) + 1
            if self.patience is None or self.calls[kind] <= self.patience:
                return None
            self.recorded[kind] = self.record(*tree_flatten(inputs))
        return self.recorded[kind]

    def record(self, leaves: list[Tensor], spec: TreeSpec) -> Recorded:
        """The function for inputs of this kind as one list of torch operations."""
        out_specs: list[TreeSpec] = []

        def flat_function(*leaves: Tensor) -> list[Tensor]:
            outputs, out_spec = tree_flatten(self.function(*tree_unflatten(leaves, spec)))
            out_specs.append(out_spec)
            return outputs

        inputs = [leaf.detach() for leaf in leaves]  # so that one tensor at two positions counts as two inputs
        module = make_fx(flat_function)(*inputs)
        module.graph.eliminate_dead_code()
        if not any(target._schema.is_mutable for target in _operations(module)):
            _make_constants(module)
            _shorten_views(module, inputs)
        _use_fast_names(module)
        module.recompile()
        return Recorded(captured(module.forward, leaves), out_specs[-1])


def _input_kind(leaf: Tensor) -> tuple[Any, ...]:
    """What the operations of a recorded step may depend on, of one of its inputs."""
    return leaf.shape, leaf.stride(), leaf.dtype, leaf.device


def _operations(module: GraphModule) -> list[Any]:
    """The torch operations of a recorded step."""
    return [node.target for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def _make_constants(module: GraphModule) -> None:
    """Compute tensors that have no inputs, such as the result of `arange`, once and now."""
    for number, node in enumerate(module.graph.nodes):
        no_inputs = isinstance(node.target, torch._ops.OpOverload) and not node.all_input_nodes
        if no_inputs and not node.is_impure(impure_random=True):
            module.register_buffer(f"constant{number}", node.target(*node.args, **node.kwargs))
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(f"constant{number}"))
            module.graph.erase_node(node)


class MemoryLayout(NamedTuple):
    """The memory of a tensor and the order of its elements."""

    memory: tuple[Any, ...]  # storage, offset, type, and whether its elements are conjugated or negated
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class LayoutRecorder(Interpreter):
    """Runs a recorded step and stores the layout of each of its tensors in `layouts`."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)  # no storage is freed: equal ones are views
        self.layouts: dict[Node, MemoryLayout] = {}

    def run_node(self, node: Node) -> Any:
        result = super().run_node(node)
        if isinstance(result, Tensor) and result.layout is torch.strided:
            reading = result.dtype, result.is_conj(), result.is_neg()
            memory = result.untyped_storage()._cdata, result.storage_offset(), *reading
            self.layouts[node] = MemoryLayout(memory, tuple(result.shape), result.stride())
        return result


def _shorten_views(module: GraphModule, inputs: list[Tensor]) -> None:
    """Replace each chain of views of a tensor by one view of that tensor, since sizes and strides are known."""
    recorder = LayoutRecorder(module)
    recorder.run(*inputs)
    layouts, graph = recorder.layouts, module.graph
    views: dict[tuple[Any, ...], Node] = {}
    bases: dict[Node, Node] = {}  # for each new view the tensor that it is a view of
    for node in graph.nodes:
        sources = node.all_input_nodes
        if not isinstance(node.target, torch._ops.OpOverload) or len(sources) != 1 or node not in layouts:
            continue
        base = bases.get(sources[0], sources[0])
        if base not in layouts or layouts[base].memory != layouts[node].memory:
            continue  # not a view, or a view with another offset, type, conjugation or sign
        if node.target is torch.ops.aten.as_strided.default:  # its offset is absolute, whatever the tensor's offset
            continue
        key = (base, layouts[node].shape, layouts[node].strides)
        if layouts[base] == layouts[node]:
            views[key] = base
        elif key not in views:
            with graph.inserting_before(node):
                views[key] = graph.call_function(torch.as_strided, key)
            bases[views[key]] = base
        node.replace_all_uses_with(views[key])
    graph.eliminate_dead_code()


def _use_fast_names(module: GraphModule) -> None:
    """Call the most frequent operations by the names that are faster."""
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.args and isinstance(node.args[0], Node):
            name = node.target._schema.name.removeprefix("aten::")
            node.target = getattr(torch, name) if name in _FAST_NAMES else node.target
            node.target = operator.rshift if name == "__rshift__" else node.target
