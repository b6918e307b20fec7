"""What all pictures have in common: their size, colours, marks and letters, and how they are written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from textwrap import fill
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from protofed.errors import UserError

COLUMN = 3.4
"""The width of a printed column in inches: a picture of this width is made to be shown as it is."""
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#999999",
    "#882255",
    "#ddcc77",
)
"""Told apart by everybody (Okabe and Ito; the last two are Tol's)."""
STYLES = ("-", "--", "-.", ":")
"""So that lines can be told apart without colours, too."""
MARKS = ("o", "s", "^", "D", "v", "P", "X")
"""So that classes can: seven of them, ten colours, hence 70 different pairs."""
_ENDINGS = (".png", ".svg", ".pdf")
_LETTERS: dict[Any, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 7,
    "figure.titlesize": 8.5,
    "axes.linewidth": 0.6,
    "svg.hashsalt": "protofed",
}

Drawing = ParamSpec("Drawing")
Made = TypeVar("Made")


def lettered(draw: Callable[Drawing, Made]) -> Callable[Drawing, Made]:
    """A function that draws, with letters that can be read at column width."""

    @wraps(draw)
    def drawn(*args: Drawing.args, **options: Drawing.kwargs) -> Made:
        with plt.rc_context(_LETTERS):
            return draw(*args, **options)

    return drawn


def must_be_a_picture(out: Path) -> None:
    """Refuse a name whose ending is not that of a picture."""
    if out.suffix not in _ENDINGS:
        raise UserError(f"--out: got {out.name}; its name must end in .png, .svg or .pdf.")


@lettered
def write_picture(picture: Figure, out: Path) -> None:
    """Write a picture, the same one always the same; the ending of the name says in which format."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a label's letter that the font has not
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(out.suffix)
        picture.savefig(out, dpi=200, bbox_inches="tight", metadata=undated)
    plt.close(picture)


def open_axes(axis: Axes) -> None:
    """A frame on the left and below only, and a faint grid behind."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3, linewidth=0.5)
    axis.set_axisbelow(True)


def in_powers(axis: Axis) -> None:
    """A logarithmic axis with plain numbers, also between the powers of ten where there are few of these."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def head(axis: Axes, title: str, columns: int) -> None:
    """A title over one of so many columns, in several lines where it is long."""
    axis.set_title(fill(title, 50 // columns))


def look(label: int) -> tuple[str, str]:
    """The colour and the mark of a class."""
    return COLOURS[label % len(COLOURS)], MARKS[label % len(MARKS)]


def make_panels(count: int, columns: int, high: float) -> tuple[Figure, list[Axes]]:
    """So many square or flat axes in a picture of column width, `high` inches each."""
    columns = min(columns, count)
    rows = -(-count // columns)
    picture, axes = plt.subplots(rows, columns, figsize=(COLUMN, high * rows), squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return picture, list(axes.flat[:count])
