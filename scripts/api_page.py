"""Write docs/api.md: the public names of protofed with their signatures and docstrings. Run it after changing them."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import protofed

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
ORDER = ("run", "load", "sweep", "compare", "draw", "measure", "join", "check_method")
"""The functions, in the order of the page. Other public names follow in alphabetical order."""
RETURNED = (
    ("protofed.studies.sweep", "Sweep"),
    ("protofed.studies.comparison", "Comparison"),
    ("protofed.pictures.drawing", "Drawing"),
    ("protofed.measures.question", "Measurements"),
    ("protofed.measures.question", "Measurement"),
    ("protofed.models.join", "Newcomer"),
    ("protofed.experiment.table", "ResultTable"),
)
"""What the functions return, by module and name."""
MADE_BY_USERS = (protofed.Federation,)
"""Classes that users call."""
INTRODUCTION = """# Python API

This page is made from the docstrings by `python scripts/api_page.py`. It has the public names of
`protofed`, and what its functions return. To write a method, see [its page](write-a-method.md) and
`protofed.core`. Everything else may change between versions.

What the functions return prints in a few lines, is shown as a table in a notebook, and has
`to_pandas()`, which needs pandas. `run` and `sweep` show a progress bar on a terminal and in a
notebook; `progress=False` turns it off. Errors that you can fix are `protofed.UserError`."""


def wrapped(text: str) -> str:
    """A docstring in Markdown, wrapped at 100 columns. Examples stay as they are, in a block of code."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text))
    shown = []
    for part in parts:
        if part.startswith(">>>"):
            shown.append(f"```text\n{part}\n```")
        elif part.startswith("- "):
            shown.append(part)
        else:
            shown.append(textwrap.fill(" ".join(part.split()), 100, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(shown)


def signature(name: str, value: Any) -> str:
    """How a function or class is called, one parameter per line if it is long."""
    called, kinds, words = inspect.signature(value), inspect.Parameter, []
    for key, parameter in called.parameters.items():
        if parameter.kind is kinds.KEYWORD_ONLY and not any("*" in word for word in words):
            words.append("*")
        stars = "*" if parameter.kind is kinds.VAR_POSITIONAL else "**" if parameter.kind is kinds.VAR_KEYWORD else ""
        default = "" if parameter.default is kinds.empty else f" = {parameter.default!r}"
        words.append(f"{stars}{key}: {parameter.annotation}{default}")
    arrow = "" if inspect.isclass(value) else f" -> {called.return_annotation}"
    line = f"{name}({', '.join(words)}){arrow}"
    return line if len(line) <= 98 else "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){arrow}"])


def described(name: str, value: Any, title: str) -> list[str]:
    """A section about a function or class, with the public methods and properties of a class."""
    lines = [f"## {title}", ""]
    if inspect.isfunction(value) or value in MADE_BY_USERS:
        lines += ["```text", signature(name, value), "```", ""]
    lines += [wrapped(value.__doc__ or ""), ""]
    if not inspect.isclass(value) or issubclass(value, Exception):
        return lines
    fields = [one.name for one in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    fields = [name for name in fields or getattr(value, "_fields", ()) if not name.startswith("_")]
    if fields and value not in MADE_BY_USERS:
        lines += [textwrap.fill(f"Fields: {', '.join(f'`{name}`' for name in fields)}.", 100), ""]
    for key, member in vars(value).items():
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        inner = inner.fget if isinstance(inner, property) else getattr(inner, "func", inner)
        if key.startswith("_") or key in fields or not inspect.isfunction(inner) or not inner.__doc__:
            continue
        is_value = isinstance(member, property) or hasattr(member, "func")
        shown = key if is_value else f"{key}({', '.join(list(inspect.signature(inner).parameters)[1:])})"
        lines += [
            textwrap.fill(
                f"- `{shown}`: {inspect.cleandoc(inner.__doc__).partition(chr(10) * 2)[0]}",
                100,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
    return [*lines, ""]


def page() -> str:
    """The text of the page."""
    names = [name for name in ORDER if name in protofed.__all__]
    names += [name for name in protofed.__all__ if name not in names and name != "METHODS"]
    parts = [INTRODUCTION, ""]
    for name in names:
        parts += described(f"protofed.{name}", getattr(protofed, name), f"protofed.{name}")
    parts += [
        "## protofed.METHODS",
        "",
        wrapped(
            "The methods by name, as `method.name` has them: a dictionary of classes. `protofed list methods` describes "
            "them and their options."
        ),
        "",
    ]
    for module, name in RETURNED:
        value = getattr(__import__(module, fromlist=[name]), name)
        parts += described(name, value, name)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"Written to {PAGE}.")
