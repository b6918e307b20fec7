"""Sweeps: grids, intervals and paired differences by hand, resuming, and what is shown."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protofed.cli.compare import by_setting
from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.measures.intervals import Interval, SettingRow, paired
from protofed.pictures.style import write_picture
from protofed.pictures.sweep_plot import axis_positions, draw_sweep
from protofed.studies import sweep
from test_cli import protofed as command  # noqa: F401

SMALL = ["--set", "run.rounds=2", "--set", "data.clients=3"]


def test_a_grid_is_every_combination_the_first_key_changing_slowest():
    assert sweep.grid_settings(["a.b=1,2", 'c.d="x"']) == ['a.b=1 c.d="x"', 'a.b=2 c.d="x"']
    assert sweep.grid_settings(["net.hidden=[8,8],[4]", "a.b=0"]) == ["net.hidden=[8,8] a.b=0", "net.hidden=[4] a.b=0"]
    assert sweep.grid_settings([]) == [""]


@pytest.mark.parametrize("word", ["method.pull", "pull=1,2", "method.pull="])
def test_a_word_that_is_no_grid_is_said(word):
    with pytest.raises(UserError, match=r"must look like section\.key=a,b,c"):
        sweep.grid_settings([word])


def test_an_interval_by_hand():
    # 0.5, 0.6, 0.7: standard deviation 0.1, t of two degrees of freedom 4.303
    found = Interval.of([0.5, 0.6, 0.7])
    assert found.mean == pytest.approx(0.6)
    assert found.half == pytest.approx(4.30265 * 0.1 / math.sqrt(3), rel=1e-5)
    assert found.percent() == "60.0 ± 24.8"
    assert found.excludes_zero
    assert Interval.of([0.5]) == (0.5, None, 1)
    assert not Interval.of([0.5]).excludes_zero
    assert Interval.of([0.5]).percent("+") == "+50.0"


def test_differences_are_taken_seed_by_seed():
    ours, theirs = {0: 0.90, 1: 0.50, 2: 0.70}, {0: 0.88, 1: 0.48, 2: 0.68, 7: 0.1}
    gap = paired(ours, theirs)
    assert gap is not None
    assert gap.mean == pytest.approx(0.02)
    assert gap.half == pytest.approx(0, abs=1e-12)
    assert gap.number == 3  # though seeds differ by 40 points, the difference is the same in each
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_the_best_setting_is_chosen_on_validation_and_never_on_tests():
    low = SettingRow("a.b=1", {"by head": {0: 0.99}, "validation": {0: 0.5}})
    high = SettingRow("a.b=2", {"by head": {0: 0.10}, "validation": {0: 0.6}})
    assert sweep.best_setting([low, high]) is high
    assert sweep.best_setting([SettingRow("a.b=1", {"by head": {0: 1.0}})]) is None


def test_values_stand_on_the_axis_where_they_are_or_side_by_side():
    assert axis_positions(["0", "0.5", "4"]) == {"0": 0.0, "0.5": 0.5, "4": 4.0}
    assert axis_positions(["fedavg", "local"]) == {"fedavg": 0.0, "local": 1.0}


def test_a_sweep_from_the_command_line(command, tmp_path):  # noqa: F811
    words = ["sweep", "--grid", "method.pull=0,2", "--seeds", "2", *SMALL, "--set", "eval.validation=0.2", "--out", "s"]
    code, out, err = command(*words)
    assert code == 0, err
    assert "2 settings, 2 seeds each:\n4 runs, 4 to do, two at a time" in out
    assert "4/4" in out
    assert "Best on the validation sets: method.pull=" in out
    rows = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert [row["setting"] for row in rows] == [{"method.pull": "0"}, {"method.pull": "2"}]
    first = rows[1]["figures"]["by head"]
    results = [
        json.loads((tmp_path / "s" / "method.pull=2" / f"seed-{seed}" / "result.json").read_text()) for seed in (0, 1)
    ]
    assert first["mean"] == pytest.approx(sum(one["accuracy"]["head"]["mean"] for one in results) / 2)
    apart = [row["figures"]["prototype distance"]["mean"] for row in rows]
    assert apart[1] < apart[0]  # what is pulled is nearer
    assert (tmp_path / "s" / "sweep.png").stat().st_size > 5000
    again = command(*words)[1]
    assert "4 runs, 0 to do" in again
    other = command(*words[:5], *SMALL, "--set", "train.lr=0.3", "--out", "s")
    assert other[0] == 2
    assert "holds a run of another experiment" in other[2]
    runs = [str(tmp_path / "s" / f"method.pull={pull}" / f"seed-{seed}") for pull in (0, 2) for seed in (0, 1)]
    code, out, _ = command("compare", *runs)
    assert "method.pull=2" in out
    assert "mean over seeds" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "s"], "sweep needs --grid section.key=a,b,c and --out FOLDER."),
        (["--grid", "method.pull=0,1"], "sweep needs --grid section.key=a,b,c and --out FOLDER."),
        (["--grid", "method.pul=0,1", "--out", "s"], 'method.pul: unknown key. Did you mean "pull"?'),
        (["--grid", "method.pull=1,1", "--out", "s"], "--grid: a key lists the same value twice."),
        (["--grid", "run.seed=1,2", "--out", "s"], "--grid run.seed=1,2: the seeds are chosen by --seeds N"),
        (
            ["--grid", "method.pull=1", "--grid", "method.pull=2", "--out", "s"],
            "--grid method.pull=2: method.pull is given twice.",
        ),
    ],
)
def test_what_is_wrong_is_said_before_the_first_run(words, message, command, tmp_path):  # noqa: F811
    code, _, err = command("sweep", *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "s").exists()


def test_what_is_wrong_with_one_run_is_said_at_once(command, tmp_path):  # noqa: F811
    """The other one would take minutes; it can be continued."""
    sets = ["--set", "data.clients=3", "--set", "run.rounds=20000"]
    with Folder.create(tmp_path / "s" / "method.pull=0" / "seed-0") as taken:
        code, _, err = command(
            "sweep", "--grid", "method.pull=0,2", "--seeds", "1", *sets, "--out", str(tmp_path / "s")
        )
    assert code == 2
    assert f"{taken.path} is in use by another run." in err
    assert not (tmp_path / "s" / "method.pull=2" / "seed-0" / "result.json").exists()


def test_runs_of_one_setting_are_put_together():
    def result(method: str, seed: int, share: float) -> dict:
        spread = {"mean": share, "std": 0.0}
        return {
            "run": f"runs/{method}/{seed}",
            "method": method,
            "seed": seed,
            "setting": method,
            "best": None,
            "accuracy": {"head": spread, "prototype": None},
            "global": {"accuracy": None},
        }

    rows = by_setting(
        [result("local", 0, 0.5), result("local", 1, 0.7), result("fedavg", 0, 0.6), result("fedavg", 1, 0.8)]
    )
    assert [row.setting for row in rows] == ["local", "fedavg"]
    assert rows[0].interval("by head").mean == pytest.approx(0.6)
    assert rows[1].compared_with(rows[0], "by head").mean == pytest.approx(0.1)
    assert by_setting([result("local", 0, 0.5), result("fedavg", 0, 0.5)]) == []


def test_a_grid_of_two_keys_is_drawn(tmp_path):
    rows = [
        SettingRow(f"a.b={x} c.d={name}", {"by head": {0: 0.5, 1: 0.6}, "prototype distance": {0: 1.0}})
        for x in (1, 2)
        for name in ("p", "q")
    ]
    for ending in ("png", "svg"):
        write_picture(draw_sweep(rows), tmp_path / f"s.{ending}")
        assert (tmp_path / f"s.{ending}").stat().st_size > 5000


@pytest.mark.slow
def test_a_sweep_that_is_killed_leaves_nobody_behind_and_goes_on(tmp_path):
    def words(out: str) -> list[str]:
        sets = ["--set", "data.clients=3", "--set", "run.rounds=12"]
        return ["sweep", "--grid", "method.pull=0,2", "--seeds", "2", *sets, "--out", out]

    call = [sys.executable, "-c", "from protofed.cli import entry; entry()"]
    begun = subprocess.Popen([*call, *words("killed")], cwd=tmp_path, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not any((tmp_path / "killed").glob("*/*/rounds.jsonl")) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    time.sleep(1)
    assert not workers_of(begun.pid)
    for out in ("killed", "whole"):
        subprocess.run([*call, *words(out)], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "killed" / "sweep.json").read_text() == (tmp_path / "whole" / "sweep.json").read_text()


def workers_of(parent: int) -> list[str]:
    """Processes that were started by this one and still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/environ"):
        try:
            told = (status.parent / "cmdline").read_text()
        except OSError:
            continue
        if "sweep" in told and "killed" in told and int(status.parent.name) != parent:
            found.append(told)
    return found
