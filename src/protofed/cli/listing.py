"""The entries that `protofed list` shows."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint
from itertools import takewhile
from typing import Any

from protofed.data.dataset import Source
from protofed.data.partitions import PARTITIONS
from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.experiment.options import option_descriptions, toml_value
from protofed.experiment.recipes import recipe_files
from protofed.experiment.trackers import WATCHERS
from protofed.measures.on_demand import MEASURES
from protofed.methods import METHODS
from protofed.nets import NETS
from protofed.plugins import Registry, installed

_REGISTRIES: dict[str, Registry[Any]] = {
    "methods": METHODS,
    "datasets": SOURCES,
    "partitions": PARTITIONS,
    "nets": NETS,
    "measures": MEASURES,
    "watchers": WATCHERS,
}
KINDS = (*_REGISTRIES, "recipes")
NOTES = {
    "datasets": "In parentheses: training / test examples, or all examples if there is no test set. "
    "In brackets: whether the data are there. docs/data.md describes the files.",
}
"""A line below a list, for some kinds."""


def list_entries(kind: str) -> list[dict[str, Any]]:
    """Entries with a name, a one-line description, options with their defaults, and what the options mean."""
    if kind == "recipes":
        return recipes()
    registry = _REGISTRIES[kind]
    ours = [_list_entry(name, entry) for name, entry in registry.items()]
    return ours + [_installed_entry(registry, name, entry) for name, entry in sorted(installed(registry.group).items())]


def _list_entry(name: str, entry: Any, package: str = "") -> dict[str, Any]:
    """An entry of a registry; `package`: the installed package that it comes from."""
    start = f"[{package}] " if package else ""
    if isinstance(entry, Source):
        state = {} if package else {"state": entry.state()}
        return {"name": name, "about": f"{start}{entry.about}", "options": {}, "meanings": {}, **state}
    is_section = is_dataclass(entry)
    return {
        "name": name,
        "about": f"{start}{first_line(entry)}",
        "options": {field.name: field.default for field in fields(entry)} if is_section else {},
        "meanings": option_descriptions(entry) if isinstance(entry, type) and is_section else {},
    }


def _installed_entry(registry: Registry[Any], name: str, point: EntryPoint) -> dict[str, Any]:
    """An entry point of an installed package, with the name of the package."""
    package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
    problem: object = "protofed has an entry of this name."
    if name not in registry:
        try:
            return _list_entry(name, registry.find(name)[1], package)
        except UserError as refused:
            problem = refused
    return {"name": name, "about": f"[{package}] It cannot be used: {problem}", "options": {}, "meanings": {}}


def entry_lines(entry: dict[str, Any], width: int, explained: bool) -> list[str]:
    """An entry as text: its description, and its options in one line or, if they are `explained`, in one line each."""
    state = f" [{entry['state']}]" if "state" in entry else ""
    lines = [f"  {entry['name']:<{width}}  {entry['about']}{state}"]
    shown = {key: f"{key}={toml_value(value)}" for key, value in entry["options"].items()}
    if explained:
        lines += [f"  {'':<{width}}    {text}: {entry['meanings'].get(key, '')}" for key, text in shown.items()]
    elif shown:
        lines.append(f"  {'':<{width}}    {', '.join(shown.values())}")
    return lines


def recipes() -> list[dict[str, Any]]:
    """The experiment files in recipes/, each described by the first sentence of its comment."""
    return [
        {
            "name": str(file),
            "about": _first_sentence(file.read_text(encoding="utf-8", errors="replace")),
            "options": {},
            "meanings": {},
        }
        for file in recipe_files()
    ]


def first_line(described: object) -> str:
    """The first line of a docstring."""
    return (described.__doc__ or "").strip().partition("\n")[0]


def _first_sentence(text: str) -> str:
    """The first sentence of the comment at the beginning of an experiment file.

    >>> _first_sentence("# One sentence that goes\\n# on. Another.\\n[run]")
    'One sentence that goes on.'
    >>> _first_sentence("# Table 1 (Tan et al. 2022): MNIST. Another.")
    'Table 1 (Tan et al. 2022): MNIST.'
    """
    comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), text.splitlines()))
    end = re.search(r"(?<!\bal)\. ", comment)  # not that of "et al. "
    return comment[: end.start() + 1] if end else comment
