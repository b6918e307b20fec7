"""Groups of stored runs that differ only in their seeds, and names for groups and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protofed.errors import UserError
from protofed.experiment.options import SHARES_OR_NUMBERS, toml_value
from protofed.experiment.stored import GIVEN, MAY_CHANGE, StoredRun
from protofed.plugins import label, name_without_folder

_MAY_DIFFER = {"run.seed", "run.eval_every", *MAY_CHANGE} - {"run.rounds", "run.seconds"}
"""Settings in which the runs of one group may differ, in addition to those of [engine]."""
ROOT_IS_THE_DATA = ("leaf", "npz", "table", "voc", "voc_macro")
"""Datasets whose files data.root names; runs on different files are not runs of one experiment."""
_MOST_SETTINGS = 2
"""Names of groups with more settings than this are shortened."""


def _flat_settings(run: StoredRun, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that distinguish a group of runs from others, as "section.key" and value."""
    tables = {section: keys if isinstance(keys, dict) else {"": keys} for section, keys in settings.items()}
    flat = {f"{section}.{key}": value for section, keys in tables.items() for key, value in keys.items()}
    kept = {key: value for key, value in flat.items() if key not in _MAY_DIFFER and not key.startswith("engine.")}
    names = {key: name_without_folder(value) for key, value in kept.items() if key.endswith(".name")}
    shares = {key: toml_value(kept[key]) for key in SHARES_OR_NUMBERS if key in kept}  # 1 is not 1.0
    return kept | names | shares | {"data.name": run.data} | _given_parts(run, flat)


def _given_parts(run: StoredRun, flat: Mapping[str, Any]) -> dict[str, str]:
    """What tells data and nets of the user apart: the path of the data, or hashes of those given in Python."""
    parts = {}
    if flat["data.name"] in ROOT_IS_THE_DATA or ":" in flat["data.name"]:
        parts["data.root"] = str(flat.get("data.root", ""))
    if GIVEN in (flat["data.name"], flat.get("net.name")):
        partition = run.partition()
        with_recipes = any("recipe" in client for client in partition.get("clients", ()))  # split anew for every seed
        hashes = {"data.name": "" if with_recipes else "sha256", "net.name": "nets"}
        for key, name in hashes.items():
            if flat.get(key) == GIVEN and name in partition:
                parts[key.replace("name", "hash")] = partition[name][:8]
    return parts


def _all_settings(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """The settings of every run. Keys that an older version did not know yet get their defaults."""
    every = [_flat_settings(run, run.settings) for run in runs]
    names = ("method.name", "net.name", "partition.name")
    keys: dict[Any, frozenset[str]] = {}
    if all(keys.setdefault(tuple(map(flat.get, names)), frozenset(flat)) == flat.keys() for flat in every):
        return every
    complete = []
    for run, flat in zip(runs, every, strict=True):
        try:
            complete.append(_flat_settings(run, run.config.table()))
        except UserError:  # for example, the method is no longer there
            complete.append(flat)
    return complete


def group_by_setting(runs: Sequence[StoredRun]) -> dict[str, list[StoredRun]]:
    """Groups of runs that differ only in their seeds, by a name: the method and the settings that differ.

    Two runs of one seed, for example with two engines, are not in one group: it has a figure per seed.
    """
    groups: list[tuple[dict[str, Any], list[StoredRun]]] = []
    for run, settings in zip(runs, _all_settings(runs), strict=True):
        for group_settings, group in groups:
            twice = [other for other in group if other.seed == run.seed and not _is_same_run(other, run)]
            if group_settings == settings and group[0].label == run.label and not twice:
                group.append(run)
                break
        else:
            groups.append((settings, [run]))
    every, named = [settings for settings, _ in groups], {}
    for settings, group in groups:
        name = group[0].label if _is_a_name(group[0].label) else _group_name(settings, every)
        going_on = next((run.unfinished for run in group if run.unfinished), "")
        name = f"{name} ({going_on})" if going_on else name
        while name in named:  # for example, runs of one method from two sweeps
            name += "'"
        named[name] = group
    return named


def _is_same_run(first: StoredRun, second: StoredRun) -> bool:
    return first.folder == second.folder and first.in_memory is second.in_memory


def _is_a_name(label: str) -> bool:
    """Whether the label of a setting was chosen by a person: others are words such as "method.pull=0.5"."""
    return bool(label) and "=" not in label


def _group_name(settings: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> str:
    """The method, the dataset if the groups have several, and the settings in which groups of the method differ.

    Of many settings, only those that are needed to tell the groups apart are named, and dots stand for the others.

    >>> fast, slow = ({"method.name": "fedavg", "train.lr": lr, "data.name": "mnist"} for lr in (0.1, 0.01))
    >>> _group_name(slow, [fast, slow])
    'fedavg, lr=0.01'
    """
    same_method = [other for other in every if other["method.name"] == settings["method.name"]]
    differing = [key for key in settings if any(other.get(key) != settings[key] for other in same_method)]
    sections = {key.partition(".")[0] for key in differing if key.endswith(".name")}  # other options of another name
    differing = [key for key in differing if key.endswith(".name") or key.partition(".")[0] not in sections]
    if any(other["data.name"] != settings["data.name"] for other in every):
        differing = ["data.name", *(key for key in differing if key != "data.name")]
    named, more = differing, ""
    if len(differing) > _MOST_SETTINGS:
        named, left = [], [other for other in same_method if other is not settings]
        for key in differing:
            if remaining := [other for other in left if other.get(key) != settings[key]]:
                named.append(key)
                left = [other for other in left if other not in remaining]
        more = ", ..." if len(named) < len(differing) else ""

    def shown(key: str) -> str:
        section, _, last = key.partition(".")
        value = toml_value(settings[key]).strip('"')
        return label(value) if last == "name" else f"{last or section}={value}"

    return ", ".join([label(settings["method.name"]), *map(shown, named)]) + more


def titles(runs: Sequence[StoredRun]) -> list[str]:
    """A title for each run: the name of its group, its seed if the group has several runs, and the dataset."""
    by_run, datasets = {}, {run.data for run in runs}
    for name, group in group_by_setting(runs).items():
        for run in group:
            title = f"{name}, seed {run.seed}" if len(group) > 1 else name
            by_run[id(run)] = f"{title} on {run.data}" if len(datasets) == 1 else title
    return [by_run[id(run)] for run in runs]
