"""The experiment file: typed sections, defaults, and errors that help.

Every section is a frozen dataclass whose fields are its keys: see `sections.py`; those of [train] live in `local.py`,
those of a method, a net or a partition with the thing itself.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protofed.core import AnyMethod
from protofed.data.partitions import PARTITIONS
from protofed.data.partitions.base import Partition
from protofed.data.sources import SOURCES
from protofed.errors import ConfigError, UserError, did_you_mean
from protofed.experiment.options import check, check_name, options, toml_value
from protofed.experiment.sections import (
    DataSection,
    EngineSection,
    EvalSection,
    GivenInPython,
    NetChoice,
    NetKeys,
    RunSection,
    SystemSection,
)
from protofed.methods import METHODS
from protofed.nets import NETS
from protofed.training import TrainSection

_DEFAULT = {"partition": "nway", "net": "mlp", "method": "fedproto"}
"""What a section is when it has no name."""
GIVEN = "given"
"""The name of data, partition and nets that a `protofed.Federation` brings along: arrays and modules, from Python."""

MAY_CHANGE = (
    "run.rounds",
    "run.checkpoint_every",
    "run.trace_every",
    "run.tensorboard",
    "data.root",
    "engine.workers",
    "engine.reason",
)
"""What may change when a run is resumed: the result is the same."""


@dataclass(frozen=True)
class Config:
    """A whole experiment, resolved."""

    run: RunSection
    data: DataSection
    partition_name: str
    partition: Partition
    nets: tuple[NetChoice, ...]
    method_name: str
    method: AnyMethod
    train: TrainSection
    eval: EvalSection
    system: SystemSection
    engine: EngineSection

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Config:
        """Check a table of sections; everything that is wrong is reported at once."""
        problems: list[str] = []
        sections = ("run", "data", "partition", "net", "method", "train", "eval", "system", "engine")
        for name, value in table.items():
            if name not in sections:
                what = "unknown section" if isinstance(value, Mapping) else "a key outside any section"
                problems.append(f"[{name}]: {what}. {did_you_mean(name, sections)}")
            elif name != "net" and not isinstance(value, Mapping):
                problems.append(f"[{name}]: got {toml_value(value)}, must be a table of keys")
        tables = {name: value for name, value in table.items() if isinstance(value, Mapping) or name == "net"}
        got = {name: tables.get(name, {}) for name in sections}
        data = check("data", DataSection, got["data"], problems)
        if data and data.name != GIVEN:
            check_name("data.name", data.name, SOURCES, problems)
        engine = check("engine", EngineSection, got["engine"], problems)
        own: dict[str, type[Any]] = {GIVEN: GivenInPython} if data and data.name == GIVEN else {}
        partition_name, partition = _named("partition", {**PARTITIONS, **own}, got["partition"], problems)
        method_name, method = _named("method", METHODS, got["method"], problems)
        config = cls(
            run=check("run", RunSection, got["run"], problems),
            data=data,
            partition_name=partition_name,
            partition=partition,
            nets=_net_choices(got["net"], {**NETS, **own}, problems),
            method_name=method_name,
            method=method,
            train=check("train", TrainSection, got["train"], problems),
            eval=check("eval", EvalSection, got["eval"], problems),
            system=check("system", SystemSection, got["system"], problems),
            engine=engine,
        )
        if problems:
            raise ConfigError(problems)
        return config

    def counted(self, clients: int) -> Config:
        """The experiment once it is known how many clients there are."""
        if isinstance(self.run.sample, int) and self.run.sample > clients:
            raise ConfigError([f"run.sample: got {self.run.sample}, but there are {clients} clients"])
        return replace(self, data=replace(self.data, clients=clients))

    @classmethod
    def load(cls, file: str | Path | None = None, sets: Sequence[str] = ()) -> Config:
        """Read an experiment file (none: the defaults) and change it by "section.key=value" words."""
        table = _read_toml(Path(file)) if file else {}
        names_first = sorted(sets, key=lambda word: not word.partition("=")[0].strip().endswith(".name"))
        problems = [problem for word in names_first if (problem := _apply_set(table, word))]
        try:
            made = cls.of(table)
        except ConfigError as wrong:
            problems += wrong.problems
        if problems:
            raise ConfigError(problems)
        return made

    def digest(self) -> str:
        """A hash of the experiment; what a resumed run may change does not count."""
        table = self.table()
        for place in MAY_CHANGE:
            section, _, key = place.partition(".")
            del table[section][key]
        return hashlib.sha256(repr(table).encode()).hexdigest()

    def table(self) -> dict[str, Any]:
        """Everything resolved, as sections of plain values: `Config.of` gives the same experiment again."""
        nets = [
            {
                "name": net.name,
                **({"share": net.share} if len(self.nets) > 1 else {}),
                **({"weights": net.weights} if net.weights else {}),
                **options(net.design),
            }
            for net in self.nets
        ]
        return {
            "run": options(self.run),
            "data": options(self.data),
            "partition": {"name": self.partition_name, **options(self.partition)},
            "net": nets if len(nets) > 1 else nets[0],
            "method": {"name": self.method_name, **options(self.method)},
            "train": options(self.train),
            "eval": options(self.eval),
            "system": options(self.system),
            "engine": options(self.engine),
        }


def changed_keys(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two experiments and matters: keys, or whole sections where another thing is named."""
    different = []
    for section, old in before.items():
        new = after[section]
        if isinstance(old, list) or isinstance(new, list) or old.get("name") != new.get("name"):
            different += [section] if repr(old) != repr(new) else []  # repr: 1 client a round is not the share 1.0
        else:
            different += [f"{section}.{key}" for key in old if repr(old[key]) != repr(new[key])]
    return [key for key in different if key not in MAY_CHANGE]


def _read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, not an experiment file. To repeat a run, give {path / 'config.toml'}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(
            f"There is no experiment file {path}. `protofed list recipes` shows those that come with protofed."
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UserError(f"{path} is not a readable TOML file: {problem}.") from problem


def _apply_set(table: dict[str, Any], word: str) -> str | None:
    """Put a "section.key=value" word into the table; what is wrong with the word, if anything.

    A value is read as TOML, or else as text. A new `name` drops the section's other keys: they were the old one's.
    """
    place, equals, text = word.partition("=")
    section, dot, key = place.strip().partition(".")
    if not (equals and dot and section and key):
        return f"--set {word}: must look like section.key=value, for example --set train.lr=0.1"
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    old = table.get(section, {})
    same = isinstance(old, dict) and old.get("name", _DEFAULT.get(section)) == value
    if key == "name" and section in _DEFAULT and not same:
        old = {}
    if not isinstance(old, dict):
        return f"--set {word}: [{section}] is not a table in the file; change it there."
    table[section] = {**old, key: value}
    return None


def _named(
    section: str, registry: Mapping[str, type[Any]], table: Mapping[str, Any], problems: list[str]
) -> tuple[str, Any]:
    """The thing a section names, made with the section's other keys."""
    name = table.get("name", _DEFAULT[section.partition("[")[0]])
    if not check_name(f"{section}.name", name, registry, problems):
        return str(name), None
    return name, check(
        section, registry[name], {key: value for key, value in table.items() if key != "name"}, problems, name
    )


def _net_choices(got: Any, registry: Mapping[str, type[Any]], problems: list[str]) -> tuple[NetChoice, ...]:
    """The nets of [net], or of several [[net]]."""
    tables = got if isinstance(got, list) else [got]
    if not tables or not all(isinstance(table, Mapping) for table in tables):
        problems.append(f"[net]: got {toml_value(got)}, must be a table with a name, or a list of them ([[net]])")
        return ()
    choices = []
    for number, table in enumerate(tables, 1):
        place = "net" if len(tables) == 1 else f"net[{number}]"
        common = {key: table[key] for key in ("share", "weights") if key in table}
        name, design = _named(place, registry, {key: table[key] for key in table if key not in common}, problems)
        keys = check(place, NetKeys, common, problems) or NetKeys()
        choices.append(NetChoice(name, design, keys.share, keys.weights))
    return tuple(choices)
