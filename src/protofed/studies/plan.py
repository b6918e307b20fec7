"""The runs of a sweep: settings from a grid and from [[compare]] tables, seeds, and the folder that lists them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from protofed.errors import ConfigError, UserError
from protofed.experiment.config import Config, read_toml
from protofed.experiment.folder import write_atomically
from protofed.experiment.options import toml_or_text, toml_value
from protofed.experiment.own_code import require_known_code
from protofed.experiment.stored import PLAN, is_sweep, read_plan
from protofed.plugins import label

Experiment = Config | Mapping[str, Any] | str | Path | None
"""What a sweep varies: an experiment, its tables, or its file; None: the defaults."""
_LONGEST_NAME = 200
"""The most bytes that the name of a setting's folder has; file systems allow up to 255."""


class SweepRun(NamedTuple):
    """One run of a sweep."""

    setting: str  # "method.pull=0.5 train.lr=0.1", or its label
    seed: int
    out: Path
    config: Config
    words: tuple[str, ...] = ()


class Setting(NamedTuple):
    """A setting of a sweep: its name, the words that make it, and its own experiment file, if it has one."""

    name: str
    words: tuple[str, ...] = ()  # "section.key=value"
    file: Path | None = None


class SweepPlan(NamedTuple):
    """All runs of a sweep, seed by seed, and remarks for the user."""

    runs: list[SweepRun]
    notes: list[str]


def grid_settings(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination of the values in "section.key=a,b,c" words. The first word changes slowest.

    >>> grid_settings(["method.pull=0,1", "net.hidden=[8],[8,8]"])[1:3]
    [('method.pull=0', 'net.hidden=[8,8]'), ('method.pull=1', 'net.hidden=[8]')]
    """
    choices: dict[str, list[str]] = {}
    for word in words:
        key, equals, values = (part.strip() for part in word.partition("="))
        if not (equals and "." in key and values):
            raise UserError(f"--grid {word}: must look like section.key=a,b,c, for example --grid method.pull=0,1,2")
        if key == "run.seed":
            raise UserError(f"--grid {word}: the seeds are chosen by --seeds. Use --seeds {values}.")
        if key in choices:
            raise UserError(f"--grid {word}: {key} is given twice. Give all its values at once, separated by commas.")
        choices[key] = [f"{key}={value}" for value in _split_values(values)]
        if not choices[key]:
            raise UserError(f"--grid {word}: there are no values. Give some, for example --grid method.pull=0,1,2")
    return list(product(*choices.values()))


def _split_values(values: str) -> list[str]:
    """The values between commas. A comma in brackets or quotes does not separate values."""
    parts, depth, quote, escaped = [""], 0, "", False
    for letter in values:
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and quote == '"' and not escaped
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def grid_words(grid: Mapping[str, Sequence[Any]] | Sequence[str]) -> list[str]:
    """The words of a grid that was given in Python as values by key."""
    if not isinstance(grid, Mapping):
        return list(grid)
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UserError(f'grid: the values of {key} must be a list, for example {{"{key}": [{values!r}]}}.')
    return [f"{key}={','.join(map(_grid_value, values))}" for key, values in grid.items()]


def _grid_value(value: Any) -> str:
    """A value among others: in quotes if it would otherwise be taken for several."""
    plain = _plain_value(value)
    return plain if _split_values(f"{plain},0") == [plain, "0"] else toml_value(value)


def _plain_value(value: Any) -> str:
    """A value as in "section.key=value", without quotes where they are not needed."""
    return value if isinstance(value, str) and value and toml_or_text(value) == value else toml_value(value)


def parse_seeds(seeds: str | int | Sequence[int]) -> tuple[int, ...]:
    """The seeds 0, 1, ... from their number, or those of a list.

    >>> parse_seeds("3"), parse_seeds("0,4,7"), parse_seeds([5])
    ((0, 1, 2), (0, 4, 7), (5,))
    """
    requirement = "must be the number of seeds (3 gives 0, 1, 2) or a list of different ones (0,4,7)"
    try:
        if isinstance(seeds, str):
            parts = [int(part) for part in seeds.split(",") if part.strip()]
            seeds = parts if "," in seeds else parts[0]
        chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(map(int, seeds))
    except (ValueError, TypeError, IndexError):
        raise UserError(f"--seeds: got {seeds}; {requirement}.") from None
    if not chosen or min(chosen) < 0 or len(set(chosen)) < len(chosen):
        raise UserError(f"--seeds: got {seeds}; {requirement}.")
    return chosen


def compare_settings(tables: Any) -> list[Setting]:
    """The settings of [[compare]] tables: the sections and keys in which each differs, and an optional label."""
    if not isinstance(tables, Sequence) or not all(isinstance(table, Mapping) for table in tables):
        raise UserError("[[compare]]: must be a list of tables, each with keys such as method.name and method.pull.")
    settings = []
    for number, table in enumerate(tables, 1):
        words = []
        for section, keys in table.items():
            if section == "label":
                continue
            if not isinstance(keys, Mapping):
                raise UserError(
                    f"[[compare]] {number}: {section} = {toml_value(keys)} is not a table of keys. Write section.key = "
                    "value, for example method.name, and give lists such as [[net]] in files of their own (--runs)."
                )
            words += [f"{section}.{key}={_plain_value(value)}" for key, value in keys.items()]
        if "run.seed" in [word.partition("=")[0] for word in words]:
            raise UserError(f"[[compare]] {number}: run.seed: the seeds are chosen by --seeds.")
        settings.append(Setting(str(table.get("label", "")), tuple(words)))
    return _named(settings)


def _named(settings: Sequence[Setting]) -> list[Setting]:
    """The settings with names: their labels, or their words with the names first and without sections."""
    names = [setting.name or _short_name(setting.words) for setting in settings]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f'[[compare]]: two settings are called "{doubled[0]}". Give each another label.')
    return [setting._replace(name=name) for setting, name in zip(settings, names, strict=True)]


def _short_name(words: Sequence[str]) -> str:
    """A name for a setting without a label.

    >>> _short_name(["method.pull=0.5", "method.name=fedproto"])
    'fedproto pull=0.5'
    """
    names = [label(word.partition("=")[2]) for word in words if word.partition("=")[0].endswith(".name")]
    others = [word.partition(".")[2] for word in words if not word.partition("=")[0].endswith(".name")]
    return " ".join([*names, *others]) or "as it is"


def file_settings(files: Sequence[Path]) -> list[Setting]:
    """A setting per experiment file, with the name of the file."""
    names = [file.stem for file in files]
    if len(set(names)) < len(names):
        names = [str(file.with_suffix("")) for file in files]
    return [Setting(name, (), file) for name, file in zip(names, files, strict=True)]


def plan_sweep(
    experiment: Experiment,
    out: Path,
    seeds: Sequence[int],
    grid: Sequence[str] = (),
    settings: Sequence[Setting] = (),
    sets: Sequence[str] = (),
) -> SweepPlan:
    """All runs, seed by seed. Errors in any of them are raised together before the first run begins.

    `settings`: what is compared; without any, those of the file's [[compare]] tables. Each is combined with each
    combination of the grid. Settings that are the same experiment are made once.
    """
    for word in sets:
        if word.partition("=")[0].strip() == "run.seed":
            raise UserError(f"--set {word}: the seeds of a sweep are chosen by --seeds.")
    table = _table(experiment)
    compared = [*compare_settings(table.pop("compare", ())), *settings] or [Setting("")]
    every = [
        Setting(" ".join(filter(None, [one.name, *words])), (*one.words, *words), one.file)
        for one, words in product(compared, grid_settings(grid))
    ]
    problems: dict[str, list[str]] = {}
    configs: dict[str, Config] = {}
    for one in every:
        try:
            configs[one.name] = Config.load(
                one.file or table, [*one.words, *sets, *_last(one.words, grid), "engine.workers=1"]
            )
        except UserError as invalid:
            for problem in invalid.problems if isinstance(invalid, ConfigError) else (str(invalid),):
                problems.setdefault(problem, []).append(one.name)
    if problems:
        raise ConfigError(
            [
                problem if len(names) == len(every) else f"{', '.join(names)}: {problem}"
                for problem, names in problems.items()
            ]
        )
    chosen: list[Setting] = []
    notes: list[str] = []
    by_content: dict[str, str] = {}
    for one in every:
        first = by_content.setdefault(repr(configs[one.name].table()), one.name)
        if first == one.name and one not in chosen:
            chosen.append(one)
        else:
            notes.append(f"{one.name} is the same experiment as {first}: it is run once.")
    folders = _folder_names(chosen)
    runs = []
    for seed, one in product(seeds, chosen):
        config = configs[one.name].with_seed(seed)
        runs.append(SweepRun(one.name, seed, out / folders[one.name] / f"seed-{seed}", config, one.words))
    _check_folder(out, runs)
    return SweepPlan(runs, notes)


def _last(words: Sequence[str], grid: Sequence[str]) -> list[str]:
    """The words of a setting that come from the grid: they count more than --set."""
    keys = {word.partition("=")[0].strip() for word in grid}
    return [word for word in words if word.partition("=")[0] in keys]


def _table(experiment: Experiment) -> dict[str, Any]:
    """The tables of an experiment, which may have [[compare]]."""
    if isinstance(experiment, Config):
        return experiment.table()
    if isinstance(experiment, Mapping):
        return dict(experiment)
    table = read_toml(Path(experiment)) if experiment else {}
    if experiment and Path(experiment).name == "config.toml":
        require_known_code(Path(experiment).parent, table, {})
    return table


def _folder_names(settings: Sequence[Setting]) -> dict[str, str]:
    """The name of the folder of each setting, by the setting's name; an error if two have the same."""
    owners: dict[str, str] = {}
    for one in settings:
        folder = one.name.replace("/", "_").replace(" ", "+") or "as-it-is"
        if folder in (".", "..") or "\0" in folder:
            raise UserError(f'The setting "{one.name}" cannot be the name of a folder. Give it another label.')
        if len(content := folder.encode()) > _LONGEST_NAME:
            ending = f"-{hashlib.sha256(content).hexdigest()[:12]}"
            folder = content[: _LONGEST_NAME - len(ending)].decode(errors="ignore") + ending
        if folder in owners:
            raise UserError(
                f'The settings "{owners[folder]}" and "{one.name}" would both have the folder {folder}. Give one of '
                "them another label."
            )
        owners[folder] = one.name
    return {name: folder for folder, name in owners.items()}


def _check_folder(out: Path, runs: Sequence[SweepRun]) -> None:
    """Raise an error if the folder belongs to a run, or to a sweep with settings or seeds that this one lacks."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder. Give another --out.")
    if (out / "config.toml").exists():
        raise UserError(f"{out} is the folder of a run. Give another --out for the sweep.")
    if is_sweep(out):
        planned = {str(run.out.relative_to(out)) for run in runs}
        others = [run for run in read_plan(out) if run["folder"] not in planned]
        if others:
            raise UserError(
                f"{out} is the folder of another sweep: it has {others[0]['setting']}, seed {others[0]['seed']}, which "
                "this one has not. Give another --out, or a sweep that includes it."
            )


def write_plan(out: Path, runs: Sequence[SweepRun]) -> None:
    """Write the list of the runs, by which other commands know the folder."""
    content = [{"setting": run.setting, "seed": run.seed, "folder": str(run.out.relative_to(out))} for run in runs]
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / PLAN, json.dumps({"runs": content}, indent=1).encode())
