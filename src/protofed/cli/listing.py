"""The entries that `protofed list` shows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from protofed.data.partitions import PARTITIONS
from protofed.data.sources import SOURCES
from protofed.methods import METHODS
from protofed.nets import NETS
from protofed.studies.recipes import recipe_files

KINDS = ("methods", "datasets", "partitions", "nets", "recipes")
NOTES = {"datasets": "In parentheses: training / test examples, or all examples if there is no test set."}
"""A line below a list, for some kinds."""


def list_entries(kind: str) -> list[dict[str, Any]]:
    """Entries with a name, a one-line description, and options with their defaults."""
    if kind == "recipes":
        return recipes()
    if kind == "datasets":
        return [{"name": name, "about": source.about, "options": {}} for name, source in SOURCES.items()]
    registries: dict[str, dict[str, Any]] = {"methods": METHODS, "partitions": PARTITIONS, "nets": NETS}
    return [
        {"name": name, "about": first_line(entry), "options": {field.name: field.default for field in fields(entry)}}
        for name, entry in registries[kind].items()
    ]


def recipes() -> list[dict[str, Any]]:
    """The experiment files in recipes/, each described by its first line."""
    return [
        {
            "name": str(file),
            "about": file.read_text(encoding="utf-8", errors="replace").partition("\n")[0].lstrip("# "),
            "options": {},
        }
        for file in recipe_files()
    ]


def first_line(described: object) -> str:
    """The first line of a docstring."""
    return (described.__doc__ or "").strip().partition("\n")[0]
