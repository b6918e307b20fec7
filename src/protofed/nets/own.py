"""Own modules as nets, without subclassing.

A net can be given as
- a `nn.Sequential`: its head begins at the last layer that has parameters;
- (module, "name"): the layer of that name is the head, and all before it the body;
- (body, head): two modules;
- a module that returns (embedding, logits);
- a function that makes one of these: then every client starts from weights of its own, drawn from the seed.

A module starts from the weights it has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from protofed.errors import UserError
from protofed.net import Net, Params, in_line

Parts = tuple[nn.Module, nn.Module]


@dataclass(frozen=True)
class Own:
    """A net as a person gives it."""

    given: Any
    place: str  # where it was given, as "nets[0]"

    @property
    def made_here(self) -> bool:
        """Is it a function that makes the net?"""
        return callable(self.given) and not isinstance(self.given, nn.Module)

    def copy(self) -> Any:
        """A new one of what was given."""
        return self.given() if self.made_here else deepcopy(self.given)

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        """The net for inputs of a shape; one that does not fit them, or the classes, is refused."""
        with torch.random.fork_rng(devices=[]):  # only to look at it
            look = self.copy()
        try:
            kind = self.kind(look)
            what = look[0] if isinstance(look, tuple) else look
            name = f"{self.place} ({type(what).__name__})"
            build, whole = WAYS[kind]
            net = (Joint if kind == "joint" else Net)(
                name, lambda: build(self.copy()), shape, classes, lambda body, head: whole(look, body, head)
            )
            net.given = not self.made_here
            self.try_out(net, look, shape)
        except UserError:
            raise
        except Exception as problem:  # whatever a stranger's module may raise
            raise UserError(f"{self.place} cannot be used with inputs of shape {shape}: {problem}") from problem
        return net

    def kind(self, given: Any) -> str:
        """Which of the ways it was given in."""
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], nn.Module):
            module, last = given
            if isinstance(last, nn.Module):
                return "pair"
            if isinstance(last, str):
                names = [name for name, _ in module.named_modules() if name]
                if last not in names:
                    raise UserError(f"{self.place} has no layer {last!r}. It has: {', '.join(names)}.")
                return "cut" if in_order(module) and "." not in last else "named"
        if isinstance(given, nn.Module):
            return "sequence" if in_order(given) else "joint"
        raise UserError(
            f"{self.place} is a {type(given).__name__}; a net is a module, (module, name of its last layer), "
            "(body, head), or a function that makes one of these."
        )

    def try_out(self, net: Net, given: Any, shape: tuple[int, ...]) -> None:
        """Does it give an embedding and as many scores as there are classes, and is the head the last that it does?"""
        params, x = net.init(torch.Generator()), torch.linspace(-1, 1, 2 * torch.Size(shape).numel()).reshape(2, *shape)
        shared = len({value.data_ptr() for value in params.values() if value.numel()})
        if shared < sum(value.numel() > 0 for value in params.values()):
            raise UserError(f"{net.name} has a tensor under two names; give each layer its own.")
        with torch.no_grad():
            z, logits = net(params, x)
            if z.dim() != 2 or logits.shape != (2, net.classes):
                raise UserError(
                    f"{net.name} gives embeddings {list(z.shape)} and scores {list(logits.shape)} for 2 inputs; it "
                    f"must give [2, dim] and [2, {net.classes}], as there are {net.classes} classes. "
                    "Change the net, or tell the federation its classes."
                )
            if isinstance(given, tuple) and isinstance(given[1], str) and not self.made_here:
                expected = given[0].eval()(x)
                if not torch.allclose(logits, expected, atol=1e-5):
                    raise UserError(
                        f"{net.name} does more after its layer {given[1]!r} than that layer gives. Name its last "
                        "layer, or return (embedding, logits)."
                    )


class Joint(Net):
    """A module that returns (embedding, logits): it has no head of its own to call."""

    def embed(self, params: Params, x: Tensor) -> Tensor:
        return self(params, x)[0]

    def head(self, params: Params, z: Tensor) -> Tensor:
        raise UserError(
            f"{self.name} returns its embedding and scores together, but this method calls the head alone. "
            "Give it as (body, head) or (module, name of its last layer)."
        )

    def __call__(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        out: Any = self.call("body", params, x)
        if not (isinstance(out, tuple) and len(out) == 2):
            layers = ", ".join(name for name, _ in self.module["body"].named_children())
            raise UserError(
                f"{self.name} returns one thing, so where is the embedding? Give (module, name of its last layer; it "
                f"has {layers}), or let it return (embedding, logits)."
            )
        return out


def in_order(module: nn.Module) -> bool:
    """Is it a plain sequence of layers?"""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def cut(module: nn.Module, name: str) -> Parts:
    """A sequence, before and from the layer of that name."""
    layers = list(module.named_children())
    at = [layer for layer, _ in layers].index(name)
    return nn.Sequential(OrderedDict(layers[:at])), nn.Sequential(OrderedDict(layers[at:]))


def cut_last(module: nn.Module) -> Parts:
    """A sequence, before and from its last layer that has parameters."""
    having = [name for name, layer in module.named_children() if any(True for _ in layer.parameters())]
    if not having:
        raise UserError("A sequence without parameters cannot learn.")
    return cut(module, having[-1])


def swap(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """Put a layer in the place of that name; what was there before."""
    parent, _, leaf = name.rpartition(".")
    before = module.get_submodule(name)
    setattr(module.get_submodule(parent), leaf, layer)
    return before


def taken_out(module: nn.Module, name: str) -> Parts:
    """A module without its layer of that name, and the layer."""
    head = swap(module, name, nn.Identity())
    return module, head


def put_back(given: Any, body: nn.Module, head: nn.Module) -> nn.Module:
    swap(body, given[1], head)
    return body


def strung(given: Any, body: nn.Module, head: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict([*body.named_children(), *head.named_children()]))


WAYS: dict[str, tuple[Callable[[Any], Parts], Callable[[Any, nn.Module, nn.Module], nn.Module]]] = {
    "sequence": (cut_last, strung),
    "cut": (lambda given: cut(*given), strung),
    "named": (lambda given: taken_out(*given), put_back),
    "pair": (lambda given: given, lambda given, body, head: in_line(body, head)),
    "joint": (lambda given: (given, nn.Identity()), lambda given, body, head: body),
}
"""For every way to give a net: how it is taken apart into a body and a head, and put together again."""
