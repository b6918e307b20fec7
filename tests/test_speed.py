"""The speed benchmark compares equal work, counted, and docs/performance.md shows what it measured."""

from __future__ import annotations

import json
import re
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
import speed  # noqa: E402
from speed import Ours, Used, Work, in_turns, same_work, summary  # noqa: E402

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
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(speed, "PEERS", tmp_path)

    def turns(trainings: int, steps: int) -> None:
        found = {"cpu": 1.0, "wall": 1.0, "trainings": trainings, "steps": steps}
        script.write_text(f"import sys\nfor line in sys.stdin: print('a bar\\n' + {json.dumps(found)!r}, flush=True)")
        peer = speed.Fluke(tmp_path / "images.npz", 1)
        try:
            in_turns({"loop": Ours(experiment, members, engine), "peer": peer}, 2)
        finally:
            peer.close()

    turns(4, STEPS)
    with pytest.raises(SystemExit, match=f"peer: 8 local trainings, {2 * STEPS} optimiser steps"):
        turns(8, 2 * STEPS)
    script.write_text("raise SystemExit(3)")
    peer = speed.Fluke(tmp_path / "images.npz", 1)
    peer.process.wait()
    with pytest.raises(SystemExit, match="exit code 3"):
        peer.train(0)
    peer.close()


def test_our_engines_count_the_steps_that_they_take(monkeypatch):
    experiment, members = config(train={"drop_last": True}), federation(LABELS)
    about = (members, experiment.method, experiment.train, 0)
    taken = []
    step = protofed.training.Optimiser.step
    with monkeypatch.context() as patch:
        patch.setattr(protofed.training.Optimiser, "step", lambda *given: taken.append(1) or step(*given))
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


def test_the_page_shows_what_was_measured():
    kept = json.loads((TOP / "docs" / "results" / "data" / "speed.json").read_text(encoding="utf-8"))
    again = summary(kept["rounds"])
    assert {key: kept[key] for key in again} == again
    seconds, ratios = kept["seconds"], kept["ratios"]
    assert {tuple(work.values()) for work in kept["work"].values()} == {(20, 901)}

    page = (TOP / "docs" / "performance.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `?(\w[^|]*?)`? \| ([\d.]+) \| ([\d.]*) ?\| ([\d.]+) \|$", page, re.MULTILINE)
    floor = seconds["central"]["train_cpu"]
    assert table == [
        (
            name,
            f"{seconds[name]['train_cpu']:.2f}",
            f"{seconds[name]['evaluate_cpu']:.2f}" if seconds[name]["evaluate_cpu"] else "",
            "1" if name == "central" else f"{seconds[name]['train_cpu'] / floor:.2f}",
        )
        for name in ("central", "loop", "stacked", "fluke-fl, 1 thread")
    ]
    turns = [
        theirs / ours
        for ours, theirs in zip(
            kept["rounds"]["stacked"]["train_cpu"], kept["rounds"]["fluke-fl, 1 thread"]["train_cpu"], strict=True
        )
    ]
    words, ratio = " ".join(page.split()), f"{ratios['fluke_cpu_to_stacked_cpu']:.1f} times the CPU seconds"
    for said in (
        f"{kept['images']:,} images",
        "20 local trainings and 901 optimiser steps per round",
        f"fluke-fl takes {ratio} of `stacked` (in single turns {min(turns):.1f} to {max(turns):.1f} times)",
        f"`loop` takes {1 / ratios['fluke_cpu_to_loop_cpu']:.1f} times those of fluke-fl",
        f"takes {100 * ratios['evaluation_to_round']:.0f} % of a round",
        f"load average {kept['load']['before'][0]:.0f}",
    ):
        assert said in words
    assert f"[{ratio}](docs/performance.md)" in (TOP / "README.md").read_text(encoding="utf-8")
