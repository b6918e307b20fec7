"""What a client says about itself at enrolment, checked before the server builds anything from it."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from protofed.data.labels import MOST_CLASSES, ClassNames
from protofed.engines.flower.client_answers import EnrolledSizes, count_of
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.config import Config
from protofed.experiment.own_code import names_outside
from protofed.nets import make_net
from protofed.nets.from_outside import OutsideDesign

if TYPE_CHECKING:
    from protofed.experiment.sections import NetChoice

Description = dict[str, Any]
_TYPES = {
    "input": dict,
    "sizes": list,
    "pixels": bool,
    "counts": list,
    "images": list,
    "group": str,
    "own": bool,
    "dataset": str,
    "remark": str,
    "balanced": bool,
}
"""The keys of a description and the types of their values. `net` is a table or null."""
_MOST_EXAMPLES = 10_000_000
"""The largest number of examples in a set of a client: partition.json has an entry for each."""
_MOST_INPUTS = 2**24
"""The largest number of values in an input."""
_MOST_PARAMS = 2**29
"""The largest number of parameters of a net."""
_LONGEST_TEXT = 1000
_LONGEST_NET = 10_000
"""The largest number of characters in a text, and in the JSON of a [net]."""


def checked_description(figures: Description, config: Config, known: ClassNames) -> Description:
    """The parts of an enrolment that the server keeps; an error (ValueError) if it cannot work with one of them.

    `known`: the classes that server.toml lists.
    """
    try:
        for key, kind in _TYPES.items():
            if type(figures.get(key)) is not kind:
                raise ValueError(f"{key} is {_short_repr(figures.get(key))}")
            if kind is str and len(figures[key]) > _LONGEST_TEXT:
                raise ValueError(f"{key} has {len(figures[key])} characters; at most {_LONGEST_TEXT} are read")
        _check_input(figures["input"], figures["pixels"])
        _check_counts(figures, known)
        _check_net(figures["net"], config, tuple(figures["input"]["shape"]), _num_classes(figures, known))
    except Exception as problem:  # nothing is known about the values that another machine sends
        is_explained = isinstance(problem, ValueError | UserError)
        raise ValueError(str(problem) if is_explained else f"{type(problem).__name__} {problem}") from None
    return {key: figures[key] for key in (*_TYPES, "net")}


def _short_repr(value: Any) -> str:
    return "missing" if value is None else repr(value)[:100]


def enrolled_sizes(client: Description) -> EnrolledSizes:
    """The sizes in a client's description. A mask has the height and width of the image."""
    train, test, validation = client["sizes"]
    return EnrolledSizes(train, test, validation, math.prod(client["input"]["shape"][1:]) if client["pixels"] else 0)


def _check_input(described: dict[str, Any], pixels: bool) -> None:
    """Raise an error unless these are the shape of an input and constants that normalise it."""
    shape = described["shape"]
    if not isinstance(shape, list) or not all(type(side) is int and side > 0 for side in shape):
        raise ValueError(f"inputs of shape {_short_repr(shape)}")
    if not shape or math.prod(shape) > _MOST_INPUTS or (pixels and len(shape) != 3):
        raise ValueError(f"inputs of shape {_short_repr(shape)}; at most {_MOST_INPUTS:,} values are read")
    for key in described.keys() - {"shape"}:
        value = described[key]
        if key not in ("scale", "mean", "std", "fill"):
            raise ValueError(f"input has the key {_short_repr(key)}")
        values = value if isinstance(value, list) and len(value) == shape[0] and key != "scale" else [value]
        are_numbers = all(type(number) in (int, float) and math.isfinite(number) for number in values)
        if not are_numbers and not (key == "fill" and value is None):
            raise ValueError(f"{key} of inputs is {_short_repr(value)}")
    Examples.empty(**described)


def _check_counts(figures: Description, known: ClassNames) -> None:
    """Raise an error unless the numbers of examples and the classes can be those of one client."""
    sizes = figures["sizes"]
    if len(sizes) != 3 or not all(type(size) is int and size <= _MOST_EXAMPLES for size in sizes):
        raise ValueError(f"sizes {_short_repr(sizes)}; at most {_MOST_EXAMPLES:,} examples are possible")
    if min(sizes[:2]) < 0 or sizes[2] < -1:
        raise ValueError(f"sizes {_short_repr(sizes)}")
    if len(figures["counts"]) != 2:
        raise ValueError(f"counts of {len(figures['counts'])} sets instead of 2")
    for pairs in (*figures["counts"], figures["images"]):
        for label, count in pairs:
            is_name = type(label) is str and len(label) <= _LONGEST_TEXT
            is_number = type(label) is int and (label in known or 0 <= label < MOST_CLASSES)
            if not (is_name or is_number) or count_of({"a count": count}, "a count") == 0:
                raise ValueError(f"count {_short_repr(count)} of class {_short_repr(label)}")
    if len({type(label) for label in _reported_labels(figures)}) > 1:
        raise ValueError("some of its classes are names, others are whole numbers")
    pixels = enrolled_sizes(figures).pixels or 1
    for size, pairs in zip(sizes, figures["counts"], strict=False):
        if (counted := sum(count for _, count in pairs)) > size * pixels:
            raise ValueError(f"counts have {counted} labels of {size} examples")


def _reported_labels(figures: Description) -> list[str | int]:
    """The classes that a client reports."""
    return [label for pairs in figures["counts"] for label, _ in pairs]


def _num_classes(figures: Description, known: ClassNames) -> int:
    """A number of classes for which the net of a client can be checked."""
    return max(len(known), len(set(_reported_labels(figures))), 2)


def _check_net(table: dict[str, Any] | None, config: Config, shape: tuple[int, ...], classes: int) -> None:
    """Raise an error if the client's own net, or every net of the experiment, cannot be built for its inputs."""
    choices = config.nets
    if table is not None:
        if not isinstance(table, dict) or len(json.dumps(table)) > _LONGEST_NET:
            raise ValueError(f"net is {_short_repr(table)}")
        if outside := names_outside({"net": table}):  # nobody else decides what this server imports
            raise ValueError(f"its net {outside[0][1]} is not part of protofed")
        choices = Config.of({"net": table}).nets
    problems = []
    for choice in choices:
        if isinstance(choice.design, OutsideDesign):  # the operator's own code decides what it can take
            continue
        try:
            numbers = _num_params(choice, shape, classes)
        except UserError as problem:
            problems.append(problem)
            continue
        if numbers > _MOST_PARAMS:
            raise ValueError(f"a net with {numbers:,} parameters; at most {_MOST_PARAMS:,} are possible")
    if len(problems) == len(choices):
        raise problems[0]


@lru_cache(maxsize=64)
def _num_params(choice: NetChoice, shape: tuple[int, ...], classes: int) -> int:
    """The number of parameters of a net, which is built without memory for them."""
    with torch.device("meta"):
        net = make_net(choice.name, choice.design, shape, classes)
    return sum(math.prod(sides) for sides in net.shapes.values())
