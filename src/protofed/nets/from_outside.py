"""Nets that were found by a name outside the package: a design, a module class, or a function that makes a net.

A module class and a function are called with the shape of the inputs and the number of classes. Their other parameters,
which need defaults, are the options of the net.
"""

from __future__ import annotations

import inspect
from dataclasses import Field, asdict, field, is_dataclass, make_dataclass
from typing import Any, cast, get_type_hints

from torch import nn

from protofed.errors import UserError
from protofed.net import Net
from protofed.nets.own import OwnNet


class OutsideDesign:
    """A net from outside, with its options. `made_from` is the module class or function."""

    made_from: Any = None

    def create(self, shape: tuple[int, ...], classes: int) -> Any:
        """A new net in one of the forms that `nets.own` lists."""
        return type(self).made_from(shape, classes, **asdict(cast("Any", self)))

    def build(self, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
        """A new body and head."""
        return self.net("net", shape, classes).build()

    def net(self, title: str, shape: tuple[int, ...], classes: int) -> Net:
        """The net for inputs of a shape."""
        net = OwnNet.net(lambda: self.create(shape, classes), title, shape, classes)
        net.name = title
        return net


def design_class(found: Any, name: str) -> type[Any]:
    """The design of a net that was found by a name outside the package."""
    if isinstance(found, type) and is_dataclass(found) and hasattr(found, "build"):
        return found
    is_module = isinstance(found, type) and issubclass(found, nn.Module)
    if not is_module and not inspect.isfunction(found):
        kind = "class" if isinstance(found, type) else type(found).__name__
        raise UserError(
            f'"{name}" is a {kind}; a net is a torch module class or a function, both of (shape, classes), or a frozen '
            "dataclass with a function build(self, shape, classes) that returns (body, head)."
        )
    parameters = list(inspect.signature(found).parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    required = [one for one in parameters if one.default is one.empty and one.kind not in (4, 2)]
    if len(positional) < 2 or len(required) > 2:
        raise UserError(
            f'"{name}" takes ({", ".join(one.name for one in parameters)}); must take (shape, classes): the shape of '
            "one input and the number of classes. Further parameters need defaults: they are the options of the net."
        )
    hints = get_type_hints(found.__init__ if is_module else found, include_extras=True)
    chosen = [one for one in parameters if one not in positional[:2] and one.kind not in (4, 2)]
    fields: list[tuple[str, Any, Field[Any]]] = [
        (one.name, hints.get(one.name, type(one.default)), field(default=_immutable(one.default))) for one in chosen
    ]
    namespace = {"made_from": staticmethod(found), "__doc__": inspect.getdoc(found) or ""}
    return make_dataclass(found.__name__, fields, bases=(OutsideDesign,), namespace=namespace, frozen=True)


def _immutable(value: Any) -> Any:
    """A default as dataclasses accept it: a tuple instead of a list."""
    return tuple(value) if isinstance(value, list) else value
