"""Runs as they are stored: the small files of a run folder, without the method, the data and torch.

Commands that only read numbers use this, so that they start fast and need no method, net or data of the run.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.experiment.reading import recreated_by_resume
from protofed.experiment.wording import dataset_title
from protofed.plugins import label as short_name

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.results import Result

MAY_CHANGE = (
    "run.rounds",
    "run.seconds",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "run.trace_every",
    "run.monitor",
    "run.tensorboard",
    "run.watchers",
    "data.root",
    "engine.workers",
    "engine.memory",
    "engine.address",
    "engine.reason",
)
"""The keys that may change when a run is resumed. They do not change the results of the rounds."""
GIVEN = "given"
"""The name of data, partitions and nets that come from Python: a `protofed.Federation`, or `nets=[...]`."""
RunState = Literal["finished", "diverged", "running", "stopped"]
PLAN = "plan.json"
"""The file in a sweep's folder that lists its runs."""


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run, read from the small files of its folder. It may still be going on."""

    folder: Path
    settings: Mapping[str, Any]  # the tables of config.toml
    summary: Mapping[str, Any]  # result.json, or what is known so far of a run that is not finished
    rounds: Sequence[dict[str, Any]]
    clients: Sequence[dict[str, Any]]
    state: RunState = "finished"
    label: str = ""  # the name of its setting in a sweep
    in_memory: Result | None = None  # if it was not read from a folder

    @classmethod
    def load(cls, folder: Path, label: str = "") -> StoredRun:
        """The run in a folder. It must have finished at least one round."""
        files = Folder.existing(folder)
        settings = read_settings(folder / "config.toml")
        if (folder / "result.json").exists():
            summary = files.result()
            if not files.has_rounds() and summary["rounds"]:
                raise UserError(f"{folder / 'rounds.jsonl'} is missing. {recreated_by_resume(folder / 'rounds.jsonl')}")
            state: RunState = "diverged" if has_diverged(summary) else "finished"
            return cls(folder, settings, summary, files.rounds(), files.clients(), state, label)
        rounds, state = files.rounds(), "running" if files.is_in_use() else "stopped"
        if not rounds:
            raise UserError(
                f"{folder} has no finished round yet ({state}). "
                + (
                    "Wait for it."
                    if state == "running"
                    else f"Continue it with `protofed run --resume --out {folder}`."
                )
            )
        return cls(folder, settings, summary_so_far(settings, files, rounds), rounds, [], state, label)

    @classmethod
    def of(cls, result: Result) -> StoredRun:
        """A result in memory in the form of a stored run."""
        folder, settings = result.folder or Path("(in memory)"), result.state.config.table()
        state: RunState = "diverged" if has_diverged(result.summary) else "finished"
        return cls(folder, settings, result.summary, result.rounds, result.clients, state, in_memory=result)

    def client_names(self) -> dict[int, str]:
        """The names of the clients by their numbers; {} if they have numbers only."""
        if self.in_memory:
            return dict(enumerate(self.in_memory.state.members.names))
        stored = self.partition().get("clients", [])
        return {number: client["name"] for number, client in enumerate(stored) if "name" in client}

    def partition(self) -> Mapping[str, Any]:
        """The content of partition.json; {} if the run was stopped before it was written."""
        if self.folder.is_dir():
            return Folder(self.folder).partition() or {}
        return self.in_memory.state.members.describe() if self.in_memory else {}

    @cached_property
    def config(self) -> Config:
        """The experiment. Its method must be known."""
        from protofed.experiment.config import Config

        if self.in_memory:
            return self.in_memory.state.config
        file = self.folder / "config.toml"
        return Config.load(file) if file.exists() else Config.of(self.settings, named_by=self.folder)

    @property
    def method(self) -> str:
        return short_name(self.settings["method"]["name"])

    @property
    def seed(self) -> int:
        return int(self.settings["run"]["seed"])

    @property
    def data(self) -> str:
        """The dataset's title."""
        return dataset_title(self.summary["dataset"], self.summary.get("remark", ""))

    @property
    def unfinished(self) -> str:
        """For a run without a result: its state, such as "running, round 3 of 50"; "" if it has finished."""
        if self.state in ("finished", "diverged"):
            return ""
        return f"{self.state}, round {len(self.rounds)} of {self.settings['run']['rounds']}"

    def result(self) -> Result:
        """The run's models and prototypes."""
        from protofed.experiment.results import Result

        return self.in_memory or Result.load(self.folder)


def read_settings(path: Path) -> dict[str, Any]:
    """The tables of a config.toml that a run wrote."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"{path} is not a readable TOML file: {problem}.") from problem
    require_complete(settings, path)
    return settings


def require_complete(settings: Mapping[str, Any], path: Path) -> None:
    """Raise an error if the config.toml of a run lacks a section, or the name in one, as after a disk was full."""
    for section in ("run", "data", "partition", "net", "method", "train", "engine"):
        keys = {"data": ("name", "clients"), "method": ("name",), "run": ("seed", "rounds")}.get(section, ())
        table = settings.get(section)
        if not isinstance(table, Mapping | list) or any(key not in table for key in keys):
            raise UserError(
                f"{path} is incomplete: [{section}] or a part of it is missing. Restore the file; without it, nobody "
                "knows what was run."
            )


def has_diverged(summary: Mapping[str, Any]) -> bool:
    """Whether a term of the last round's training loss is not finite; result.json has null for it."""
    return any(value is None or not math.isfinite(value) for value in (summary.get("loss") or {}).values())


def was_tested(row: Mapping[str, Any]) -> bool:
    """Whether a row of rounds.jsonl has an accuracy."""
    return any(value is not None for key, value in row.items() if key.startswith("accuracy_"))


def summary_so_far(settings: Mapping[str, Any], files: Folder, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What result.json would say after the rounds so far, with the figures of the last round that was tested."""
    tested: Mapping[str, Any] = next(filter(was_tested, reversed(rounds)), {})
    partition = files.partition() or {}

    def accuracy(way: str) -> dict[str, float] | None:
        mean = tested.get(f"accuracy_{way}")
        return None if mean is None else {"mean": mean, "std": tested[f"accuracy_{way}_std"]}

    def total(key: str) -> float:
        return float(sum(row[key] for row in rounds))

    ways = dict.fromkeys(
        key.removeprefix("accuracy_") for key in tested if key.startswith("accuracy_") and f"{key}_std" in tested
    )
    return {
        "method": short_name(settings["method"]["name"]),
        "dataset": partition.get("dataset", short_name(settings["data"]["name"])),
        "remark": partition.get("remark", ""),
        "seed": settings["run"]["seed"],
        "rounds": len(rounds),
        "clients": len(partition.get("clients", ())),
        "accuracy": {"head": None, "prototype": None} | {way: accuracy(way) for way in ways},
        "majority": None,
        "best": None,
        "global": {"accuracy": tested.get("accuracy_global")},
        "personal": {"v": None, "l": None},
        "loss": rounds[-1]["loss"],
        "cost": {
            "up_params": round(total("up_params") / len(rounds)),
            "up_bytes": round(total("up_bytes")),
            "down_bytes": round(total("down_bytes")),
        },
        "seconds": {"total": total("seconds"), "per_round": total("seconds") / len(rounds)},
    }


def load_runs(sources: Iterable[Any]) -> list[StoredRun]:
    """The runs in these folders, or of these results.

    The folder of a sweep, or a `Sweep`, stands for all its runs that have a finished round.
    """
    runs: list[StoredRun] = []
    for source in sources:
        if hasattr(source, "summary"):
            runs.append(StoredRun.of(source))
            continue
        folder = Path(getattr(source, "folder", source))
        if not folder.is_dir():
            raise UserError(f"There is no folder {folder}. Give folders that `protofed run --out` or a sweep wrote.")
        if (folder / "config.toml").exists() or not is_sweep(folder):
            runs.append(StoredRun.load(folder))
            continue
        planned = {folder / run["folder"]: run["setting"] for run in read_plan(folder)}
        begun = [path for path in planned if Folder(path).has_rounds()]
        if not begun:
            raise UserError(f"{folder} is a sweep without a finished round so far. Wait, or run the sweep again.")
        runs += [StoredRun.load(path, planned[path]) for path in begun]
    return runs


def is_sweep(folder: Path) -> bool:
    """Whether this is the folder of a sweep."""
    return (folder / PLAN).is_file() or (folder / "sweep.json").is_file()


def read_plan(folder: Path) -> list[dict[str, Any]]:
    """The runs of a sweep: `setting`, `seed` and `folder` (relative) of each."""
    if not (folder / PLAN).is_file():  # a sweep of an earlier version: its folders are SETTING/seed-N
        found = sorted(path.parts[-3:-1] for path in folder.glob("*/seed-*/config.toml"))
        return [
            {
                "setting": setting.replace("+", " "),
                "seed": int(seed.removeprefix("seed-")),
                "folder": f"{setting}/{seed}",
            }
            for setting, seed in found
        ]
    try:
        runs: list[dict[str, Any]] = json.loads((folder / PLAN).read_text(encoding="utf-8"))["runs"]
        for run in runs:
            if not (folder / run["folder"]).resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{run['folder']} is outside of it")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise UserError(f"{folder / PLAN} cannot be read. Delete it and run the sweep again.") from problem
    return runs
