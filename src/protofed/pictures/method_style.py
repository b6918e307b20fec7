"""One colour and one mark per method, in every picture and for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.colors import to_hex, to_rgb

from protofed.pictures.style import COLOURS, MARKS, STYLES

METHOD_ORDER = (
    "fedproto",
    "fedavg",
    "fednh",
    "fedper",
    "mpfedcl",
    "fedprox",
    "local",
    "ditto",
    "fedrep",
    "protomargin",
    "fedbabu",
    "fedrod",
    "fedtgp",
    "fpl",
    "creff",
    "fedatt",
    "fesem",
)
"""The methods by their position, which gives the colour and the mark. Append new ones; never change the order.

Ten colours and seven marks give 70 pairs, and the first ten methods have different colours."""
_NUM_STYLES = len(COLOURS) * len(MARKS)
_FOR_OTHERS = 30
"""Methods that are not in the list get positions from here on, by a hash of their name."""
_LIGHTEST = 0.6
"""How much white the last of many variants of a method has."""


class LineStyle(NamedTuple):
    """How a line is drawn."""

    colour: str
    mark: str
    dashes: str = "-"


def method_style(method: str) -> LineStyle:
    """The colour and the mark of a method. Those of your own methods follow from their names.

    >>> method_style("fedproto"), method_style("fedavg").colour
    (LineStyle(colour='#0072b2', mark='o', dashes='-'), '#d55e00')
    """
    if method in METHOD_ORDER:
        position = METHOD_ORDER.index(method)
    else:
        digest = int.from_bytes(hashlib.sha256(method.encode()).digest()[:4], "big")
        position = _FOR_OTHERS + digest % (_NUM_STYLES - _FOR_OTHERS)
    return LineStyle(COLOURS[position % len(COLOURS)], MARKS[position % len(MARKS)])


def line_styles(names: Sequence[str], methods: Mapping[str, str]) -> dict[str, LineStyle]:
    """A style for each line. `methods`: the method of a line by name; lines of no method are styled by position.

    Several lines of one method have its colour in lighter and lighter shades, and different dashes.
    """
    of_method: dict[str, list[str]] = {}
    for name in names:
        of_method.setdefault(methods.get(name, ""), []).append(name)
    styles = {}
    for method, lines in of_method.items():
        for number, name in enumerate(lines):
            dashes = STYLES[number % len(STYLES)]
            if method:
                base = method_style(method)
                share = _LIGHTEST * number / (len(lines) - 1) if len(lines) > len(STYLES) else 0.0
                styles[name] = LineStyle(lighter(base.colour, share), base.mark, dashes)
            else:
                styles[name] = LineStyle(COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)], dashes)
    return styles


def lighter(colour: str, share: float) -> str:
    """A colour mixed with this share of white."""
    red, green, blue = (value + (1 - value) * share for value in to_rgb(colour))
    return to_hex((red, green, blue))
