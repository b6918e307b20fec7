"""The parts of an experiment that a name chooses: the method, the partition and the nets, each with its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofed.contract import check_method_class
from protofed.errors import UserError
from protofed.experiment.encoder_files import ENCODERS, is_file
from protofed.experiment.options import check, toml_value
from protofed.experiment.sections import GivenInPython, NetChoice, NetKeys
from protofed.experiment.stored import GIVEN
from protofed.nets import NETS
from protofed.plugins import Registry, label

DEFAULT_NAMES = {"partition": "nway", "net": "mlp", "method": "fedproto"}
"""The `name` of these sections if the experiment has none."""


def find_entry(key: str, name: Any, registry: Registry[Any], problems: list[str]) -> tuple[str, Any]:
    """The name, with an absolute path if it is that of code, and the entry; None and a problem if there is no such."""
    try:
        return registry.find(name)
    except UserError as problem:
        problems.append(f"{key}: {problem}")
        return str(name), None


def find_encoder(name: str, problems: list[str]) -> str:
    """The value of `data.encoder`, with an absolute path if it is the name of code; a problem if there is no such."""
    if not name or is_file(name):
        return name
    name, found = find_entry("data.encoder", name, ENCODERS, problems)
    if found is None and ":" not in name:
        problems[-1] += " Or give a file: .safetensors, .pth, .pt or .onnx."
    return name


def choose_part(
    section: str, registry: Registry[Any], table: Mapping[str, Any], problems: list[str], given: bool = False
) -> tuple[str, Any]:
    """The name in a section, and the dataclass registered under it, with the section's other keys as its fields.

    `given`: whether the name may be that of something that was given in Python.
    """
    name = table.get("name", DEFAULT_NAMES[section.partition("[")[0]])
    kind: Any = GivenInPython
    if not given or name != GIVEN:
        name, kind = find_entry(f"{section}.name", name, registry, problems)
    if kind is None:
        return name, None
    if section == "method":
        try:
            check_method_class(kind)
        except UserError as problem:
            problems.append(f"method.name: {problem}")
            return name, None
    return name, check(
        section, kind, {key: value for key, value in table.items() if key != "name"}, problems, label(name)
    )


def choose_nets(value: Any, problems: list[str]) -> tuple[NetChoice, ...]:
    """The nets of [net], or of several [[net]] tables."""
    tables = value if isinstance(value, list) else [value]
    if not tables or not all(isinstance(table, Mapping) for table in tables):
        problems.append(f"[net]: got {toml_value(value)}; must be a table with a name, or a list of them ([[net]])")
        return ()
    choices = []
    for number, table in enumerate(tables, 1):
        section = "net" if len(tables) == 1 else f"net[{number}]"
        common = {key: table[key] for key in ("share", "weights") if key in table}
        name, design = choose_part(
            section, NETS, {key: table[key] for key in table if key not in common}, problems, given=True
        )
        keys = check(section, NetKeys, common, problems)
        if design is not None and keys is not None:
            choices.append(NetChoice(name, design, keys.share, keys.weights))
    return tuple(choices)
