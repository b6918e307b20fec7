"""Many runs of one experiment: every combination of a grid's values, with several seeds each, two runs at a time.

A sweep is a folder of run folders, `SETTING/seed-N`. Those that are finished are not done again, one that was
interrupted goes on; so a sweep is continued by giving the same command again.
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

from protofed.engines.pool import ends_with
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder, read_json, write_atomically
from protofed.experiment.results import Result
from protofed.experiment.run import run
from protofed.measures.intervals import Interval, SettingRow, figures_of
from protofed.measures.question import state_with_data
from protofed.prototypes import Prototypes

_AT_ONCE = 2
_EXTRA = "prototype_distance.json"


class SweepRun(NamedTuple):
    """One run of a sweep."""

    setting: str  # "method.pull=0.5 train.lr=0.1"
    seed: int
    out: Path
    config: Config


def grid_settings(words: Sequence[str]) -> list[str]:
    """Every combination of "section.key=a,b,c" words, the first one changing slowest.

    >>> grid_settings(["method.pull=0,1", "net.hidden=[8],[8,8]"])[1:3]
    ['method.pull=0 net.hidden=[8,8]', 'method.pull=1 net.hidden=[8]']
    """
    choices = []
    for word in words:
        place, equals, values = word.partition("=")
        if not (equals and "." in place and values):
            raise UserError(f"--grid {word}: must look like section.key=a,b,c, for example --grid method.pull=0,1,2")
        choices.append([f"{place.strip()}={value}" for value in _split(values)])
    return [" ".join(one) for one in product(*choices)]


def _split(values: str) -> list[str]:
    """Values between commas; a comma in brackets belongs to a value."""
    parts, depth = [""], 0
    for letter in values:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def plan_runs(file: Path | None, grid: Sequence[str], seeds: int, sets: Sequence[str], out: Path) -> list[SweepRun]:
    """All runs, seed by seed; what is wrong with any of them is said before the first begins."""
    made = []
    for seed, setting in product(range(seeds), grid_settings(grid)):
        config = Config.load(file, [*sets, *setting.split(), f"run.seed={seed}", "engine.workers=1"])
        folder = setting.replace("/", "_").replace(" ", "+") or "as-it-is"
        made.append(SweepRun(setting, seed, out / folder / f"seed-{seed}", config))
    if len({job.out for job in made}) < len(made):
        raise UserError("--grid: a value is there twice.")
    return made


def finish_run(out: Path, config: Config) -> dict[str, Any]:
    """The result.json of a run in this folder, which is done, continued, or done already."""
    before = out / "config.toml"
    if before.exists():
        was = Config.load(before)
        config = replace(config, engine=was.engine, data=replace(config.data, clients=was.data.clients))
        if was.digest() != config.digest() or was.run.rounds != config.run.rounds:
            raise UserError(f"{out} is of another experiment. Give another --out, or remove it.")
    result = None if (out / "result.json").exists() else run(config, out, resume=before.exists())
    if not (out / _EXTRA).exists():
        write_atomically(
            out / _EXTRA, json.dumps({"distance": _prototype_distance(result or Result.load(out))}).encode()
        )
    return Folder(out).result()


def _prototype_distance(result: Result) -> float | None:
    """FedProto's Fig. 4: how far clients' class means are from the global prototypes, on average over both."""
    known = result.prototypes
    if known is None or known.mean.shape[1] != 1 or not result.summary["accuracy"]["prototype"]:
        return None
    found, state = [], state_with_data(result)
    for client, train in enumerate(state.members.train):
        held = state.model(client)
        own = Prototypes.of(*held.net.features(held.params, train), classes=len(known.mean))
        both = (own.support[:, 0] > 0) & (known.support[:, 0] > 0)
        found.append((own.mean[both, 0] - known.mean[both, 0]).norm(dim=-1))
    every = torch.cat(found)
    return float(every.mean()) if len(every) else None


def run_all(jobs: Sequence[SweepRun], told: Callable[[SweepRun, dict[str, Any]], None]) -> None:
    """Do all of them; `told` hears of each as it ends. An error, or Ctrl-C, stops the others: they can be continued."""
    others = set(active_children())
    with ProcessPoolExecutor(_AT_ONCE, initializer=ends_with, initargs=(os.getpid(),)) as pool:
        try:
            waiting = {pool.submit(finish_run, job.out, job.config): job for job in jobs}
            for one in as_completed(waiting):
                told(waiting[one], one.result())
        except BaseException:
            for process in set(active_children()) - others:
                process.kill()
            raise


def setting_rows(jobs: Sequence[SweepRun]) -> list[SettingRow]:
    """What the finished runs of a sweep gave, by setting."""
    made: dict[str, SettingRow] = {}
    for job in jobs:
        row = made.setdefault(job.setting, SettingRow(job.setting, {}))
        for name, value in _run_figures(job.out):
            row.figures.setdefault(name, {})[job.seed] = value
    return list(made.values())


def _run_figures(out: Path) -> Iterator[tuple[str, float]]:
    yield from figures_of(Folder(out).result())
    if (found := read_json(out / _EXTRA, "distance")["distance"]) is not None:
        yield "prototype distance", found


def best_setting(found: Sequence[SettingRow]) -> SettingRow | None:
    """The setting with the highest mean accuracy on validation sets, if there are any."""
    with_validation = [row for row in found if row.interval("validation")]
    return max(with_validation, key=lambda row: row.interval("validation") or Interval(0, None, 0), default=None)
