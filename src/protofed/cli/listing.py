"""The entries that `protofed list` shows."""

from __future__ import annotations

from dataclasses import fields
from itertools import takewhile
from typing import Any

from protofed.data.partitions import PARTITIONS
from protofed.data.sources import SOURCES
from protofed.experiment.options import option_descriptions, toml_value
from protofed.experiment.recipes import recipe_files
from protofed.methods import METHODS
from protofed.nets import NETS

KINDS = ("methods", "datasets", "partitions", "nets", "recipes")
NOTES = {
    "datasets": "In parentheses: training / test examples, or all examples if there is no test set. "
    "In brackets: whether the data are there. docs/data.md describes the files.",
}
"""A line below a list, for some kinds."""


def list_entries(kind: str) -> list[dict[str, Any]]:
    """Entries with a name, a one-line description, options with their defaults, and what the options mean."""
    if kind == "recipes":
        return recipes()
    if kind == "datasets":
        return [
            {"name": name, "about": source.about, "options": {}, "meanings": {}, "state": source.state()}
            for name, source in SOURCES.items()
        ]
    registries: dict[str, dict[str, Any]] = {"methods": METHODS, "partitions": PARTITIONS, "nets": NETS}
    return [
        {
            "name": name,
            "about": first_line(entry),
            "options": {field.name: field.default for field in fields(entry)},
            "meanings": option_descriptions(entry),
        }
        for name, entry in registries[kind].items()
    ]


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
    """
    comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), text.splitlines()))
    return comment[: end + 1] if (end := comment.find(". ")) >= 0 else comment
