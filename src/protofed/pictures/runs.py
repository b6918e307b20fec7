"""Runs as pictures need them: what their folders say, which of them are one curve, and their models with the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protofed.errors import UserError
from protofed.experiment.config import MAY_CHANGE, Config
from protofed.experiment.folder import Folder
from protofed.experiment.members import Members, dataset_title
from protofed.experiment.options import toml_value
from protofed.experiment.results import Result, RoundRow

_UNSEEN = {"run.seed", "run.eval_every", *MAY_CHANGE} - {"run.rounds"}
"""Settings in which the runs of one curve may differ; those of [engine] change nothing either."""


class FinishedRun(NamedTuple):
    """A finished run, by the small files of its folder."""

    folder: Path
    config: Config
    summary: Mapping[str, Any]
    rounds: Sequence[RoundRow]
    clients: Sequence[RoundRow]

    @classmethod
    def load(cls, folder: Path) -> FinishedRun:
        files = Folder.old(folder)
        return cls(folder, Config.load(folder / "config.toml"), files.result(), files.rounds(), files.clients())

    @property
    def method(self) -> str:
        return self.config.method_name

    @property
    def data(self) -> str:
        """The dataset as it is to be called."""
        return dataset_title(self.summary["dataset"], self.summary.get("remark", ""))

    def members(self) -> Members:
        """Its clients, with their data; those that it was made with, or none."""
        members = Members.of(self.config)
        if members.describe()["sha256"] != (Folder(self.folder).partition() or {}).get("sha256"):
            raise UserError(f"{self.folder} was made with other data than are here: its partition.json does not fit.")
        return members

    def result(self) -> Result:
        """Its models and prototypes."""
        return Result.load(self.folder)


def _curve_settings(config: Config) -> dict[str, Any]:
    """What makes a curve another one: "section.key" and its value, without what does not matter."""
    table = {section: keys if isinstance(keys, dict) else {"": keys} for section, keys in config.table().items()}
    flat = {f"{section}.{key}": value for section, keys in table.items() for key, value in keys.items()}
    return {key: value for key, value in flat.items() if key not in _UNSEEN and not key.startswith("engine.")}


def group_by_setting(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Runs that differ in their seeds only, together, each group by its method and what makes it another one."""
    groups: list[tuple[dict[str, Any], list[FinishedRun]]] = []
    for run in runs:
        own = _curve_settings(run.config) | {"data.name": run.data}
        for known, group in groups:
            if known == own:
                group.append(run)
                break
        else:
            groups.append((own, [run]))
    return {_curve_name(own, [other for other, _ in groups]): group for own, group in groups}


def _curve_name(own: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> str:
    """A method with the settings in which it differs from the others of its kind, and the data if there are several.

    >>> fast, slow = ({"method.name": "fedavg", "train.lr": lr, "data.name": "mnist"} for lr in (0.1, 0.01))
    >>> _curve_name(slow, [fast, slow])
    'fedavg, lr=0.01'
    """
    alike = [other for other in every if other["method.name"] == own["method.name"]]
    differing = [key for key in own if any(other.get(key) != own[key] for other in alike)]
    if any(other["data.name"] != own["data.name"] for other in every):
        differing = ["data.name", *(key for key in differing if key != "data.name")]

    def told(key: str) -> str:
        section, _, last = key.partition(".")
        value = toml_value(own[key]).strip('"')
        return value if last == "name" else f"{last or section}={value}"

    return ", ".join([own["method.name"], *map(told, differing)])


def titles(runs: Sequence[FinishedRun]) -> list[str]:
    """A title for each run: its group's name and data, with its seed where the group has several."""
    found, data = {}, {run.data for run in runs}
    for title, group in group_by_setting(runs).items():
        for run in group:
            told = f"{title}, seed {run.config.run.seed}" if len(group) > 1 else title
            found[id(run)] = f"{told} on {run.data}" if len(data) == 1 else told
    return [found[id(run)] for run in runs]
