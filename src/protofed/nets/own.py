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
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from protofed.draws import DerivedDropout, no_global_draws
from protofed.errors import UserError
from protofed.net import Net, Params, in_line

Kind = Literal["sequence", "named", "pair", "joint"]


@dataclass(frozen=True)
class OwnNet:
    """A net as a person gives it."""

    given: Any
    place: str  # where it was given, as "nets[0]"
    kind: Kind
    last: str  # the layer that is, or begins, the head; "" where there is none to name

    @classmethod
    def net(cls, given: Any, place: str, shape: tuple[int, ...], classes: int) -> Net:
        """The net for inputs of a shape; one that does not fit them, or the classes, is refused."""
        try:
            with torch.random.fork_rng(devices=[]):  # only to look at it
                look = _copied(given)
            own = cls(given if _callable_only(given) else look, place, *_understood(look, place))
            what = look[0] if isinstance(look, tuple) else look
            made = Joint if own.kind == "joint" else Net
            net = made(
                f"{place} ({type(what).__name__})",
                own.apart,
                shape,
                classes,
                own.together,
                given=not _callable_only(given),
                source=repr(look),
            )
            _try_out(net, None if _callable_only(given) else in_line(*look) if own.kind == "pair" else what, shape)
        except UserError:
            raise
        except Exception as problem:  # whatever a stranger's module may raise
            raise UserError(f"{place} cannot be used with inputs of shape {shape}: {problem}") from problem
        return net

    def apart(self) -> tuple[nn.Module, nn.Module]:
        """A new body and head."""
        given = _copied(self.given)
        if self.kind == "pair":
            return given[0], given[1]
        if self.kind == "joint":
            return given, nn.Identity()
        module = given[0] if isinstance(given, tuple) else given
        if self.kind == "named":
            head = _swap(module, self.last, nn.Identity())
            return module, head
        layers = _layers_of(module)
        at = [name for name, _ in layers].index(self.last)
        return nn.Sequential(OrderedDict(layers[:at])), nn.Sequential(OrderedDict(layers[at:]))

    def together(self, body: nn.Module, head: nn.Module) -> nn.Module:
        """The two in the form that was given."""
        if self.kind == "pair":
            return in_line(body, head)
        if self.kind == "named":
            _swap(body, self.last, head)
        if self.kind == "sequence":
            return nn.Sequential(OrderedDict([*_layers_of(body), *_layers_of(head)]))
        return body


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
                f"{self.name} returns a {type(out).__name__}, so where is the embedding? Let it return (embedding, "
                f"logits), or give (module, name of its last layer){f'; it has {layers}' if layers else ''}."
            )
        return out


def _callable_only(given: Any) -> bool:
    """Is it a function that makes the net?"""
    return callable(given) and not isinstance(given, nn.Module)


def _copied(given: Any) -> Any:
    """A net of its own, of what was given or of what the function makes."""
    return deepcopy(given() if _callable_only(given) else given)


def _understood(given: Any, place: str) -> tuple[Kind, str]:
    """Which of the ways it was given in, and the name of the layer where its head begins."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], nn.Module):
        module, last = given
        if isinstance(last, nn.Module):
            return "pair", ""
        if isinstance(last, str):
            names = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
            if last not in names:
                raise UserError(f"{place} has no layer {last!r}. It has: {', '.join(names)}.")
            return ("sequence" if _in_call_order(module) and "." not in last else "named"), last
    if not isinstance(given, nn.Module):
        raise UserError(
            f"{place} is a {type(given).__name__}; a net is a module, (module, name of its last layer), "
            "(body, head), or a function that makes one of these."
        )
    if not _in_call_order(given):
        return "joint", ""
    having = [name for name, layer in _layers_of(given) if any(True for _ in layer.parameters())]
    if not having:
        raise UserError(f"{place} has no parameters: it cannot learn.")
    if len(having) == 1:
        raise UserError(
            f"{place} has one layer with parameters, so that the embedding would be the raw input, and prototypes the "
            "means of raw inputs. Put a layer before it, or give (nn.Identity(), layer) if the inputs are features."
        )
    return "sequence", having[-1]


def _layers_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """All its layers; `named_children` would leave out one that stands there a second time."""
    return [(name, layer) for name, layer in module._modules.items() if layer is not None]


def _in_call_order(module: nn.Module) -> bool:
    """Is it a plain sequence of layers?"""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _swap(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """Put a layer in the place of that name; what was there before."""
    parent, _, leaf = name.rpartition(".")
    before = module.get_submodule(name)
    setattr(module.get_submodule(parent), leaf, layer)
    return before


def _try_out(net: Net, given: nn.Module | None, shape: tuple[int, ...]) -> None:
    """Refuse a net that does not give what it must, or not what it gave before, or that hides what it changes."""
    params, x = net.init(torch.Generator()), torch.linspace(-1, 1, 2 * torch.Size(shape).numel()).reshape(2, *shape)
    filled = [value for value in params.values() if value.numel()]
    if len({value.data_ptr() for value in filled}) < len(filled):
        raise UserError(f"{net.name} has a tensor under two names; give each layer its own.")
    with torch.no_grad(), no_global_draws(net.name):
        z, logits = net(params, x)
        if z.dim() != 2 or logits.shape != (2, net.classes):
            raise UserError(
                f"{net.name} gives embeddings {list(z.shape)} and scores {list(logits.shape)} for 2 inputs; it "
                f"must give [2, dim] and [2, {net.classes}], as there are {net.classes} classes. "
                "Change the net, or tell the federation its classes."
            )
        for whole in filter(None, (net.loaded(params), given and given.eval())):
            out = whole(x)
            if not torch.allclose(logits, out[1] if isinstance(out, tuple) else out, atol=1e-5):
                raise UserError(
                    f"{net.name} does more after its last layer than that layer gives. Name the layer that comes last, "
                    "or let it return (embedding, logits)."
                )
    hidden = {name: value.clone() for name, value in net.module.named_buffers() if name not in net.shapes}
    used = {name: value.clone() for name, value in params.items()}
    net.train(True)
    try:
        with torch.no_grad(), DerivedDropout(torch.tensor(0)):
            net(used, x)
    finally:
        net.train(False)
    before = {name: value for name, value in params.items() if name not in net.trainable}
    if any(not torch.equal(used[name], value) for name, value in before.items()) or _mixes(net, params, x):
        net.alone = True
    net.alone = net.alone or not _maps(net, params, x)
    now = dict(net.module.named_buffers())
    if any(not torch.equal(now[name], value) for name, value in hidden.items()):
        raise UserError(f"{net.name} changes a buffer that is not in its state dict: register it as persistent.")


def _maps(net: Net, params: Params, x: Tensor) -> bool:
    """Can it be mapped over clients? Not if what it does depends on the values of a tensor."""
    moving = {name: torch.stack([value, value]) for name, value in params.items() if name in net.trainable}
    fixed = {name: value for name, value in params.items() if name not in moving}
    try:
        vmap(grad(lambda own, x: net({**fixed, **own}, x)[1].sum()))(moving, torch.stack([x, 2 * x]))
    except Exception:  # whatever torch cannot map
        return False
    return True


def _mixes(net: Net, params: Params, x: Tensor) -> bool:
    """Does an example's output depend, in training, on what else is in the batch?"""
    net.train(True)
    try:
        outs = []
        for batch in (x, torch.cat([x, 3 + x])):
            with torch.no_grad(), DerivedDropout(torch.tensor(0)):
                outs.append(net({name: value.clone() for name, value in params.items()}, batch)[1][: len(x)])
    finally:
        net.train(False)
    return not torch.allclose(outs[0], outs[1], atol=1e-5)
