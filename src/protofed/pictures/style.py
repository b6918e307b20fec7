"""What all pictures share: width, colours, marks, fonts, and how they are written to a file."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from textwrap import fill
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl

if "MPLBACKEND" not in os.environ and "matplotlib.pyplot" not in sys.modules:
    mpl.use("Agg")  # no window; a notebook has chosen its own
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from protofed.errors import UserError
from protofed.experiment.folder import write_atomically

COLUMN = 3.4
"""Width of a printed column in inches. Pictures of this width are readable without scaling."""
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
"""Colours that colour-blind readers can tell apart (Okabe and Ito; the last two are Tol's)."""
STYLES = ("-", "--", "-.", ":")
"""Line styles, so that lines can be told apart without colours."""
MARKS = ("o", "s", "^", "D", "v", "P", "X")
"""Marks, so that classes can be told apart without colours. Seven marks and ten colours give 70 different pairs."""
_ENDINGS = (".png", ".svg", ".pdf")
_COLUMN_FONTS: dict[Any, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 7,
    "figure.titlesize": 8.5,
    "axes.linewidth": 0.6,
    "svg.hashsalt": "protofed",
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "ps.fonttype": 42,
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # names of data, classes and clients may have dollar signs
}

Arguments = ParamSpec("Arguments")
Drawn = TypeVar("Drawn")


def with_column_fonts(draw: Callable[Arguments, Drawn]) -> Callable[Arguments, Drawn]:
    """Decorate a function that draws, so that its text is readable at column width."""

    @wraps(draw)
    def draw_with_fonts(*args: Arguments.args, **options: Arguments.kwargs) -> Drawn:
        with plt.rc_context(_COLUMN_FONTS):
            return draw(*args, **options)

    return draw_with_fonts


def must_be_a_picture(out: Path) -> None:
    """Raise if the file name does not have the ending of a picture."""
    if out.suffix not in _ENDINGS:
        raise UserError(f"--out: got {out.name}; its name must end in .png, .svg or .pdf.")


def write_picture(picture: Figure, out: Path) -> None:
    """Write a picture in the format that the file name's ending says, completely or not at all.

    Equal pictures give equal files.
    """
    write_atomically(out, picture_bytes(picture, out.suffix))
    plt.close(picture)


@with_column_fonts
def picture_bytes(picture: Figure, ending: str = ".png") -> bytes:
    """The content of a file with the picture."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters in labels that the font does not have
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(ending)
        picture.savefig(content, format=ending[1:], dpi=200, bbox_inches="tight", metadata=undated)
    return content.getvalue()


def open_axes(axis: Axes) -> None:
    """Show the frame on the left and at the bottom only, with a faint grid behind the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3, linewidth=0.5)
    axis.set_axisbelow(True)


def use_log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, also between the powers of ten if the axis has few of them."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1,) if high > 100 * low else (1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def set_wrapped_title(axis: Axes, title: str, columns: int) -> None:
    """Set the title of a panel, wrapped to the width of one of `columns` columns."""
    axis.set_title(fill(title, 50 // columns))


def class_style(label: int) -> tuple[str, str]:
    """The colour and the mark of a class."""
    return COLOURS[label % len(COLOURS)], MARKS[label % len(MARKS)]


def make_panels(count: int, columns: int, height: float, share_x: bool = False) -> tuple[Figure, list[Axes]]:
    """A picture of column width with `count` axes of `height` inches, at most `columns` side by side.

    `share_x`: panels one below the other have the same x axis, labelled at the lowest.
    """
    columns = min(columns, count)
    rows = -(-count // columns)
    size = (COLUMN, height * rows)
    picture, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, sharex="col" if share_x else False)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return picture, list(axes.flat[:count])
