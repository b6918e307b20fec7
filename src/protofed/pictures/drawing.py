"""`protofed.draw`: a picture of runs, with the size, title, names and limits that the user wants."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator

from protofed.errors import UserError, did_you_mean
from protofed.experiment.folder import must_be_new
from protofed.pictures.catalogue import PICTURES, DrawOptions
from protofed.pictures.style import must_be_a_picture, picture_bytes, with_column_fonts, write_picture

_BORDER = 0.1
"""Inches around a picture that is written."""


class Drawing:
    """A picture. `figure` is matplotlib's figure; a notebook shows it."""

    def __init__(self, name: str, figure: Figure) -> None:
        self.name, self.figure = name, figure

    def save(self, out: str | Path, force: bool = False) -> Path:
        """Write the picture as .png, .svg or .pdf. `force` replaces a file that exists."""
        path = Path(out)
        must_be_a_picture(path)
        if not force:
            must_be_new(path, replaceable=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_picture(self.figure, path)
        return path

    def __repr__(self) -> str:
        width, height = self.figure.get_size_inches()
        return f"Drawing({self.name}: {PICTURES[self.name].about}, {width:.1f} x {height:.1f} inches)"

    def _repr_html_(self) -> str:
        return f'<img src="data:image/png;base64,{base64.b64encode(picture_bytes(self.figure)).decode()}">'


def draw(
    what: str,
    *runs: Any,
    out: str | Path | None = None,
    force: bool = False,
    window: int = 1,
    clients: Sequence[int | str] = (),
    by: Sequence[str] = DrawOptions().by,
    classes: Sequence[str] = (),
    width: float | None = None,
    height: float | None = None,
    title: str | None = None,
    labels: Mapping[str, str] | None = None,
    ylim: tuple[float, float] | None = None,
) -> Drawing:
    """Draw runs: run folders, folders of sweeps (all their runs), or results in memory.

    `what`: the picture, such as "curves" or "clients"; `protofed.pictures.catalogue.PICTURES` has all. `out`: a file to
    write, .png, .svg or .pdf; `force` replaces an existing one. `window`, `clients`, `by`, `classes`: options of single
    pictures, as in `protofed draw`. `width`, `height`: inches. `title`: another title; "": none. `labels`: other names
    for methods and settings, by their names in the picture. `ylim`: limits of the y axis.
    """
    if what not in PICTURES:
        raise UserError(f'--what: there is no picture "{what}". {did_you_mean(what, PICTURES)}')
    if out is not None:
        must_be_a_picture(Path(out))
        if not force:
            must_be_new(Path(out), replaceable=True)
    for name, inches in (("--width", width), ("--height", height)):
        if inches is not None and not 1 <= inches <= 40:
            raise UserError(f"{name}: got {inches:g}; must be from 1 to 40 inches.")
    if ylim is not None and not ylim[0] < ylim[1]:
        raise UserError(f"--ylim: got {ylim[0]:g},{ylim[1]:g}; the first must be smaller than the second.")
    _refuse_unused(what, window=window, clients=tuple(clients), by=tuple(by), classes=tuple(classes))
    loaded = PICTURES[what].load(runs)
    options = DrawOptions(window, _client_numbers(loaded, clients), tuple(by), tuple(classes))
    figure = PICTURES[what].draw(loaded, options)
    _adjust(figure, title, labels or {}, ylim)
    if width or height:
        _resize(figure, width, height)
    drawing = Drawing(what, figure)
    if out is not None:
        drawing.save(out, force=force)
    return drawing


def _refuse_unused(what: str, **options: Any) -> None:
    """Raise an error if an option is given that the picture does not use."""
    for name, value in options.items():
        if name not in PICTURES[what].uses and value != getattr(DrawOptions(), name):
            users = ", ".join(picture for picture in PICTURES if name in PICTURES[picture].uses)
            flag = {"clients": "--client", "classes": "--class"}.get(name, f"--{name}")
            raise UserError(f"{flag}: the picture {what} does not use it; {users} do. Leave it out.")


def _client_numbers(runs: Sequence[Any], clients: Sequence[int | str]) -> tuple[int, ...]:
    """The numbers of clients that are given by number or name; an error if no run has a client of that name."""
    names = [run.client_names() for run in runs] if clients else []
    numbers = []
    for client in clients:
        found = next((number for of_run in names for number, name in of_run.items() if name == client), None)
        if found is None and not str(client).isdecimal():
            known = {name for of_run in names for name in of_run.values()}
            hint = did_you_mean(str(client), known) if known else "The clients of these runs have numbers only."
            raise UserError(f"--client: there is no client {client!r}. {hint}")
        numbers.append(int(client) if found is None else found)
    return tuple(numbers)


def _adjust(figure: Figure, title: str | None, labels: Mapping[str, str], ylim: tuple[float, float] | None) -> None:
    """Change the title, the names and the limits of a picture."""
    axes = [axis for axis in figure.axes if axis.get_visible()]
    if title is not None:
        figure.suptitle("")
        for axis in axes[1:]:
            if axis.get_title() == axes[0].get_title():
                axis.set_title("")
        axes[0].set_title(title, parse_math=True)  # the user's own words may have formulas
    if ylim is not None:
        for axis in axes:
            if axis.get_ylabel() == axes[0].get_ylabel():
                axis.set_ylim(*ylim)
    for name, label in labels.items():
        if not _rename(figure, axes, name, label):
            known = set(_names(figure, axes))
            raise UserError(f'--label: there is no "{name}" in the picture. {did_you_mean(name, known)}')


def _names(figure: Figure, axes: Sequence[Axes]) -> list[str]:
    """The names in legends, at the ticks of categories, and of rows of images."""
    legends = [legend for legend in (*figure.legends, *(axis.get_legend() for axis in axes)) if legend is not None]
    ticks = [name for axis in axes for scale in (axis.xaxis, axis.yaxis) for name in _tick_names(scale)]
    rows = [axis.get_ylabel() for axis in axes if axis.images and axis.get_ylabel()]
    return [text.get_text() for legend in legends for text in legend.get_texts()] + ticks + rows


def _tick_names(scale: Axis) -> list[str]:
    """The names at the ticks of categories; [] for an axis of numbers."""
    if not isinstance(scale.get_major_locator(), FixedLocator):
        return []
    return [text.get_text() for text in scale.get_ticklabels()]


def _rename(figure: Figure, axes: Sequence[Axes], name: str, label: str) -> bool:
    """Replace one of the `_names`, also where more follows it. Whether it was found."""
    found = False

    def changed(text: str) -> str:
        nonlocal found
        if text == name or text.startswith((f"{name},", f"{name} ")):
            found = True
            return label + text[len(name) :]
        return text

    for legend in (*figure.legends, *(axis.get_legend() for axis in axes)):
        for text in legend.get_texts() if legend is not None else ():
            _set_text(text, changed(text.get_text()))
    for axis in axes:
        if axis.images:
            _set_text(axis.yaxis.label, changed(axis.get_ylabel()))
        for scale in (axis.xaxis, axis.yaxis):
            if names := _tick_names(scale):
                for text, old in zip(scale.set_ticklabels(list(map(changed, names))), names, strict=True):
                    text.set_parse_math(text.get_text() != old)
    return found


def _set_text(text: Text, new: str) -> None:
    """Replace a text. What the user wrote may have formulas."""
    if text.get_text() != new:
        text.set_text(new)
        text.set_parse_math(True)


@with_column_fonts
def _resize(figure: Figure, width: float | None, height: float | None) -> None:
    """Make the written picture, with its legend, this wide and high in inches. Fonts keep their size."""
    for _ in range(4):
        box, (now_wide, now_high) = figure.get_tightbbox(), figure.get_size_inches()
        wide = now_wide + (width - 2 * _BORDER - box.width if width else 0)
        high = now_high + (height - 2 * _BORDER - box.height if height else 0)
        figure.set_size_inches(max(0.5, wide), max(0.5, high))
        figure.tight_layout()
