"""The names in an experiment that stand for code outside the package: their paths, and where the code came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.data.partitions import PARTITIONS
from protofed.data.sources import SOURCES
from protofed.experiment.encoder_files import ENCODERS, is_file
from protofed.experiment.folder import write_atomically
from protofed.experiment.reading import read_json
from protofed.experiment.trackers import WATCHERS
from protofed.methods import METHODS
from protofed.nets import NETS
from protofed.plugins import Registry, absolute_name, name_without_folder, origin_of, relative_name
from protofed.trust.known_code import remember, require_known

if TYPE_CHECKING:
    from protofed.experiment.config import Config

CODE = "code.json"
"""The file in a run folder that says where its code outside the package came from."""
_NAMED: dict[str, Registry[Any]] = {"method": METHODS, "partition": PARTITIONS, "net": NETS, "data": SOURCES}
Change = Callable[[Registry[Any], Any], Any]


def change_names(table: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The tables of an experiment, with `change(registry, name)` in the place of every name."""

    def changed(section: str, value: Any) -> Any:
        if isinstance(value, list) and section == "compare":  # the settings of a sweep
            return [change_names(part, change) if isinstance(part, Mapping) else part for part in value]
        if isinstance(value, list) and section == "net":
            return [changed(section, part) for part in value]
        if isinstance(value, Mapping) and section in _NAMED:
            named = {"name": change(_NAMED[section], value["name"])} if "name" in value else {}
            encoder = value.get("encoder")
            if section == "data" and isinstance(encoder, str) and encoder and not is_file(encoder):
                named["encoder"] = change(ENCODERS, encoder)
            return {**value, **named}
        if isinstance(value, Mapping) and section == "run" and isinstance(value.get("watchers"), list | tuple):
            return {**value, "watchers": [change(WATCHERS, name) for name in value["watchers"]]}
        return value

    return {section: changed(section, value) for section, value in table.items()}


def with_absolute_paths(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tables of an experiment file, in which the paths of code are relative to the folder of the file."""
    return change_names(table, lambda _, name: absolute_name(name, folder))


def with_relative_paths(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tables for a config.toml in this folder."""
    return change_names(table, lambda _, name: relative_name(name, folder.resolve()))


def without_folders(table: Mapping[str, Any]) -> dict[str, Any]:
    """The tables with names that stay the same when a file moves."""
    return change_names(table, lambda _, name: name_without_folder(name))


def names_outside(table: Mapping[str, Any]) -> list[tuple[Registry[Any], str]]:
    """The names that are not entries of the package."""
    names: list[tuple[Registry[Any], str]] = []

    def collect(registry: Registry[Any], name: Any) -> Any:
        if isinstance(name, str) and name not in registry:
            names.append((registry, name))
        return name

    change_names(table, collect)
    return names


def with_names_of(table: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The tables, in which code that another experiment has, too, is where the other experiment has it."""
    places = {name_without_folder(name): name for _, name in names_outside(other)}
    return change_names(table, lambda _, name: places.get(name_without_folder(name), name) if name else name)


def require_known_code(folder: Path, table: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
    """Raise an error if a run folder names code that may not be run; `chosen`: tables of names that the user typed."""
    typed = {name for _, name in names_outside(chosen)}
    names = [(registry, name) for registry, name in names_outside(table) if name not in typed]
    if names:
        require_known(folder, names, recorded_code(folder))


def recorded_code(folder: Path) -> dict[str, Any]:
    """The content of code.json: by name, where the code of a run came from; {} if all of it is the package's."""
    return read_json(folder / CODE) if (folder / CODE).exists() else {}


def code_of(config: Config) -> dict[str, Any]:
    """For every name of code outside the package: its module, its file, and the sha256 of the file."""
    entries: list[tuple[str, Any]] = [
        (config.method_name, type(config.method)),
        (config.partition_name, type(config.partition)),
        *((net.name, type(net.design)) for net in config.nets),
        *((name, WATCHERS.find(name)[1]) for name in config.run.watchers),
    ]
    if config.data.encoder and not is_file(config.data.encoder):
        entries.append((config.data.encoder, ENCODERS.find(config.data.encoder)[1]))
    if config.data.name not in ("given", *SOURCES.keys()):
        entries.append((config.data.name, SOURCES.find(config.data.name)[1]))
    origins = {name_without_folder(name): origin_of(entry) for name, entry in entries}
    return {name: origin._asdict() for name, origin in origins.items() if origin}


def remember_code(config: Config) -> None:
    """Add the files of an experiment that the user named herself to those that she has run."""
    remember((code["sha256"], code["file"]) for code in code_of(config).values())


def write_code(folder: Path, config: Config) -> None:
    """Write code.json if the run has code outside the package. Hashes of earlier versions are kept."""
    code, before = code_of(config), recorded_code(folder)
    for name, entry in code.items():
        old = before.get(name, entry)
        earlier = old.get("earlier", []) + ([old["sha256"]] if old["sha256"] != entry["sha256"] else [])
        if earlier:
            entry["earlier"] = earlier
    if code:
        write_atomically(folder / CODE, (json.dumps(code, indent=2) + "\n").encode())
