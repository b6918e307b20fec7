"""A net is a body that embeds and a head that decides, called with its parameters from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

from protofed.draws import DrawFrom
from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from protofed.core import Batch

Params = dict[str, Tensor]
"""Tensors by name: "body.*", "head.*", and "own.*" for what a method adds. Buffers are among them and never trained."""


class Net:
    """`net(params, x) -> (embedding, logits)`. The module inside only lends its structure; it owns no state of a run.

    `build` makes a new (body, head) pair; whatever its layers draw when they are made comes from the generator that
    `init` is given.
    """

    def __init__(
        self, name: str, build: Callable[[], tuple[nn.Module, nn.Module]], shape: tuple[int, ...], classes: int
    ) -> None:
        self.name = name
        self.build = build
        self.shape = shape
        self.classes = classes
        with DrawFrom(torch.Generator()):
            self.body, self.head_module = build()
        self.train(False)
        first = self.state(self.body, self.head_module)
        self.trainable = frozenset(
            f"{part}.{key}"
            for part, module in self.parts(self.body, self.head_module)
            for key, _ in module.named_parameters()
        )
        self.shapes = {key: tuple(value.shape) for key, value in first.items()}
        with torch.no_grad():
            self.dim = self.embed(first, torch.zeros(1, *shape)).shape[-1]

    @staticmethod
    def parts(body: nn.Module, head: nn.Module) -> tuple[tuple[str, nn.Module], ...]:
        return ("body", body), ("head", head)

    @classmethod
    def state(cls, body: nn.Module, head: nn.Module) -> Params:
        """Parameters and buffers of a pair of modules, by their full names."""
        return {
            f"{part}.{key}": value
            for part, module in cls.parts(body, head)
            for key, value in module.state_dict().items()
        }

    def init(self, generator: torch.Generator) -> Params:
        """Fresh parameters, a function of the generator alone."""
        with DrawFrom(generator):
            pair = self.build()
        return self.state(*pair)

    def trains(self, name: str) -> bool:
        """Is it a parameter that can move? Buffers never do; what a method adds does."""
        return name in self.trainable or name.startswith("own.")

    def train(self, mode: bool) -> None:
        """Whether dropout and batch norm behave as in training."""
        self.body.train(mode)
        self.head_module.train(mode)

    def embed(self, params: Params, x: Tensor) -> Tensor:
        """The body alone: [n, ...] -> [n, dim]."""
        z: Tensor = functional_call(self.body, self.of("body.", params), (x,))
        return z

    def head(self, params: Params, z: Tensor) -> Tensor:
        """The head alone: [n, dim] -> [n, classes]."""
        logits: Tensor = functional_call(self.head_module, self.of("head.", params), (z,))
        return logits

    def __call__(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.embed(params, x)
        return z, self.head(params, z)

    def of(self, prefix: str, params: Params) -> Params:
        return {key[5:]: params[key] for key in self.shapes if key.startswith(prefix)}

    def match(self, batch: Batch, z: Tensor) -> Batch:
        """Labels and weights at the resolution of z: the batch itself, but for nets that label every pixel."""
        return batch

    def check(self, params: Params) -> None:
        """Refuse parameters of another net: `functional_call` alone would take them."""
        got = {key: tuple(value.shape) for key, value in params.items() if not key.startswith("own.")}
        if got != self.shapes:
            wrong = sorted(key for key in got.keys() | self.shapes.keys() if got.get(key) != self.shapes.get(key))
            raise UserError(
                f"These parameters are not {self.name}'s: {wrong[0]} has shape {got.get(wrong[0], 'none')}, "
                f"the net wants {self.shapes.get(wrong[0], 'none')}. Use parameters that this net's init made."
            )
