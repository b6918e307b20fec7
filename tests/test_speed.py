"""The speed benchmark compares equal work, counted, and docs/performance.md shows what it measured."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

import protofed.training
from protofed.engines.choice import make_engine
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked
from toys import config, federation

TOP = Path(__file__).parents[1]
sys.path.insert(0, str(TOP / "benchmarks"))
sys.path.insert(0, str(TOP / "scripts"))
import speed  # noqa: E402
import speed_page  # noqa: E402
from speed import Ours, Used, Work, in_turns, same_work  # noqa: E402

LABELS = [[0, 1, 2] * 4, [0, 1] * 3, [2] * 9, [1] * 5]
STEPS = 3 + 1 + 2 + 1  # full batches of four


class Done:
    """A federation that reports these rounds."""

    def __init__(self, *rounds: Work | None) -> None:
        self.rounds = rounds

    def train(self, turn: int) -> Used:
        return Used(1.0, 1.0, self.rounds[turn])


@pytest.mark.parametrize("other", [Work(40, 901), Work(20, 914), Work(40, 1802), Work(0, 0)])
def test_the_comparison_stops_when_the_work_differs(other):
    same_work({"stacked": Work(20, 901), "fluke-fl, 1 thread": Work(20, 901)})
    with pytest.raises(SystemExit) as stopped:
        same_work({"stacked": Work(20, 901), "fluke-fl, 1 thread": other})
    assert "cannot be compared" in str(stopped.value)
    assert "stacked: 20 local trainings, 901 optimiser steps" in str(stopped.value)
    assert f"fluke-fl, 1 thread: {other.trainings} local trainings, {other.steps} opt" in str(stopped.value)


def test_every_timed_round_is_compared():
    usual, twice, central = Work(20, 901), Work(40, 1802), Done(None, None)
    rounds = in_turns({"central": central, "stacked": Done(usual, usual), "peer": Done(usual, usual)}, 2)
    assert {name: len(used) for name, used in rounds.items()} == {"central": 2, "stacked": 2, "peer": 2}
    with pytest.raises(SystemExit, match="peer: 40 local trainings, 1802 optimiser steps"):
        in_turns({"central": central, "stacked": Done(usual, usual), "peer": Done(usual, twice)}, 2)


def test_a_peer_that_trains_twice_stops_the_benchmark(tmp_path, monkeypatch):
    """From the peer's process to the error, with a script in the place of fluke-fl."""
    experiment, members = config(train={"drop_last": True}), federation(LABELS)
    engine = Loop(members, experiment.method, experiment.train, 0)
    script = tmp_path / "peer_fluke.py"
    monkeypatch.setattr(speed, "__file__", str(tmp_path / "speed.py"))
    (tmp_path / "fluke" / "bin").mkdir(parents=True)
    (tmp_path / "fluke" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(speed, "PEERS", tmp_path)

    def turns(trainings: int, steps: int) -> None:
        found = {"cpu": 1.0, "wall": 1.0, "trainings": trainings, "steps": steps}
        script.write_text(f"import sys\nfor line in sys.stdin: print('a bar\\n' + {json.dumps(found)!r}, flush=True)")
        peer = speed.Peer("fluke-fl", tmp_path / "images.npz", {}, 1)
        try:
            in_turns({"loop": Ours(experiment, members, engine), "peer": peer}, 2)
        finally:
            peer.close()

    turns(4, STEPS)
    with pytest.raises(SystemExit, match=f"peer: 8 local trainings, {2 * STEPS} optimiser steps"):
        turns(8, 2 * STEPS)
    script.write_text("raise SystemExit(3)")
    peer = speed.Peer("fluke-fl", tmp_path / "images.npz", {}, 1)
    peer.process.wait()
    with pytest.raises(SystemExit, match="exit code 3"):
        peer.train(0)
    peer.close()


def test_our_engines_count_the_steps_that_they_take(monkeypatch):
    experiment, members = config(train={"drop_last": True}), federation(LABELS)
    about = (members, experiment.method, experiment.train, 0)
    taken = []
    update = protofed.training.Optimiser.update
    with monkeypatch.context() as patch:
        patch.setattr(protofed.training.Optimiser, "update", lambda *given: taken.append(1) or update(*given))
        assert Ours(experiment, members, Loop(*about)).round(0) == Work(4, STEPS)
    assert sum(taken) == STEPS

    stacked, rows = Stacked(*about), []
    step_for = stacked.step_for

    def watched(key, build):
        made = step_for(key, build)

        def counted(*given):
            rows.append(int((given[3].weight > 0).any(1).sum()))  # a client that has finished has no weights
            return made(*given)

        return counted

    monkeypatch.setattr(stacked, "step_for", watched)
    assert Ours(experiment, members, stacked).round(0) == Work(4, STEPS)
    assert sum(rows) == STEPS

    pool = make_engine("stacked", 2, *about)
    try:
        assert Ours(experiment, members, pool).round(0) == Work(4, STEPS)
    finally:
        pool.close()


def a_run(**changes: float) -> dict:
    """Medians of a workload W in which loop is 1.2 times the plain loop, and stacked 0.7 times central."""
    times = {"central, batch 8": 1.5, "central, batch 160": 1.0, "plain loop, FedAvg": 2.0, "loop, FedAvg": 2.4}
    times |= {"stacked, FedAvg": 0.7, "stacked, FedProto": 0.7, "fluke-fl, 1 core, FedProto": 2.1, **changes}
    rounds = {
        name: {
            "train_cpu": [9.0, value, value],
            "train_wall": [value] * 3,
            "evaluate_cpu": [0.1],
            "evaluate_wall": [0.1],
        }
        for name, value in times.items()
    }
    rounds["stacked, 2 workers, FedAvg"] = {
        "train_cpu": [None] * 3, "train_wall": [0.4] * 3, "evaluate_cpu": [None], "evaluate_wall": [0.1]
    }  # fmt: skip
    work = {name: {"trainings": 20, "steps": 901} for name in rounds if "central" not in name}
    return {"batch": 8, "clients": 20, "rounds": rounds, "work": work}


def test_ratios_are_of_medians_and_know_their_goals():
    found = speed.goals("W", a_run())
    assert {text: (goal["ratio"], speed.is_reached(goal)) for text, goal in found.items()} == {
        "loop to plain loop": (pytest.approx(1.2), False),
        "stacked to central, all clients' batch": (pytest.approx(0.7), True),
        "workers' wall to central's CPU": (pytest.approx(0.4), True),
        "evaluation's share of a round": (pytest.approx(0.125), False),
        "best peer to best engine, CPU": (pytest.approx(3.0), True),
        "best peer to our workers, wall": (pytest.approx(5.25), True),
    }
    slow = speed.goals("W", a_run(**{"pfl-research, 1 core, FedAvg": 1.4}))
    assert not speed.is_reached(slow["best peer to best engine, CPU"])


KEPT = json.loads((TOP / "docs" / "results" / "data" / "speed.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", sorted(speed_page.PAGES), ids=str)
def test_pages_say_what_was_measured(page):
    text = (TOP / page).read_text(encoding="utf-8")
    assert speed_page.with_figures(text, page, KEPT) == text, "run `python scripts/speed_page.py`"


@pytest.mark.parametrize("page", sorted(speed_page.PAGES), ids=str)
def test_another_figure_would_be_noticed(page):
    text = (TOP / page).read_text(encoding="utf-8")
    other = json.loads(json.dumps(KEPT))
    for times in other["workloads"]["W"]["rounds"].values():
        times["train_cpu"] = [value and value * (2 if number else 3) for number, value in enumerate(times["train_cpu"])]
    stacked = other["workloads"]["W"]["rounds"]["stacked, FedProto"]
    stacked["train_cpu"] = [value / 7 for value in stacked["train_cpu"]]
    assert speed_page.with_figures(text, page, other) != text


def test_the_kept_run_compared_equal_work():
    for found in KEPT["workloads"].values():
        assert len({tuple(work.values()) for work in found["work"].values()}) == 1
        assert all(len(times["train_wall"]) == KEPT["turns"] >= 3 for times in found["rounds"].values())


def test_the_table_of_pixels_is_what_was_measured():
    pixels = runpy.run_path(str(TOP / "benchmarks" / "pixels.py"))
    kept = json.loads((TOP / "docs" / "results" / "data" / "pixels.json").read_text(encoding="utf-8"))
    page = (TOP / "docs" / "performance.md").read_text(encoding="utf-8")
    assert "\n".join(map(pixels["table_row"], kept["rows"])) in page
