"""Nets by name: frozen dataclasses whose fields are their options and whose `build` makes a (body, head) pair."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Protocol

from torch import nn

from protofed.net import Net
from protofed.nets.cnn import Cnn
from protofed.nets.mlp import Mlp


class Design(Protocol):
    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]: ...


NETS: dict[str, type[Design]] = {"cnn": Cnn, "mlp": Mlp}


def make(name: str, design: Design, shape: tuple[int, ...], classes: int) -> Net:
    """The net of a design for inputs of a shape, called by its name and the options that are not the default."""
    told = [f"{f.name}={getattr(design, f.name)}" for f in fields(design) if getattr(design, f.name) != f.default]  # type: ignore[arg-type]
    return Net(f"{name}({', '.join(told)})" if told else name, partial(design.build, shape, classes), shape, classes)
