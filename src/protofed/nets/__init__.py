"""Nets by name: frozen dataclasses whose fields are their options and whose `build` makes a (body, head) pair."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from torch import nn

from protofed.net import Net
from protofed.nets.cnn import Cnn
from protofed.nets.mlp import Mlp
from protofed.options import options


class Design(Protocol):
    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]: ...


NETS: dict[str, type[Design]] = {"cnn": Cnn, "mlp": Mlp}


def make(name: str, design: Design, shape: tuple[int, ...], classes: int, beside: Sequence[Design] = ()) -> Net:
    """The net of a design for inputs of a shape.

    It is called by its name and by the options that are not the default or differ among the designs it stands `beside`.
    """
    others = [options(other) for other in (type(design)(), *beside) if type(other) is type(design)]
    told = [f"{key}={value}" for key, value in options(design).items() if any(other[key] != value for other in others)]
    return Net(f"{name}({', '.join(told)})" if told else name, partial(design.build, shape, classes), shape, classes)
