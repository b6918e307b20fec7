"""Many runs of one experiment, several at a time: every setting with several seeds.

A sweep is a folder of run folders, `SETTING/seed-N`. The same command continues an interrupted sweep: finished runs
are not repeated, and an interrupted run continues from its last checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from protofed.data.sources import SOURCES
from protofed.errors import StoppedRunError, UserError
from protofed.experiment.config import Config, changed_keys
from protofed.experiment.folder import Folder, write_atomically
from protofed.experiment.groups import ROOT_IS_THE_DATA
from protofed.experiment.progress import ProgressFile, ProgressLine, wants_progress
from protofed.experiment.reading import read_json
from protofed.experiment.results import Result
from protofed.experiment.run import run
from protofed.experiment.stored import has_diverged
from protofed.experiment.wording import quantity
from protofed.measures.intervals import SettingRow, figures_of, settings_as_json
from protofed.measures.question import state_with_data
from protofed.prototypes import Prototypes
from protofed.studies.comparison import settings_table
from protofed.studies.plan import (
    Experiment,
    SweepRun,
    compare_settings,
    grid_words,
    parse_seeds,
    plan_sweep,
    write_plan,
)
from protofed.studies.ray_runs import Cluster
from protofed.studies.side_by_side import AT_A_TIME, call_all, runs_at_a_time

if TYPE_CHECKING:
    from protofed.experiment.table import ResultTable

_DISTANCE_FILE = "prototype_distance.json"
DISTANCE = "prototype distance"
"""The name of the figure in that file."""


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. `rows` has the figures of every setting by seed, `table` shows them with intervals."""

    folder: Path
    rows: Sequence[SettingRow]
    runs: Sequence[SweepRun]
    notes: Sequence[str] = ()

    @property
    def table(self) -> ResultTable:
        """One row per setting: means over seeds with their intervals, and the difference from the first setting."""
        return settings_table(self.rows)

    @property
    def best(self) -> SettingRow | None:
        """The setting with the highest mean accuracy on validation sets, of those without a run that has stopped."""
        return best_setting(self.rows)

    @property
    def diverged(self) -> list[str]:
        """The finished runs with a loss that is not finite, such as "fedavg, seed 1"."""
        stopped = {(row.setting, seed) for row in self.rows for seed in row.stopped}
        finished = [one for one in self.runs if (one.setting, one.seed) not in stopped]
        return [f"{one.setting}, seed {one.seed}" for one in finished if has_diverged(Folder(one.out).result())]

    def as_json(self) -> list[dict[str, Any]]:
        """The content of sweep.json."""
        return settings_as_json(self.rows)

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        return self.table.to_pandas()

    def __repr__(self) -> str:
        return f"{self.table.text()}\n({quantity(len(self.runs), 'run')} in {self.folder})"

    def _repr_html_(self) -> str:
        return self.table.html()


def sweep(
    config: Experiment,
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    compare: Sequence[Mapping[str, Any]] = (),
    seeds: int | Sequence[int] = 3,
    jobs: int | None = None,
    ray: str = "",
    progress: bool | None = None,
) -> Sweep:
    """Run every setting with several seeds in the folder `out`, several runs at a time, and compare the settings.

    `config`: the experiment, as for `run` (None: the defaults); its [[compare]] tables are settings. `grid`: values by
    key, such as {"method.pull": [0, 1]}; all combinations are run. `compare`: more settings, each a table of sections
    with an optional "label", such as {"label": "FedNH", "method": {"name": "fednh", "rho": 0.9}}. `seeds`: their
    number, or a list. `jobs`: runs at a time; None: two, or as many as the cluster has cores. `ray`: the address of a
    cluster on which the runs are made (docs/cluster.md); "": on this machine. `progress`: whether to show it; None: on
    a terminal and in a notebook.

    The same call continues an interrupted sweep. Settings are compared seed by seed: runs with the same seed have the
    same partition, the same clients per round and the same batches, unless the settings change these. A run that stops
    because all uploads of a round are rejected is left out of the figures; `SettingRow.stopped` has the reason.
    """
    out = Path(out)
    settings = compare_settings(compare) if compare else ()
    plan = plan_sweep(config, out, parse_seeds(seeds), grid_words(grid), settings)
    check_stored_runs(plan.runs)
    line = ProgressLine() if wants_progress(progress) else None
    ended = [0]

    def report(job: SweepRun, result: dict[str, Any]) -> None:
        ended[0] += 1
        if line:
            line.show(ended[0], len(plan.runs), f"{job.setting}, seed {job.seed} has ended")

    try:
        return make_sweep(out, plan.runs, runs_at_a_time(jobs, ray), report, notes=plan.notes, ray=ray)
    finally:
        if line:
            line.end()


def make_sweep(
    out: Path,
    runs: Sequence[SweepRun],
    jobs: int,
    report: Callable[[SweepRun, dict[str, Any]], None],
    tick: Callable[[], None] = lambda: None,
    notes: Sequence[str] = (),
    ray: str = "",
) -> Sweep:
    """Make the runs of a plan, and write plan.json, sweep.json and sweep.png. `ray`: address of a cluster for them.

    A run that cannot go on, for example one that diverges, does not stop the others.
    """
    from protofed.pictures.style import write_picture
    from protofed.pictures.sweep_plot import draw_sweep

    stopped: dict[Path, str] = {}

    def ended(job: SweepRun, result: dict[str, Any]) -> None:
        if "stopped" in result:
            stopped[job.out] = result["stopped"]
        report(job, result)

    write_plan(out, runs)
    run_all(runs, ended, jobs, tick, Cluster(ray, out) if ray else None, finish_or_stop)
    if len(stopped) == len(runs):
        raise StoppedRunError(f"All runs have stopped. {runs[0].setting or 'as it is'}: {stopped[runs[0].out]}")
    made = Sweep(out, setting_rows(runs, stopped), runs, notes)
    write_atomically(out / "sweep.json", json.dumps(made.as_json(), indent=2).encode())
    write_picture(draw_sweep(made.rows), out / "sweep.png")
    return made


def finish_run(out: Path, config: Config) -> dict[str, Any]:
    """The result.json of the run in this folder. The run is started or continued unless it is finished."""
    config_file = out / "config.toml"
    if config_file.exists():
        config = check_stored_run(out, config)
    result = None
    if not (out / "result.json").exists():
        result = run(config, out, resume=config_file.exists(), watchers=[ProgressFile(out)], progress=False)
    if not (out / _DISTANCE_FILE).exists():
        distance = _prototype_distance(result or Result.load(out))
        write_atomically(out / _DISTANCE_FILE, json.dumps({"distance": distance}).encode())
    return Folder(out).result()


def finish_or_stop(out: Path, config: Config) -> dict[str, Any]:
    """The result.json of the run in this folder, or {"stopped": why} if it cannot go on."""
    try:
        return finish_run(out, config)
    except StoppedRunError as problem:
        return {"stopped": problem.reason}


def check_stored_run(out: Path, config: Config) -> Config:
    """The experiment of the run in this folder, which must be this one; the run may have chosen its engine."""
    stored = config.stored(out)
    config = replace(config.with_clients(config.data.clients or stored.data.clients), engine=stored.engine)
    keys = [f"run.{key}" for key in ("rounds", "seconds") if getattr(stored.run, key) != getattr(config.run, key)]
    if stored.digest() != config.digest():
        keys += changed_keys(stored.table(), config.table()) or ["version of protofed"]
    if config.data.name in ROOT_IS_THE_DATA and stored.data.root != config.data.root:
        keys.append("data.root")
    if keys:
        raise UserError(
            f"{out} holds a run of another experiment, with another {', '.join(keys)}. Give another --out, or delete "
            "it."
        )
    return config


def check_stored_runs(runs: Sequence[SweepRun]) -> None:
    """Raise an error if one of the folders has a run of another experiment."""
    for one in runs:
        if (one.out / "config.toml").exists():
            check_stored_run(one.out, one.config)


def require_data(runs: Sequence[SweepRun], advice: str = "") -> None:
    """Raise an error, with further `advice`, if a dataset's files are missing that one of the unfinished runs reads."""
    unfinished = [one.config.data for one in runs if not (one.out / "result.json").exists()]
    for name, root in dict.fromkeys((data.name, data.root) for data in unfinished):
        if name in SOURCES and (state := SOURCES[name].state(root)) != "ready":
            raise UserError(
                f"The runs need the dataset {name}, which is {state}. docs/data.md describes the file; set "
                f"$PROTOFED_DATA to the folder that has it.{advice}"
            )


def _prototype_distance(result: Result) -> float | None:
    """FedProto's Fig. 4: the distance of a client's class mean to the global prototype, averaged over all of them.

    None if the run has no such prototypes, or if a client's model has diverged.
    """
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
    return float(distances.mean()) if len(distances) and distances.isfinite().all() else None


def run_all(
    jobs: Sequence[SweepRun],
    report: Callable[[SweepRun, dict[str, Any]], None],
    at_a_time: int = AT_A_TIME,
    tick: Callable[[], None] = lambda: None,
    cluster: Cluster | None = None,
    finish: Callable[[Path, Config], dict[str, Any]] = finish_run,
) -> None:
    """Finish all runs, and call `report` with each run and its result.json as it ends, and `tick` all the time.

    They are made in processes of this machine, or on a cluster. An error names its run. It stops the other
    runs, like Ctrl-C; the same call continues them later. `finish` makes one run.
    """
    if cluster and any(job.config.engine.name == "ray" for job in jobs):
        raise UserError(
            '--ray gives complete runs to the cluster, engine.name = "ray" the clients of each run. Use one of them: '
            'leave --ray out, or set engine.name = "auto".'
        )
    arguments, names = [(job.out, job.config) for job in jobs], [f"{job.setting}, seed {job.seed}" for job in jobs]
    call_all(finish, arguments, names, at_a_time, lambda at, result: report(jobs[at], result), tick, cluster)


def setting_rows(jobs: Sequence[SweepRun], stopped: Mapping[Path, str] | None = None) -> list[SettingRow]:
    """The figures of the runs of a sweep, by setting. `stopped`: the folders of runs without figures, and why."""
    rows: dict[str, SettingRow] = {}
    for job in jobs:
        row = rows.setdefault(job.setting, SettingRow(job.setting, {}, job.words, job.config.method_name, {}))
        if stopped and job.out in stopped:
            rows[job.setting] = row._replace(stopped={**row.stopped, job.seed: stopped[job.out]})
            continue
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
    """The setting with the highest mean accuracy on validation sets, of those without a run that has stopped.

    None if there is no such setting, or if the runs have no validation sets.
    """
    with_validation = [row for row in rows if row.figures.get("validation") and not row.stopped]
    return max(with_validation, key=lambda row: row.mean("validation"), default=None)
