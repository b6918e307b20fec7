"""`run.seconds`: a time budget ends a run after a round, and the rounds themselves are those of any run."""

from __future__ import annotations

import io
import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import protofed
from protofed.cli.screen import Screen, run_verdict
from protofed.errors import ConfigError, UserError
from protofed.experiment.checkpoint import checkpoint_names
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder
from protofed.experiment.groups import group_by_setting
from protofed.experiment.run import run
from protofed.experiment.stored import StoredRun
from protofed.experiment.watchers import Watcher
from protofed.messages import flatten
from protofed.studies.comparison import compare
from protofed.studies.sweep import finish_run


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    """Every look at the clock takes a second: a round takes 1 s, and 2 s if it is tested."""
    ticks = count()
    monkeypatch.setattr("protofed.experiment.runner.time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))


def table(**run_keys) -> dict:
    return {"run": {"rounds": 20, **run_keys}, "data": {"clients": 4}, "net": {"hidden": [8]}}


def rows(folder: Path) -> list[dict]:
    """rounds.jsonl without its times."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in Folder(folder).rounds()]


def same(a: protofed.Result, b: protofed.Result) -> bool:
    """Whether two runs ended with the same state."""
    first, second = (flatten({"server": one.state.server, "kept": dict(one.state.kept)}) for one in (a, b))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class StopAfter(Watcher):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round(self, row):
        if row["round"] == self.rounds:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("seconds", "rounds"), [(0.5, 1), (2, 1), (4, 2), (5, 3), (39, 20), (41, 20), (0, 20)])
def test_the_run_ends_after_the_first_round_with_that_many_seconds(seconds, rounds):
    result = run(table(seconds=float(seconds)))
    assert [row["seconds"] for row in result.rounds] == [2] * rounds
    assert result.summary["rounds"] == rounds
    assert result.summary["ended_by"] == ("rounds" if rounds == 20 else "seconds")
    assert result.summary["seconds"]["total"] == 2 * rounds


def test_its_rounds_are_those_of_a_run_with_that_many_rounds(tmp_path):
    budget, plain = run(table(seconds=5.0), tmp_path / "budget"), run(table(rounds=3), tmp_path / "plain")
    assert same(budget, plain)
    assert rows(tmp_path / "budget") == rows(tmp_path / "plain")
    times = ("ended_by", "seconds")
    assert {key: value for key, value in budget.summary.items() if key not in times} == {
        key: value for key, value in plain.summary.items() if key not in times
    }
    for name in ("clients.csv", "unknown.json"):
        assert (tmp_path / "budget" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    loaded = protofed.Result.load(tmp_path / "budget")
    assert same(loaded, plain)
    assert loaded.state.config.run.rounds == budget.state.config.run.rounds == 3
    assert Config.load(tmp_path / "budget" / "config.toml").run.rounds == 20


def test_the_last_round_has_what_every_last_round_has(tmp_path):
    keys = {"eval_every": 10, "checkpoint_every": 10, "trace_every": 10}
    for name, length in (("budget", {"seconds": 3.5}), ("plain", {"rounds": 4})):
        result = run({**table(**keys, **length), "eval": {"validation": 0.2}}, tmp_path / name)
        assert [row["seconds"] for row in result.rounds] == [1, 1, 1, 2]
        assert [row["accuracy_head"] is not None for row in result.rounds] == [False, False, False, True]
        assert result.summary["best"]["round"] == 4
        assert result.summary["global"] is not None
        assert Folder(tmp_path / name).traced_rounds() == [4]
        assert checkpoint_names(tmp_path / name / "checkpoint") == ["000004", "000000"]
    assert rows(tmp_path / "budget") == rows(tmp_path / "plain")


@pytest.mark.parametrize("every", [1, 5])
def test_a_resumed_run_counts_its_earlier_rounds(every, tmp_path):
    keys = {"seconds": 6.5, "eval_every": every}
    whole = run(table(**keys), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(table(**keys), tmp_path / "parts", watchers=[StopAfter(2)])
    resumed = run(table(**keys), tmp_path / "parts", resume=True)
    assert len(resumed.rounds) == {1: 4, 5: 6}[every]
    assert same(resumed, whole)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert resumed.summary == whole.summary


def test_a_run_that_its_budget_ended_is_finished(tmp_path):
    first = run(table(seconds=5.5, eval_every=4, trace_every=4), tmp_path / "run")
    assert first.summary["rounds"] == 5
    lines = (tmp_path / "run" / "rounds.jsonl").read_text()
    (tmp_path / "run" / "result.json").unlink()
    again = run(table(seconds=5.5, eval_every=4, trace_every=4), tmp_path / "run", resume=True)
    assert again.summary == first.summary == json.loads((tmp_path / "run" / "result.json").read_text())
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == lines
    assert Folder(tmp_path / "run").traced_rounds() == [4, 5]


def test_more_time_goes_on_as_if_it_had_never_ended(tmp_path):
    keys = {"eval_every": 3, "trace_every": 3}
    whole = run(table(rounds=7, **keys), tmp_path / "whole")
    assert run(table(rounds=7, seconds=1.5, **keys), tmp_path / "parts").summary["rounds"] == 2
    assert run(table(rounds=7, seconds=6.0, **keys), tmp_path / "parts", resume=True).summary["rounds"] == 4
    assert Folder(tmp_path / "parts").traced_rounds() == [3, 4]
    end = run(table(rounds=7, seconds=0.0, **keys), tmp_path / "parts", resume=True)
    assert end.summary["ended_by"] == "rounds"
    assert same(end, whole)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert Folder(tmp_path / "parts").traced_rounds() == [3, 6, 7]


def test_more_rounds_do_not_add_time_and_fewer_are_refused(tmp_path):
    assert run(table(rounds=3, seconds=5.0), tmp_path / "run").summary["ended_by"] == "rounds"
    longer = run(table(rounds=9, seconds=5.0), tmp_path / "run", resume=True)
    assert (longer.summary["rounds"], longer.summary["ended_by"]) == (3, "seconds")
    with pytest.raises(UserError, match=r"run.rounds: got 2, but .* has 3\. Use 3 or more"):
        run(table(rounds=2, seconds=5.0), tmp_path / "run", resume=True)


def test_less_time_than_was_used_is_refused(tmp_path):
    run(table(seconds=5.0), tmp_path / "run")
    with pytest.raises(UserError) as refused:
        run(table(seconds=4.0), tmp_path / "run", resume=True)
    assert str(refused.value) == (
        f"run.seconds: got 4, but the rounds before the last one in {tmp_path / 'run'} took 4.0 s. "
        "Use more than that, or 0 for no limit."
    )
    assert (tmp_path / "run" / "result.json").exists()
    assert run(table(seconds=4.5), tmp_path / "run", resume=True).summary["rounds"] == 3


def test_models_that_are_scored_in_their_last_round_need_to_know_it():
    with pytest.raises(ConfigError, match=r"run.seconds: cannot be used together with eval.personal"):
        Config.of({**table(seconds=5.0), "eval": {"personal": True}})
    Config.of({**table(), "eval": {"personal": True}})
    with pytest.raises(ConfigError, match=r"run.seconds: got -1.0; must be 0 or more"):
        Config.of(table(seconds=-1.0))


def test_a_sweep_takes_it_as_finished_and_another_budget_as_another_experiment(tmp_path):
    config = Config.of({**table(seconds=5.0), "engine": {"workers": 1}})
    assert finish_run(tmp_path / "run", config)["rounds"] == 3
    written = (tmp_path / "run" / "result.json").stat().st_mtime_ns
    assert finish_run(tmp_path / "run", config)["ended_by"] == "seconds"
    assert (tmp_path / "run" / "result.json").stat().st_mtime_ns == written
    with pytest.raises(UserError, match="holds a run of another experiment"):
        finish_run(tmp_path / "run", Config.of({**table(seconds=9.0), "engine": {"workers": 1}}))


def test_runs_with_other_budgets_are_other_settings_and_curves(tmp_path):
    for seconds in (5.0, 9.0):
        run(table(seconds=seconds), tmp_path / f"{seconds:g}")
    assert len({result["setting"] for result in compare(tmp_path / "5", tmp_path / "9").as_json()}) == 2
    names = group_by_setting([StoredRun.load(tmp_path / name) for name in ("5", "9")])
    assert list(names) == ["fedproto, seconds=5.0", "fedproto, seconds=9.0"]


def test_the_screen_says_that_the_budget_ended_the_run(tmp_path):
    text = io.StringIO()
    with Screen(Console(file=text, width=200)) as screen:
        result = run(table(seconds=5.0), tmp_path / "run", watchers=[screen])
    left = [line.rpartition("left ")[2] for line in text.getvalue().splitlines() if line.startswith("round ")]
    assert left == ["3 s", "1 s", "0 s"]  # not the time of twenty rounds
    assert "after 3 rounds" in run_verdict(result)
    assert "3 rounds took 6 s (2.00 s per round). The time budget, run.seconds, ended the run." in run_verdict(result)
    with Screen(Console(file=text, width=200)) as screen:
        run(table(seconds=5.0), tmp_path / "run", resume=True, watchers=[screen])
    assert "The run is complete after 3 rounds, all that run.seconds allows." in text.getvalue()
    assert "run.seconds" not in run_verdict(run(table(rounds=2)))
