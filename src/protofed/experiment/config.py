"""The experiment file: typed sections with defaults, and helpful error messages.

Every section is a frozen dataclass; its fields are the keys of the section. `sections.py` lists the sections. Those of
methods, nets and partitions are the dataclasses of the methods, nets and partitions themselves.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from protofed.core import AnyMethod
from protofed.data.partitions import PARTITIONS
from protofed.data.partitions.base import Partition
from protofed.data.sources import SOURCES
from protofed.errors import ConfigError, UserError, did_you_mean
from protofed.experiment.options import check, check_name, options, toml_or_text, toml_value
from protofed.experiment.recipes import recipe_files
from protofed.experiment.sections import (
    SECTIONS,
    TABLE,
    DataSection,
    EngineSection,
    EvalSection,
    GivenInPython,
    NetChoice,
    NetKeys,
    RunSection,
    SystemSection,
    table_problems,
)
from protofed.experiment.stored import MAY_CHANGE
from protofed.methods import METHODS
from protofed.nets import NETS
from protofed.training import TrainSection

_RETIRED = {"engine": {"compile": False}}
"""Keys that no longer exist, with the value that had no effect: files of earlier versions with it can be read."""
_DEFAULT = {"partition": "nway", "net": "mlp", "method": "fedproto"}
"""The `name` of these sections if the experiment has none."""
GIVEN = "given"
"""The name of data, partitions and nets that come from Python, in a `protofed.Federation`."""

DEFAULTS = 1
"""The version of all default values. It enters the hash of an experiment: raise it when a default, or what a value
means, changes."""


@dataclass(frozen=True)
class Config:
    """An experiment with a value for every option."""

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
        """Check a table of sections. All problems are reported at once."""
        problems: list[str] = []
        names = (*SECTIONS, *_DEFAULT)
        for name, value in table.items():
            if name == "compare":
                problems.append("[[compare]]: these are the settings of a sweep. Run the file with `protofed sweep`.")
            elif name not in names:
                problem = "unknown section" if isinstance(value, Mapping) else "a key outside any section"
                problems.append(f"[{name}]: {problem}. {did_you_mean(name, names)}")
            elif name != "net" and not isinstance(value, Mapping):
                problems.append(f"[{name}]: got {toml_value(value)}; must be a table of keys")
        tables = {name: _without_retired(name, value) for name, value in table.items() if isinstance(value, Mapping)}
        sections: dict[str, Any] = {
            name: check(name, kind, tables.get(name, {}), problems) for name, kind in SECTIONS.items()
        }
        from_python: dict[str, type[Any]] = {}
        if data := sections["data"]:
            if data.name == GIVEN:
                from_python = {GIVEN: GivenInPython}
            else:
                check_name("data.name", data.name, SOURCES, problems)
        problems += train.contradictions() if (train := sections["train"]) else []
        if (scoring := sections["eval"]) and (run := sections["run"]) and run.seconds and scoring.personal:
            problems.append(
                "run.seconds: cannot be used together with eval.personal, which scores each client's model in the last "
                "round that the client takes part in: a time budget leaves open which round that is. Use one of them."
            )
        if (run := sections["run"]) and run.seconds and run.eval_last:
            problems.append("run.seconds: cannot be used together with run.eval_last. Use one of them.")
        if data:
            problems += table_problems(data, tables.get("partition"))
            if data.name == TABLE:
                tables.setdefault("partition", {"name": "natural"})
        partition_name, partition = _choose(
            "partition", {**PARTITIONS, **from_python}, tables.get("partition", {}), problems
        )
        method_name, method = _choose("method", METHODS, tables.get("method", {}), problems)
        nets = _choose_nets(table.get("net", {}), {**NETS, **from_python}, problems)
        if problems:
            raise ConfigError(problems)
        return cls(
            **sections,
            partition_name=partition_name,
            partition=partition,
            nets=nets,
            method_name=method_name,
            method=method,
        )

    def with_clients(self, clients: int) -> Config:
        """The experiment with the number of clients that it has, which may follow from the data."""
        if isinstance(self.run.sample, int) and self.run.sample > clients:
            raise ConfigError(
                [f"run.sample: got {self.run.sample}, but there are {clients} clients. Use {clients} or fewer."]
            )
        return replace(self, data=replace(self.data, clients=clients))

    def with_seed(self, seed: int) -> Config:
        """The experiment with another seed."""
        return replace(self, run=replace(self.run, seed=seed))

    def with_rounds(self, rounds: int) -> Config:
        """The experiment with the number of rounds that were done, which is smaller if run.seconds ended the run."""
        return replace(self, run=replace(self.run, rounds=rounds))

    @classmethod
    def load(cls, file: str | Path | Mapping[str, Any] | None = None, sets: Sequence[str] = ()) -> Config:
        """Read an experiment file or its tables (without one: the defaults) and apply "section.key=value" changes."""
        table = dict(file) if isinstance(file, Mapping) else read_toml(Path(file)) if file else {}
        names_first = sorted(sets, key=lambda word: not word.partition("=")[0].strip().endswith(".name"))
        problems = [problem for word in names_first if (problem := _apply_set(table, word))]
        try:
            config = cls.of(table)
        except ConfigError as invalid:
            raise ConfigError([*problems, *invalid.problems]) from None
        if problems:
            raise ConfigError(problems)
        return config

    def digest(self) -> str:
        """A hash of the experiment without the keys that a resumed run may change.

        Only values that differ from their defaults enter it, so that an option that is added later, with a default that
        changes nothing, leaves the hashes of earlier runs as they are. `DEFAULTS` must change when a default does.
        """
        table = {section: _not_default(values) for section, values in self._sections().items()}
        for name in MAY_CHANGE:
            section, _, key = name.partition(".")
            table[section].pop(key, None)
        nets = [[net.name, net.share, net.weights, _not_default(net.design)] for net in self.nets]
        names = (self.partition_name, self.method_name)
        return hashlib.sha256(repr((DEFAULTS, table, names, nets)).encode()).hexdigest()

    def _sections(self) -> dict[str, Any]:
        """The dataclass of each section but [net], which may occur several times."""
        return {
            "run": self.run,
            "data": self.data,
            "partition": self.partition,
            "method": self.method,
            "train": self.train,
            "eval": self.eval,
            "system": self.system,
            "engine": self.engine,
        }

    def table(self) -> dict[str, Any]:
        """All sections with plain values. `Config.of` makes the same experiment of them."""
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


def _not_default(section: Any) -> dict[str, Any]:
    """The options of a section that differ from their defaults, and those that have no default."""
    defaults = {field.name: field.default for field in fields(section)}
    return {key: value for key, value in options(section).items() if getattr(section, key) != defaults[key]}


def changed_keys(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The keys in which two experiments differ, without those of `MAY_CHANGE`; a section if its name differs."""
    different = []
    for section, old in before.items():
        new = after[section]
        if isinstance(old, list) or isinstance(new, list) or old.get("name") != new.get("name"):
            different += [section] if repr(old) != repr(new) else []  # by repr, because 1 client is not the share 1.0
        else:
            different += [f"{section}.{key}" for key in old if repr(old[key]) != repr(new[key])]
    return [key for key in different if key not in MAY_CHANGE]


def _without_retired(section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A section without the keys that no longer exist and had no effect."""
    retired = _RETIRED.get(section, {})
    return {key: value for key, value in table.items() if not (key in retired and value is retired[key])}


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, not an experiment file. To repeat a run, give {path / 'config.toml'}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        if path.parent == Path("recipes") and (shipped := [one for one in recipe_files() if one.name == path.name]):
            return read_toml(shipped[0])
        raise UserError(
            f"There is no experiment file {path}. `protofed list recipes` shows those that come with protofed."
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UserError(f"{path} is not a readable TOML file: {problem}.") from problem


def _apply_set(table: dict[str, Any], word: str) -> str | None:
    """Apply a "section.key=value" word to the table. Returns the problem with the word, or None.

    The value is read as TOML, or as text if it is not TOML. A new `name` drops the other keys of its section, because
    they are the options of the old name.
    """
    name, equals, text = word.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        return f"--set {word}: must look like section.key=value, for example --set train.lr=0.1"
    value = toml_or_text(text)
    old = table.get(section, {})
    same_name = isinstance(old, dict) and old.get("name", _DEFAULT.get(section)) == value
    if key == "name" and section in _DEFAULT and not same_name:
        old = {}
    if not isinstance(old, dict):
        return f"--set {word}: [{section}] is not a table in the file. Change it in the file."
    table[section] = {**old, key: value}
    return None


def _choose(
    section: str, registry: Mapping[str, type[Any]], table: Mapping[str, Any], problems: list[str]
) -> tuple[str, Any]:
    """The name in a section, and the dataclass registered under it, with the section's other keys as its fields."""
    name = table.get("name", _DEFAULT[section.partition("[")[0]])
    if not check_name(f"{section}.name", name, registry, problems):
        return str(name), None
    return name, check(
        section, registry[name], {key: value for key, value in table.items() if key != "name"}, problems, name
    )


def _choose_nets(value: Any, registry: Mapping[str, type[Any]], problems: list[str]) -> tuple[NetChoice, ...]:
    """The nets of [net], or of several [[net]] tables."""
    tables = value if isinstance(value, list) else [value]
    if not tables or not all(isinstance(table, Mapping) for table in tables):
        problems.append(f"[net]: got {toml_value(value)}; must be a table with a name, or a list of them ([[net]])")
        return ()
    choices = []
    for number, table in enumerate(tables, 1):
        section = "net" if len(tables) == 1 else f"net[{number}]"
        common = {key: table[key] for key in ("share", "weights") if key in table}
        name, design = _choose(section, registry, {key: table[key] for key in table if key not in common}, problems)
        keys = check(section, NetKeys, common, problems)
        if design is not None and keys is not None:
            choices.append(NetChoice(name, design, keys.share, keys.weights))
    return tuple(choices)
