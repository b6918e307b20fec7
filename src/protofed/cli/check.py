"""The command `protofed check`."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from protofed.cli.arguments import option
from protofed.errors import UserError


def check_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:NAME]",
            help="File with methods, nets and partitions; with a name only that one. Also package.module:NAME, or the "
            "name of an entry point.",
        ),
    ],
    sets: Annotated[
        Optional[list[str]], option("--set", metavar="KEY=VALUE", help="Option of the method, net or partition.")
    ] = None,
    shape: Annotated[str, option("--shape", help="For nets: shape of one input, such as 3,32,32.")] = "1,28,28",
    classes: Annotated[int, option("--classes", min=2, help="For nets: number of classes.")] = 10,
) -> None:
    """Check methods, nets and partitions of your own before you run them.

    A method is run on a small federation by every engine, through bytes and with an interruption; all results must be
    the same. docs/what-a-method-may-do.md lists the rules and typical mistakes.
    """
    from protofed.experiment.options import toml_or_text
    from protofed.plugins import origin_of
    from protofed.testing import check_method, check_net, check_partition
    from protofed.trust.known_code import remember

    words = (word.partition("=") for word in sets or ())
    options = {key.strip().rpartition(".")[2]: toml_or_text(value) for key, _, value in words}  # pull or method.pull
    try:
        input_shape = tuple(int(number) for number in shape.split(","))
    except ValueError:
        raise UserError(f"--shape {shape}: must be whole numbers with commas, such as 3,32,32.") from None
    parts = _parts_to_check(name)
    if options and len(parts) > 1:
        raise UserError(f"--set: {name} has several parts: {', '.join(part.__name__ for part in parts)}. Name one.")
    for part in parts:
        began, kind = time.perf_counter(), _kind_of_part(part)
        if not kind:
            what = "a class" if isinstance(part, type) else f"of type {type(part).__name__}"
            raise UserError(
                f"{name} is {what}, and neither a method (derive it from protofed.Method), nor a net (a torch module, "
                "or with a function build), nor a partition (with a function split)."
            )
        if kind == "method":
            sentences = check_method(part, options)
        elif kind == "partition":
            sentences = check_partition(part, options)
        else:
            sentences = check_net(part, options, shape=input_shape, classes=classes)
        for sentence in sentences:
            print(f"  {sentence}")
        print(f"{part.__name__} passed all checks ({time.perf_counter() - began:.1f} s).")
        if origin := origin_of(part):
            remember([(origin.sha256, origin.file)])


def _parts_to_check(name: str) -> list[Any]:
    """The classes of a file that can be checked, or the one that the name stands for."""
    from protofed.data.partitions import PARTITIONS
    from protofed.methods import METHODS
    from protofed.nets import NETS
    from protofed.plugins import find_object, installed, run_file

    if not name.endswith(".py"):
        for registry in (METHODS, PARTITIONS, NETS):
            if name in registry or name in installed(registry.group):
                return [registry.find(name)[1]]
        return [find_object(name)]
    module = run_file(Path(name))
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    parts = [value for value in own if isinstance(value, type) and _kind_of_part(value)]
    if not parts:
        raise UserError(
            f"{name} defines no method, net or partition. A method derives from protofed.core.Method, a net is a torch "
            "module class, a partition a dataclass with `split`. A function that makes a net is checked by its name: "
            f"{name}:NAME."
        )
    return parts


def _kind_of_part(part: Any) -> str:
    """method, partition or net; "" if it is none of them."""
    from torch import nn

    from protofed.core import Method

    if isinstance(part, type) and issubclass(part, Method):
        return "method"
    if inspect.ismodule(part):
        return ""
    if callable(getattr(part, "split", None)):
        return "partition"
    is_net = callable(getattr(part, "build", None)) or (isinstance(part, type) and issubclass(part, nn.Module))
    makes_net = callable(part) and not isinstance(part, type)
    return "net" if is_net or makes_net else ""
