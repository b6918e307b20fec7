"""How a stack of clients' images lies in memory: a pixel's clients and channels side by side.

There a grouped convolution over all clients runs as fast as one client's over as many images, and pooling faster.
`vmap` keeps this order by itself but for some layers, which get rules of their own here, as convolutions do, whose bias
it would add in a second pass. Values stay the same.
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
    """Images of all clients [clients, batch, channels, high, wide] in that order; other inputs as they are."""
    return x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2) if x.dim() == 5 else x


class ClientsAsChannels(TorchFunctionMode):
    """Inside this block, under `vmap`, layers of images keep that order."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        pools = func in (F.max_pool2d, torch.max_pool2d) and not kwargs.get("return_indices")
        if pools and args and args[0].dim() == 4:
            return _pooled(*args, **{key: value for key, value in kwargs.items() if key != "return_indices"})
        if func in (F.conv2d, torch.conv2d) and (options := _of_one_pass(*args, **kwargs)):
            return _applied(Convolution, *options)
        if func in (F.group_norm, F.adaptive_avg_pool2d):  # these ask for torch's own order, which vmap cannot give
            return func(args[0].contiguous(), *args[1:], **kwargs)
        return func(*args, **kwargs)


def _pooled(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    """`torch.max_pool2d`."""
    step = kernel_size if stride is None or stride == [] else stride
    sizes = tuple(map(_as_pair, (kernel_size, step, padding, dilation)))
    out: Tensor = _applied(MaxPool, x, sizes, ceil_mode)[0]
    return out


def _of_one_pass(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Any, ...] | None:
    """What `Convolution` wants; nothing for a convolution that `vmap` does as well by itself."""
    if bias is None or input.dim() != 4 or isinstance(padding, str):
        return None
    return input, weight, bias, (*map(_as_pair, (stride, padding, dilation)), False, (0, 0)), groups


def _as_pair(size: Any) -> tuple[int, ...]:
    return tuple(size) if isinstance(size, tuple | list) else (size, size)


def _applied(function: type[Function], *inputs: Any) -> Any:
    return function.apply(*inputs)


class Convolution(Function):
    """A convolution that adds its bias as it goes; `vmap` would do so in a second pass over all images."""

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
        wanted = (*ctx.needs_input_grad[:2], False)
        by_x, by_weight, _ = aten.convolution_backward(grads[0], x, weight, None, *ctx.options, ctx.groups, wanted)
        return by_x, by_weight, grads[0].sum((0, 2, 3)), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor, options: Any, groups: int) -> Any:
        count = info.batch_size
        x, weight, bias = (
            value.unsqueeze(0).expand(count, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip((x, weight, bias), in_dims, strict=False)
        )
        merged = _as_channels(x, 0), weight.flatten(0, 1)
        if count == 1:  # alone, torch takes another kernel if there is a bias, to other last bits
            out = aten.convolution(*merged, None, *options, groups) + bias.reshape(1, -1, 1, 1)
        else:
            out = _applied(Convolution, *merged, bias.flatten(), options, groups * count)
        return _as_clients(out, count), 0


class MaxPool(Function):
    """The largest of each window, and where it was."""

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
        out, where = _applied(MaxPool, _as_channels(x, in_dims[0]), sizes, ceil_mode)
        return (_as_clients(out, info.batch_size), _as_clients(where, info.batch_size)), (0, 0)


class MaxPoolBackward(Function):
    """The gradient goes to where the largest was."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, where: Tensor, sizes: Any, ceil_mode: bool) -> Any:
        return aten.max_pool2d_with_indices_backward(grad, x, *sizes, ceil_mode, where)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, grad: Tensor, x: Tensor, where: Tensor, sizes: Any, ceil_mode: bool) -> Any:
        merged = (_as_channels(value, dim) for value, dim in zip((grad, x, where), in_dims, strict=False))
        return _as_clients(_applied(MaxPoolBackward, *merged, sizes, ceil_mode), info.batch_size), 0


def _as_channels(x: Tensor, clients: int) -> Tensor:
    """[clients, batch, channels, high, wide], with the clients wherever -> [batch, clients x channels, high, wide]."""
    return x.movedim(clients, 1).flatten(1, 2)


def _as_clients(x: Tensor, clients: int) -> Tensor:
    """The other way round."""
    apart: Tensor = x.unflatten(1, (clients, -1))
    return apart.movedim(1, 0)
