"""Changes of an experiment that are typed as "section.key=value"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofed.experiment.choices import DEFAULT_NAMES
from protofed.experiment.options import toml_or_text
from protofed.experiment.own_code import with_absolute_paths


def apply_change(table: dict[str, Any], word: str) -> str | None:
    """Apply a "section.key=value" word to the table. Returns the problem with the word, or None.

    The value is read as TOML, or as text if it is not TOML. A new `name` drops the other keys of its section, because
    they are the options of the old name.
    """
    name, equals, text = word.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        return f"--set {word}: must look like section.key=value, for example --set train.lr=0.1"
    value = with_absolute_paths({section: {key: toml_or_text(text)}}, Path.cwd())[section][key]
    old = table.get(section, {})
    same_name = isinstance(old, dict) and old.get("name", DEFAULT_NAMES.get(section)) == value
    if key == "name" and section in DEFAULT_NAMES and not same_name:
        old = {}
    if not isinstance(old, dict):
        return f"--set {word}: [{section}] is not a table in the file. Change it in the file."
    table[section] = {**old, key: value}
    return None
