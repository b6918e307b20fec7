"""The memory layout of the images of a stack of clients: all clients and channels of a pixel are adjacent.

In this layout a grouped convolution over all clients is as fast as one client's convolution over the same number of
images, and pooling is faster. `vmap` keeps the layout for most layers. The others get rules of their own here, and so
do convolutions, because `vmap` would add their bias in a second pass. The values do not change.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


def clients_last(x: Tensor) -> Tensor:
    """Images [clients, batch, channels, height, width] in this layout; other inputs are returned unchanged."""
    return x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2) if x.dim() == 5 else x


class ClientsAsChannels(TorchFunctionMode):
    """Inside this block, under `vmap`, image layers keep this layout."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        pools = func in (F.max_pool2d, torch.max_pool2d) and not kwargs.get("return_indices")
        if pools and args and args[0].dim() == 4:
            return _pooled(*args, **{key: value for key, value in kwargs.items() if key != "return_indices"})
        if func in (F.conv2d, torch.conv2d) and (inputs := _convolution_inputs(*args, **kwargs)):
            return _applied(Convolution, *inputs)
        if func in (F.group_norm, F.adaptive_avg_pool2d):  # they ask for torch's default layout, which vmap cannot give
            return func(args[0].contiguous(), *args[1:], **kwargs)
        return func(*args, **kwargs)


def _pooled(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    """`torch.max_pool2d` by `MaxPool`."""
    stride = kernel_size if stride is None or stride == [] else stride
    sizes = tuple(map(_as_pair, (kernel_size, stride, padding, dilation)))
    out: Tensor = _applied(MaxPool, x, sizes, ceil_mode)[0]
    return out


def _convolution_inputs(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...] | None:
    """The inputs of `Convolution`; None for a convolution that `vmap` handles well without it."""
    if bias is None or input.dim() != 4 or isinstance(padding, str):
        return None
    kind = input.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(
        kind
    ):  # below autocast, operations no longer choose their type
        dtype = torch.get_autocast_dtype(kind)
        input, weight, bias = (value.to(dtype) for value in (input, weight, bias))
    return input, weight, bias, (*map(_as_pair, (stride, padding, dilation)), False, (0, 0)), groups


def _as_pair(size: Any) -> tuple[int, ...]:
    """A size as (height, width)."""
    return tuple(size) if isinstance(size, tuple | list) else (size, size)


def _applied(function: type[Function], *inputs: Any) -> Any:
    """The output of an autograd function."""
    return function.apply(*inputs)


class Convolution(Function):
    """A convolution that adds its bias in the same pass; `vmap` would add it in a second pass over all images."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, options: Any, groups: int) -> Any:
        return aten.convolution(x, weight, bias, *options, groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        x, weight, _, ctx.options, ctx.groups = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        needed = (*ctx.needs_input_grad[:2], False)
        grad_x, grad_weight, _ = aten.convolution_backward(grads[0], x, weight, None, *ctx.options, ctx.groups, needed)
        return grad_x, grad_weight, grads[0].sum((0, 2, 3)), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, options: Any, groups: int) -> Any:
        clients = info.batch_size
        x, weight, bias = (
            value.unsqueeze(0).expand(clients, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip((x, weight, bias), in_dims, strict=False)
        )
        merged = _as_channels(x, 0), weight.flatten(0, 1)
        if clients == 1:  # with a bias torch would choose another kernel here, and the last bits would differ
            out = aten.convolution(*merged, None, *options, groups) + bias.reshape(1, -1, 1, 1)
        else:
            out = _applied(Convolution, *merged, bias.flatten(), options, groups * clients)
        return _as_clients(out, clients), 0


class MaxPool(Function):
    """The largest value of each window, and its position."""

    @staticmethod
    def forward(x: Tensor, sizes: Any, ceil_mode: bool) -> Any:
        return aten.max_pool2d_with_indices(x, *sizes, ceil_mode)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, *ctx.options = inputs
        ctx.save_for_backward(x, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _applied(MaxPoolBackward, grads[0], *ctx.saved_tensors, *ctx.options), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, sizes: Any, ceil_mode: bool) -> Any:
        out, positions = _applied(MaxPool, _as_channels(x, in_dims[0]), sizes, ceil_mode)
        return (_as_clients(out, info.batch_size), _as_clients(positions, info.batch_size)), (0, 0)


class MaxPoolBackward(Function):
    """The gradient of `MaxPool`: it goes to the positions of the largest values."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, positions: Tensor, sizes: Any, ceil_mode: bool) -> Any:
        return aten.max_pool2d_with_indices_backward(grad, x, *sizes, ceil_mode, positions)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, grad: Tensor, x: Tensor, positions: Tensor, sizes: Any, ceil_mode: bool) -> Any:
        merged = (_as_channels(value, dim) for value, dim in zip((grad, x, positions), in_dims, strict=False))
        return _as_clients(_applied(MaxPoolBackward, *merged, sizes, ceil_mode), info.batch_size), 0


def _as_channels(x: Tensor, clients_dim: int) -> Tensor:
    """[clients, batch, channels, height, width], clients in any dimension -> [batch, clients * channels, ...]."""
    return x.movedim(clients_dim, 1).flatten(1, 2)


def _as_clients(x: Tensor, clients: int) -> Tensor:
    """The inverse: [batch, clients * channels, ...] -> [clients, batch, channels, ...]."""
    separate: Tensor = x.unflatten(1, (clients, -1))
    return separate.movedim(1, 0)
