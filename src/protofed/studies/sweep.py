"""Many runs of one experiment: every combination of a grid's values with several seeds, two runs at a time.

A sweep is a folder of run folders, `SETTING/seed-N`. The same command continues an interrupted sweep: finished runs
are not repeated, and an interrupted run continues from its last checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NamedTuple

import torch

from protofed.engines.threads import ends_with
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder, read_json, write_atomically
from protofed.experiment.results import Result
from protofed.experiment.run import run
from protofed.measures.intervals import Interval, SettingRow, figures_of
from protofed.measures.question import state_with_data
from protofed.prototypes import Prototypes

_PROCESSES = 2
_DISTANCE_FILE = "prototype_distance.json"
DISTANCE = "prototype distance"
"""The name of the figure in that file."""


class SweepRun(NamedTuple):
    """One run of a sweep."""

    setting: str  # "method.pull=0.5 train.lr=0.1"
    seed: int
    out: Path
    config: Config


def grid_settings(words: Sequence[str]) -> list[str]:
    """Every combination of the values in "section.key=a,b,c" words. The first word changes slowest.

    >>> grid_settings(["method.pull=0,1", "net.hidden=[8],[8,8]"])[1:3]
    ['method.pull=0 net.hidden=[8,8]', 'method.pull=1 net.hidden=[8]']
    """
    choices: dict[str, list[str]] = {}
    for word in words:
        key, equals, values = (part.strip() for part in word.partition("="))
        if not (equals and "." in key and values):
            raise UserError(f"--grid {word}: must look like section.key=a,b,c, for example --grid method.pull=0,1,2")
        if key == "run.seed":
            raise UserError(f"--grid {word}: the seeds are chosen by --seeds N, which gives 0 to N - 1.")
        if key in choices:
            raise UserError(f"--grid {word}: {key} is given twice. Give all its values at once, separated by commas.")
        choices[key] = [f"{key}={value}" for value in _split_values(values)]
    return [" ".join(combination) for combination in product(*choices.values())]


def _split_values(values: str) -> list[str]:
    """The values between commas. A comma in brackets does not separate values."""
    parts, depth = [""], 0
    for letter in values:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def plan_runs(file: Path | None, grid: Sequence[str], seeds: int, sets: Sequence[str], out: Path) -> list[SweepRun]:
    """All runs, seed by seed. An error in any of them is raised before the first run begins."""
    jobs = []
    for seed, setting in product(range(seeds), grid_settings(grid)):
        config = Config.load(file, [*sets, *setting.split(), f"run.seed={seed}", "engine.workers=1"])
        folder = setting.replace("/", "_").replace(" ", "+") or "as-it-is"
        jobs.append(SweepRun(setting, seed, out / folder / f"seed-{seed}", config))
    if len({job.out for job in jobs}) < len(jobs):
        raise UserError("--grid: a key lists the same value twice. Give each value once.")
    return jobs


def finish_run(out: Path, config: Config) -> dict[str, Any]:
    """The result.json of the run in this folder. The run is started or continued unless it is finished."""
    config_file = out / "config.toml"
    if config_file.exists():
        config = check_stored_run(out, config)
    result = None if (out / "result.json").exists() else run(config, out, resume=config_file.exists())
    if not (out / _DISTANCE_FILE).exists():
        distance = _prototype_distance(result or Result.load(out))
        write_atomically(out / _DISTANCE_FILE, json.dumps({"distance": distance}).encode())
    return Folder(out).result()


def check_stored_run(out: Path, config: Config) -> Config:
    """The experiment of the run in this folder, which must be this one; the run may have chosen its engine."""
    stored = Config.load(out / "config.toml")
    config = replace(config, engine=stored.engine, data=replace(config.data, clients=stored.data.clients))
    lengths = [(one.run.rounds, one.run.seconds) for one in (stored, config)]
    if stored.digest() != config.digest() or lengths[0] != lengths[1]:
        raise UserError(f"{out} holds a run of another experiment. Give another --out, or delete it.")
    return config


def _prototype_distance(result: Result) -> float | None:
    """FedProto's Fig. 4: the distance of a client's class mean to the global prototype, averaged over all of them."""
    shared = result.prototypes
    if shared is None or shared.mean.shape[1] != 1 or not result.summary["accuracy"]["prototype"]:
        return None
    parts, state = [], state_with_data(result)
    for client, train in enumerate(state.members.train):
        model = state.model(client)
        local = Prototypes.of(*model.net.features(model.params, train), classes=len(shared.mean))
        both = (local.support[:, 0] > 0) & (shared.support[:, 0] > 0)
        parts.append((local.mean[both, 0] - shared.mean[both, 0]).norm(dim=-1))
    distances = torch.cat(parts)
    return float(distances.mean()) if len(distances) else None


def run_all(jobs: Sequence[SweepRun], report: Callable[[SweepRun, dict[str, Any]], None]) -> None:
    """Finish all runs, and call `report` with each run and its result.json as it ends.

    An error or Ctrl-C stops the other runs; the same call continues them later.
    """

    def ended(position: int, result: dict[str, Any]) -> None:
        report(jobs[position], result)

    two_at_a_time(finish_run, [job.out for job in jobs], [job.config for job in jobs], ended)


def two_at_a_time(
    task: Callable[[Any, Any], Any],
    first: Sequence[Any],
    second: Sequence[Any],
    report: Callable[[int, Any], None] = lambda position, result: None,
) -> None:
    """Call the task with each pair of arguments in two processes, and `report` with the position and result of each.

    An error or Ctrl-C stops the other calls.
    """
    unrelated = set(active_children())
    with ProcessPoolExecutor(_PROCESSES, initializer=ends_with, initargs=(os.getpid(),)) as pool:
        try:
            pending = {pool.submit(task, *pair): number for number, pair in enumerate(zip(first, second, strict=True))}
            for future in as_completed(pending):
                report(pending[future], future.result())
        except BaseException:
            for process in set(active_children()) - unrelated:
                process.kill()
            raise


def setting_rows(jobs: Sequence[SweepRun]) -> list[SettingRow]:
    """The figures of the finished runs of a sweep, by setting."""
    rows: dict[str, SettingRow] = {}
    for job in jobs:
        row = rows.setdefault(job.setting, SettingRow(job.setting, {}))
        for name, value in _run_figures(job.out):
            row.figures.setdefault(name, {})[job.seed] = value
    return list(rows.values())


def _run_figures(out: Path) -> Iterator[tuple[str, float]]:
    """The names and values of a run's figures."""
    yield from figures_of(Folder(out).result())
    if (distance := stored_distance(out)) is not None:
        yield DISTANCE, distance


def stored_distance(out: Path) -> float | None:
    """The distance of prototypes of a finished run; None if its method has none, or if nobody has computed it."""
    file = out / _DISTANCE_FILE
    distance: float | None = read_json(file, "distance")["distance"] if file.exists() else None
    return distance


def best_setting(rows: Sequence[SettingRow]) -> SettingRow | None:
    """The setting with the highest mean accuracy on validation sets; None if the runs have none."""
    with_validation = [row for row in rows if row.interval("validation")]
    return max(with_validation, key=lambda row: row.interval("validation") or Interval(0, None, 0), default=None)
