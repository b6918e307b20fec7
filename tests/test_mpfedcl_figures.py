"""MP-FedCL's Fig. 1 and 10 are drawn from runs."""

from __future__ import annotations

import json

import pytest

import protofed
from protofed.experiment.config import Config
from protofed.studies.plan import SweepRun
from protofed.studies.reproduce.mpfedcl_figures import draw_curves, draw_two_clients
from protofed.studies.reproduce.studies import STUDIES


def test_curves_have_every_tested_round_of_all_seeds_also_with_an_accuracy_of_0(tmp_path):
    """Planted curves: 0 in round 5 of every run, then 0.1 more per seed; rounds that were not tested are left out."""
    study = STUDIES["mpfedcl-figure10"]
    jobs = study.drawn_jobs(tmp_path, study.seeds, False)
    assert len(jobs) == 18
    for job in jobs:
        job.out.mkdir(parents=True, exist_ok=True)
        lines = [{"round": at, "accuracy_prototype": value} for at, value in ((5, 0.0), (6, None), (10, job.seed / 10))]
        (job.out / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    picture = draw_curves(jobs)
    assert [axis.get_title() for axis in picture.axes] == ["Digit-5, Dir(1.0)", "Office, domains"]
    for axis in picture.axes:
        assert len(axis.lines) == 3
        for line in axis.lines:
            assert list(line.get_xdata()) == [5, 10]
            assert list(line.get_ydata()) == pytest.approx([0, 10])


def test_two_clients_of_each_run_have_a_panel(tmp_path):
    jobs = []
    for name in ("local", "fedavg"):
        config = Config.of({"run": {"rounds": 1}, "data": {"clients": 3}, "method": {"name": name}})
        protofed.run(config, tmp_path / name)
        jobs += [SweepRun(f"{name}, MNIST", seed, tmp_path / name, config) for seed in (0, 1)]
    picture = draw_two_clients(jobs)
    assert len([axis for axis in picture.axes if axis.get_visible()]) == 4
