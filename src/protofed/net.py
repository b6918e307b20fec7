"""A net is a body that embeds and a head that decides, called with its parameters from outside."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from protofed.draws import DrawFrom, no_global_draws
from protofed.errors import UserError
from protofed.examples import channels_last

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from protofed.examples import Examples

EVALUATE = 512
"""How many examples go through a net at once where nothing is trained."""
ADDED = "method."
"""Prefix of the parameters that a method adds to those of the net: a scale, a second head, a second model."""
Params = dict[str, Tensor]
"""Tensors by name: "body.*", "head.*", and "method.*" for what a method adds; with buffers, which never train."""


class Batch(NamedTuple):
    x: Tensor  # [n, ...]
    y: Tensor  # [n], always inside [0, classes)
    weight: Tensor  # [n]; 0: padding or an ignored pixel

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Batch:
        """A batch in which everything counts."""
        return cls(x, y, x.new_ones(len(y)))


def in_line(body: nn.Module, head: nn.Module) -> nn.Module:
    """One after the other."""
    return nn.Sequential(OrderedDict(body=body, head=head))


class Net:
    """`net(params, x) -> (embedding, logits)`. The module inside only lends its structure; it owns no state of a run.

    `build` makes a new (body, head) pair; whatever its layers draw when they are made comes from the generator that
    `init` is given. `whole` makes one module of the two again. `given`: it starts from weights that it was given,
    whatever the generator; `source` says how it is built. `layers` take the place of what `init` draws.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], tuple[nn.Module, nn.Module]],
        shape: tuple[int, ...],
        classes: int,
        whole: Callable[[nn.Module, nn.Module], nn.Module] = in_line,
        given: bool = False,
        source: str = "",
    ) -> None:
        self.name = name
        self.build = build
        self.whole = whole
        self.given = given
        self.source = source
        self.layers: Params = {}
        self.shape = shape
        self.classes = classes
        self.module = self.made(torch.Generator())
        self.module.eval()
        first = dict(self.module.state_dict())
        self.trainable = frozenset(name for name, value in self.module.named_parameters() if value.requires_grad)
        self.batch_norm = any(isinstance(layer, _BatchNorm) for layer in self.module.modules())
        """Has it batch norm, for which a batch of one example has no statistics?"""
        self.alone = any(
            isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False)
            for layer in self.module.modules()
        )
        """Does what it does to an example depend on the others, change buffers, or resist `vmap`? It is not stacked."""
        self.shapes = {name: tuple(value.shape) for name, value in first.items()}
        if strange := [name for name in self.shapes if "/" in name]:
            raise UserError(f"net {self.name} has a layer with a / in its name, {strange[0]}. Call it otherwise.")
        self.plain = False
        """Does it want images with their channels first in memory, as for `view`?"""
        self.cost = 0.0
        with torch.no_grad():
            if len(shape) == 3:
                try:
                    self(first, channels_last(torch.zeros(2, *shape)))
                except RuntimeError:
                    self.plain = True
            with self.counting():
                z, _ = self(first, torch.zeros(1, *shape))
        self.dim = z.shape[-1]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Add up the multiplications that convolutions and dense layers do in this block: `cost`, for one example."""

        def count(layer: nn.Module, _: Any, out: Tensor) -> None:
            weight = layer.weight
            assert isinstance(weight, Tensor)
            self.cost += out.numel() * weight[0].numel()  # for each output as many as one row of the weight has

        kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
        hooks = [layer.register_forward_hook(count) for layer in self.module.modules() if isinstance(layer, kinds)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def made(self, generator: torch.Generator) -> nn.ModuleDict:
        """A new body and head, drawn from the generator."""
        with no_global_draws(f"net {self.name}"), DrawFrom(generator):
            body, head = self.build()
        return nn.ModuleDict({"body": body, "head": head})

    def init(self, generator: torch.Generator) -> Params:
        """Fresh parameters, a function of the generator alone."""
        return dict(self.made(generator).state_dict()) | {name: value.clone() for name, value in self.layers.items()}

    def starting_from(self, layers: Params) -> Net:
        """The same net with those of the layers, by name and shape, that fit; "body." or "head." may be left out."""
        fitting = {}
        first = self.init(torch.Generator())
        for name, shape in self.shapes.items():
            for called in (name, name.partition(".")[2]):
                if called in layers and tuple(layers[called].shape) == shape:
                    fitting[name] = layers[called].to(first[name].dtype)
                    break
        if not fitting:
            given, own = (
                f"{', '.join(list(names)[:6])}{', ...' * (len(names) > 6)}" for names in (layers, self.shapes)
            )
            raise UserError(f"None of the layers given ({given}) fits net {self.name}, which has {own}.")
        net = copy(self)
        net.layers = fitting
        return net

    def parts(self, params: Params) -> nn.ModuleDict:
        """A new body and head with these parameters, ready to predict."""
        self.check(params)
        made = self.made(torch.Generator())
        made.load_state_dict({name: params[name] for name in self.shapes})
        made.eval()
        return made

    def loaded(self, params: Params) -> nn.Module:
        """One module of the two, in the form it was given in."""
        parts = self.parts(params)
        return self.whole(parts["body"], parts["head"]).eval()

    def trains(self, name: str, value: Tensor) -> bool:
        """Whether this tensor trains. Buffers and frozen layers do not; nor do those of a second, added model."""
        known = name.removeprefix(ADDED)
        return known in self.trainable if known in self.shapes else value.is_floating_point()

    def train(self, mode: bool) -> None:
        """Whether dropout and batch norm behave as in training."""
        self.module.train(mode)

    @cached_property
    def linear_head(self) -> str:
        """The name of the weight [classes, dim] of a head that is one linear layer; an error for other heads."""
        layers = [
            (name, layer)
            for name, layer in self.module["head"].named_modules(prefix="head")
            if not list(layer.children()) and not isinstance(layer, nn.Dropout | nn.Identity)
        ]
        if len(layers) != 1 or not isinstance(layers[0][1], nn.Linear):
            kinds = ", ".join(type(layer).__name__ for _, layer in layers) or "no layer"
            raise UserError(
                f"The head of {self.name} has to be one linear layer for this, but it has: {kinds}. Use another net."
            )
        return f"{layers[0][0]}.weight"

    def embed(self, params: Params, x: Tensor) -> Tensor:
        """The body alone: [n, ...] -> [n, dim]."""
        return self.call("body", params, x)

    def head(self, params: Params, z: Tensor) -> Tensor:
        """The head alone: [n, dim] -> [n, classes]."""
        return self.call("head", params, z)

    def call(self, part: str, params: Params, x: Tensor) -> Tensor:
        """A part of the net with its own of the parameters."""
        if self.plain and part == "body":
            x = x.flatten(1).unflatten(1, self.shape)
        own = {name[len(part) + 1 :]: params[name] for name in self.shapes if name.startswith(f"{part}.")}
        out: Tensor = functional_call(self.module[part], own, (x,))
        return out

    def __call__(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.embed(params, x)
        return z, self.head(params, z)

    @torch.no_grad()
    def features(self, params: Params, data: Examples) -> tuple[Tensor, Tensor]:
        """Embeddings [n, dim] and labels [n] of a whole set, in order, without dropout."""
        z, y = [torch.zeros(0, self.dim)], [torch.zeros(0, dtype=torch.long)]
        for batch in data.batches(EVALUATE):
            z.append(self.embed(params, batch[0]))
            y.append(self.match(Batch.of(*batch), z[-1]).y)
        return torch.cat(z), torch.cat(y)

    def match(self, batch: Batch, z: Tensor) -> Batch:
        """Labels and weights at the resolution of z: the batch itself, but for nets that label every pixel."""
        return batch

    def check(self, params: Params) -> None:
        """Refuse parameters of another net: `functional_call` alone would take them."""
        got = {key: tuple(value.shape) for key, value in params.items() if not key.startswith(ADDED)}
        if got != self.shapes:
            wrong = sorted(key for key in got.keys() | self.shapes.keys() if got.get(key) != self.shapes.get(key))
            raise UserError(
                f"These parameters are not {self.name}'s: {wrong[0]} has shape {got.get(wrong[0], 'none')}, "
                f"the net wants {self.shapes.get(wrong[0], 'none')}. Use parameters that this net's init made."
            )


def selected(params: Params, part: str) -> Params:
    """A part of a net's parameters: those whose name begins so ("body.", "" for all), "convs" (convolutions, with their
    biases), or "not " and one of these."""
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
