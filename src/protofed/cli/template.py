"""The experiment file that `protofed init` writes: every key with its value and its meaning."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from protofed.cli.listing import first_line
from protofed.data.partitions import PARTITIONS
from protofed.experiment.options import option_descriptions, toml_value
from protofed.experiment.sections import SECTIONS
from protofed.methods import METHODS
from protofed.nets import NETS

if TYPE_CHECKING:
    from protofed.experiment.config import Config

_CHOICES: dict[str, dict[str, Any]] = {"partition": PARTITIONS, "net": NETS, "method": METHODS}
"""Sections with a `name` that decides which other keys they have."""


def template(config: Config, file: str) -> str:
    """The text of an experiment file."""
    shown = "the value shown here" if config == type(config).load() else "shown by `protofed init` without --set"
    lines = [
        f"# Experiment file. Run it with: protofed run {file}",
        f"# Every key is optional: a key that is left out has its default, which is {shown}.",
    ]
    for section, table in config.table().items():
        kind: Any
        lines += ["", f"[{section}]"]
        if section in SECTIONS:
            kind, keys = SECTIONS[section], list(table)
        else:
            registry = _CHOICES[section]
            kind = type({"partition": config.partition, "net": config.nets[0].design, "method": config.method}[section])
            keys = [key for key in table if key != "name"]
            lines += _comment(first_line(kind))
            lines += _comment(f"One of {', '.join(sorted(registry))}; `protofed list {section}s` describes them.")
            lines.append(f"name = {toml_value(table['name'])}")
        for key in keys:
            lines += _comment(option_descriptions(kind).get(key, ""))
            lines.append(f"{key} = {toml_value(table[key])}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    """The lines of a comment."""
    return [f"# {line}" for line in textwrap.wrap(text, 110)]
