"""Groups of runs: seeds of one experiment are averaged, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import protofed
from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.groups import ROOT_IS_THE_DATA, group_by_setting
from protofed.experiment.stored import load_runs
from protofed.studies.plan import SweepRun
from protofed.studies.sweep import check_stored_runs

ROUND = {"run": {"rounds": 1}, "method": {"name": "local"}}


def arrays(shift: float) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(20) % 2
    return (labels[:, None] + shift * np.arange(4)).astype(np.float32), labels


def of_file(folder: Path, name: str, seed: int) -> dict[str, object]:
    file = folder / f"{name}.npz"
    x, y = arrays(len(name))
    np.savez(file, x=x, y=y, x_test=x, y_test=y)
    data = {"name": "npz", "root": str(file)}
    return {
        "run": {"rounds": 1, "seed": seed},
        "data": data,
        "partition": {"name": "pooled"},
        "method": {"name": "local"},
    }


def sizes(*runs: object) -> list[int]:
    return [len(group) for group in group_by_setting(load_runs(runs)).values()]


def test_the_datasets_that_data_root_names_are_known():
    assert {name for name, source in SOURCES.items() if source.files is None} == set(ROOT_IS_THE_DATA)


def test_runs_on_different_files_are_different_settings(tmp_path):
    for name, seed in (("easy", 0), ("easy", 1), ("harder", 0), ("harder", 1)):
        protofed.run(of_file(tmp_path, name, seed), tmp_path / f"{name}{seed}")
    runs = [tmp_path / name for name in ("easy0", "harder1", "easy1", "harder0")]
    assert sizes(*runs) == [2, 2]
    assert sizes(*runs[:2]) == [1, 1]


def test_a_sweep_does_not_take_finished_runs_on_another_file(tmp_path):
    easy, harder = (Config.of(of_file(tmp_path, name, 0)) for name in ("easy", "harder"))
    protofed.run(easy, tmp_path / "run")
    check_stored_runs([SweepRun("", 0, tmp_path / "run", easy)])
    with pytest.raises(UserError, match=r"a run of another experiment, with another data\.root\. Give another --out"):
        check_stored_runs([SweepRun("", 0, tmp_path / "run", harder)])


def test_data_and_nets_given_in_python_are_told_apart(tmp_path):
    first, second = (protofed.Federation([arrays(shift)] * 2) for shift in (0.0, 1.0))
    runs = [
        protofed.run({**ROUND, "run": {"rounds": 1, "seed": seed}}, federation=given)
        for seed, given in ((0, first), (1, first), (2, second))
    ]
    assert sizes(*runs) == [2, 1]
    wide, narrow = (
        protofed.run({**ROUND, "run": {"rounds": 1, "seed": units}}, nets=[made(units)]) for units in (2, 9)
    )
    assert sizes(wide, narrow) == [1, 1]


def made(units: int) -> nn.Module:
    with torch.random.fork_rng():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 10))


def test_one_client_is_not_all_clients(tmp_path):
    """run.sample = 1 is one client per round, 1.0 are all of them."""
    for seed, sample in enumerate((1, 1.0)):
        protofed.run(
            {"run": {"rounds": 1, "seed": seed, "sample": sample}, "method": {"name": "local"}}, tmp_path / str(seed)
        )
    assert sizes(tmp_path / "0", tmp_path / "1") == [1, 1]
    assert list(group_by_setting(load_runs([tmp_path / "0", tmp_path / "1"]))) == [
        "local, sample=1",
        "local, sample=1.0",
    ]
    one, every = (Config.of({"run": {"sample": sample}}) for sample in (1, 1.0))
    assert one.digest() != every.digest() == Config.of({}).digest()
    tested, all_tested = (Config.of({"eval": {"clients_sampled": sampled}}) for sampled in (1, 1.0))
    assert tested.digest() != all_tested.digest() == Config.of({}).digest()


def test_a_seed_counts_once_and_no_run_is_dropped(tmp_path):
    """One seed with two engines: two settings. One folder named twice is one run."""
    for name in ("loop", "stacked"):
        protofed.run({**ROUND, "engine": {"name": name}}, tmp_path / name)
    protofed.run({"run": {"rounds": 1, "seed": 1}, "method": {"name": "local"}}, tmp_path / "other")
    runs = [tmp_path / name for name in ("loop", "stacked", "other")]
    assert sizes(*runs) == [2, 1]
    assert sizes(runs[0], runs[0]) == [2]
    assert len(protofed.compare(*runs).table.cells) == 2
