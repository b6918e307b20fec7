"""Finished runs as pictures need them: the small files of their folders, groups of seeds, and titles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protofed.experiment.config import MAY_CHANGE, Config
from protofed.experiment.folder import Folder
from protofed.experiment.members import dataset_title
from protofed.experiment.options import toml_value
from protofed.experiment.results import Result, RoundRow

_MAY_DIFFER = {"run.seed", "run.eval_every", *MAY_CHANGE} - {"run.rounds", "run.seconds"}
"""Settings in which the runs of one curve may differ, in addition to those of [engine]."""


class FinishedRun(NamedTuple):
    """A finished run, read from the small files of its folder."""

    folder: Path
    config: Config
    summary: Mapping[str, Any]
    rounds: Sequence[RoundRow]
    clients: Sequence[RoundRow]

    @classmethod
    def load(cls, folder: Path) -> FinishedRun:
        files = Folder.existing(folder)
        return cls(folder, Config.load(folder / "config.toml"), files.result(), files.rounds(), files.clients())

    @property
    def method(self) -> str:
        return self.config.method_name

    @property
    def data(self) -> str:
        """The dataset's title."""
        return dataset_title(self.summary["dataset"], self.summary.get("remark", ""))

    def result(self) -> Result:
        """The run's models and prototypes."""
        return Result.load(self.folder)


def _curve_settings(config: Config) -> dict[str, Any]:
    """The settings that distinguish a curve from others, as "section.key" and value."""
    table = {section: keys if isinstance(keys, dict) else {"": keys} for section, keys in config.table().items()}
    flat = {f"{section}.{key}": value for section, keys in table.items() for key, value in keys.items()}
    return {key: value for key, value in flat.items() if key not in _MAY_DIFFER and not key.startswith("engine.")}


def group_by_setting(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Groups of runs that differ only in their seeds, by a name: the method and the settings that differ."""
    groups: list[tuple[dict[str, Any], list[FinishedRun]]] = []
    for run in runs:
        settings = _curve_settings(run.config) | {"data.name": run.data}
        for group_settings, group in groups:
            if group_settings == settings:
                group.append(run)
                break
        else:
            groups.append((settings, [run]))
    every = [settings for settings, _ in groups]
    return {_curve_name(settings, every): group for settings, group in groups}


def _curve_name(settings: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> str:
    """The method, the dataset if the curves have several, and the settings in which curves of the method differ.

    >>> fast, slow = ({"method.name": "fedavg", "train.lr": lr, "data.name": "mnist"} for lr in (0.1, 0.01))
    >>> _curve_name(slow, [fast, slow])
    'fedavg, lr=0.01'
    """
    same_method = [other for other in every if other["method.name"] == settings["method.name"]]
    differing = [key for key in settings if any(other.get(key) != settings[key] for other in same_method)]
    if any(other["data.name"] != settings["data.name"] for other in every):
        differing = ["data.name", *(key for key in differing if key != "data.name")]

    def shown(key: str) -> str:
        section, _, last = key.partition(".")
        value = toml_value(settings[key]).strip('"')
        return value if last == "name" else f"{last or section}={value}"

    return ", ".join([settings["method.name"], *map(shown, differing)])


def titles(runs: Sequence[FinishedRun]) -> list[str]:
    """A title for each run: the name of its group, its seed if the group has several runs, and the dataset."""
    by_run, datasets = {}, {run.data for run in runs}
    for name, group in group_by_setting(runs).items():
        for run in group:
            title = f"{name}, seed {run.config.run.seed}" if len(group) > 1 else name
            by_run[id(run)] = f"{title} on {run.data}" if len(datasets) == 1 else title
    return [by_run[id(run)] for run in runs]
