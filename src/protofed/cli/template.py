"""An experiment file with every key, its default and what it means, for `protofed init`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from protofed.cli.listing import first_line
from protofed.data.partitions import PARTITIONS
from protofed.experiment.options import meanings, toml_value
from protofed.experiment.sections import DataSection, EngineSection, EvalSection, RunSection, SystemSection
from protofed.methods import METHODS
from protofed.nets import NETS
from protofed.training import TrainSection

if TYPE_CHECKING:
    from protofed.experiment.config import Config


def template(config: Config, file: str) -> str:
    """The text of an experiment file."""
    sections: dict[str, Any] = {
        "run": RunSection,
        "data": DataSection,
        "train": TrainSection,
        "eval": EvalSection,
        "system": SystemSection,
        "engine": EngineSection,
    }
    choices: dict[str, dict[str, type[Any]]] = {"partition": PARTITIONS, "net": NETS, "method": METHODS}
    lines = [f"# An experiment: protofed run {file}", "# Whatever is left out has the value that stands here."]
    for section, table in config.table().items():
        lines += ["", f"[{section}]"]
        kind: Any = sections.get(section)
        if kind is None:
            names = sorted(choices[section])
            kind = choices[section][table["name"]]
            lines += _noted(first_line(kind))
            lines += _noted(f"One of {', '.join(names)}; `protofed list {section}s` shows their options.")
            lines.append(f"name = {toml_value(table['name'])}")
        for key, value in table.items():
            if key != "name" or section in sections:
                lines += _noted(meanings(kind)[key])
                lines.append(f"{key} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def _noted(text: str) -> list[str]:
    """A comment, folded."""
    return [f"# {line}" for line in textwrap.wrap(text, 110)]
