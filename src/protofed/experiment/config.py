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
from protofed.experiment.choices import DEFAULT_NAMES, choose_nets, choose_part, find_encoder, find_entry
from protofed.experiment.options import SHARES_OR_NUMBERS, check, options, toml_value
from protofed.experiment.own_code import (
    names_outside,
    remember_code,
    require_known_code,
    with_absolute_paths,
    with_names_of,
    without_folders,
)
from protofed.experiment.recipes import shipped_files
from protofed.experiment.roster import rounds_between_tests, sample_problems
from protofed.experiment.sections import (
    SECTIONS,
    TABLE,
    DataSection,
    EngineSection,
    EvalSection,
    NetChoice,
    RunSection,
    SystemSection,
    table_problems,
)
from protofed.experiment.stored import GIVEN, MAY_CHANGE, require_complete
from protofed.experiment.trackers import WATCHERS
from protofed.experiment.typed_changes import apply_change
from protofed.methods import METHODS
from protofed.plugins import name_without_folder
from protofed.training import TrainSection
from protofed.trust.privacy.rules import privacy_problems
from protofed.trust.privacy.section import PrivacySection
from protofed.trust.secure_sum.totals import secure_sum_problems
from protofed.trust.trust_sections import AttackSection, TrustSection

_RETIRED = {"engine": {"compile": False}}
"""Keys that no longer exist, with the value that had no effect: files of earlier versions with it can be read."""

_LATER_SECTIONS = ("trust", "attack", "privacy")
"""Sections that enter the hash of an experiment only if a value differs from its default: older files lack them."""

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
    privacy: PrivacySection
    engine: EngineSection
    trust: TrustSection
    attack: AttackSection

    @classmethod
    def of(cls, table: Mapping[str, Any], named_by: str | Path | None = None) -> Config:
        """Check a table of sections. All problems are reported at once.

        `named_by`: the file or folder that the table comes from, if it may be somebody else's. Code outside the package
        that it names must then be known: see `trust.known_code`.
        """
        if named_by is not None:
            require_known_code(Path(named_by), table, {})
        problems: list[str] = []
        names = (*SECTIONS, *DEFAULT_NAMES)
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
        if (data := sections["data"]) and data.name != GIVEN:
            name, _ = find_entry("data.name", data.name, SOURCES, problems)
            sections["data"] = data = replace(data, name=name)
        if data:
            sections["data"] = data = replace(data, encoder=find_encoder(data.encoder, problems))
        elif isinstance(name := tables.get("data", {}).get("name", GIVEN), str) and name != GIVEN:
            find_entry("data.name", name, SOURCES, problems)  # another key of [data] is wrong, too
        if run := sections["run"]:
            found = [find_entry("run.watchers", name, WATCHERS, problems)[0] for name in run.watchers]
            sections["run"] = replace(run, watchers=tuple(found))
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
        given = data is not None and data.name == GIVEN
        partition_name, partition = choose_part("partition", PARTITIONS, tables.get("partition", {}), problems, given)
        method_name, method = choose_part("method", METHODS, tables.get("method", {}), problems)
        nets = choose_nets(table.get("net", {}), problems)
        privacy = sections["privacy"]
        if data and method and privacy and train:
            problems += privacy_problems(privacy, method_name, method, train, data.normalised_by_data())
        if method and privacy and privacy.secure_sum and (trust := sections["trust"]):
            problems += secure_sum_problems(method_name, method, trust.special_rule)
        if problems:
            raise ConfigError(problems)
        config = cls(
            **sections,
            partition_name=partition_name,
            partition=partition,
            nets=nets,
            method_name=method_name,
            method=method,
        )
        remember_code(config)
        return config

    def with_clients(self, clients: int) -> Config:
        """The experiment with its number of clients, which may follow from the data, and the rounds between tests."""
        if problems := sample_problems(self, clients):
            raise ConfigError(problems)
        run = replace(self.run, eval_every=self.run.eval_every or rounds_between_tests(self, clients))
        return replace(self, data=replace(self.data, clients=clients), run=run)

    def with_seed(self, seed: int) -> Config:
        """The experiment with another seed."""
        return replace(self, run=replace(self.run, seed=seed))

    def with_rounds(self, rounds: int) -> Config:
        """The experiment with the number of rounds that were done, which is smaller if run.seconds ended the run."""
        return replace(self, run=replace(self.run, rounds=rounds))

    @classmethod
    def load(cls, file: str | Path | Mapping[str, Any] | None = None, sets: Sequence[str] = ()) -> Config:
        """Read an experiment file or its tables (without one: the defaults) and apply "section.key=value" changes.

        Paths of code are relative to the folder of the file, and in changes to the working directory. The code that the
        config.toml of a run folder names must be known: see `trust.known_code`.
        """
        path = Path(file) if file and not isinstance(file, Mapping) else None
        table = dict(file) if isinstance(file, Mapping) else {}
        if path:
            table = read_toml(path)
        names_first = sorted(sets, key=lambda word: not word.partition("=")[0].strip().endswith(".name"))
        problems = [problem for word in names_first if (problem := apply_change(table, word))]
        if path and path.name == "config.toml":
            typed: dict[str, Any] = {}
            for word in names_first:
                apply_change(typed, word)
            require_known_code(path.parent, table, typed)
        try:
            config = cls.of(table)
        except ConfigError as invalid:
            raise ConfigError([*problems, *invalid.problems]) from None
        if problems:
            raise ConfigError(problems)
        return config

    def stored(self, folder: Path) -> Config:
        """The experiment in a run folder. Code that this experiment has, too, is where this experiment has it."""
        path = folder / "config.toml"
        stored = read_toml(path)
        require_complete(stored, path)
        table = with_names_of(stored, self.table())
        require_known_code(folder, table, {})
        return Config.of(table)

    def __reduce__(self) -> tuple[Any, ...] | str:
        """Pickled by its tables if it has code outside the package, which another process has to find again."""
        table = self.table()
        return (_of_table, (table,)) if names_outside(table) else super().__reduce__()

    def digest(self) -> str:
        """A hash of the experiment without the keys that a resumed run may change.

        Only values that differ from their defaults enter it, so that an option that is added later, with a default that
        changes nothing, leaves the hashes of earlier runs as they are. `DEFAULTS` must change when a default does.
        """
        run = replace(self.run, eval_every=self.run.eval_every if self.run.eval_every > 1 else 0)  # 1: former default
        tables = {section: _not_default(values) for section, values in (self._sections() | {"run": run}).items()}
        table = without_folders({name: keys for name, keys in tables.items() if keys or name not in _LATER_SECTIONS})
        for name in MAY_CHANGE:
            section, _, key = name.partition(".")
            table[section].pop(key, None)
        nets = [[name_without_folder(net.name), net.share, net.weights, _not_default(net.design)] for net in self.nets]
        names = (name_without_folder(self.partition_name), name_without_folder(self.method_name))
        return hashlib.sha256(repr((DEFAULTS, table, names, nets)).encode()).hexdigest()

    def _sections(self) -> dict[str, Any]:
        """The dataclass of each section but [net], which may occur several times."""
        names = ("run", "data", "partition", "method", *list(SECTIONS)[2:])  # their order enters the hash
        return {name: getattr(self, name) for name in names}

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
            **{name: options(getattr(self, name)) for name in list(SECTIONS)[2:]},
        }


def _not_default(section: Any) -> dict[str, Any]:
    """The options of a section that differ from their defaults, and those that have no default."""
    defaults = {field.name: field.default for field in fields(section)}
    shares = {key.rpartition(".")[2] for key in SHARES_OR_NUMBERS}

    def is_default(key: str) -> bool:
        value, default = getattr(section, key), defaults[key]
        return value == default and (key not in shares or repr(value) == repr(default))  # 1 client is not the share 1.0

    return {key: value for key, value in options(section).items() if not is_default(key)}


def changed_keys(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The keys in which two experiments differ, without those of `MAY_CHANGE`; a section if its name differs."""
    different = []
    before, after = without_folders(before), without_folders(after)
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
    """The tables of an experiment file, with absolute paths of code: in the file they are relative to its folder."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, not an experiment file. To repeat a run, give {path / 'config.toml'}.")
    try:
        return with_absolute_paths(tomllib.loads(path.read_text(encoding="utf-8-sig")), path.parent)
    except FileNotFoundError:
        shipped = shipped_files("recipes", ".toml") if path.parent == Path("recipes") else []
        if found := [file for file in shipped if file.name == path.name]:
            return read_toml(found[0])
        raise UserError(
            f"There is no experiment file {path}. `protofed list recipes` shows those that come with protofed."
        ) from None
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"{path} is not a readable TOML file: {problem}.") from problem


def _of_table(table: Mapping[str, Any]) -> Config:
    """A pickled experiment. A function of the module, because Ray would send `Config.of` with all that it refers to."""
    return Config.of(table)
