"""Sweeps: grids, intervals and paired differences by hand, resuming, and what is shown."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from protofed.data.dataset import data_folder
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder
from protofed.experiment.run import run as run_experiment
from protofed.experiment.stored import StoredRun
from protofed.measures.intervals import Interval, SettingRow, best_row, paired, read_sweep
from protofed.pictures.style import write_picture
from protofed.pictures.sweep_plot import draw_sweep
from protofed.studies import plan, sweep
from protofed.studies.comparison import Comparison, compare, settings_table
from test_cli import protofed as command  # noqa: F401

SMALL = ["--set", "run.rounds=2", "--set", "data.clients=3"]


def test_a_grid_is_every_combination_the_first_key_changing_slowest():
    assert plan.grid_settings(["a.b=1,2", 'c.d="x"']) == [("a.b=1", 'c.d="x"'), ("a.b=2", 'c.d="x"')]
    assert plan.grid_settings(["net.hidden=[8,8],[4]", "a.b=0"]) == [
        ("net.hidden=[8,8]", "a.b=0"),
        ("net.hidden=[4]", "a.b=0"),
    ]
    assert plan.grid_settings(['a.b="x, y",z']) == [('a.b="x, y"',), ("a.b=z",)]
    assert plan.grid_settings([]) == [()]


@pytest.mark.parametrize("word", ["method.pull", "pull=1,2", "method.pull="])
def test_a_word_that_is_no_grid_is_said(word):
    with pytest.raises(UserError, match=r"must look like section\.key=a,b,c"):
        plan.grid_settings([word])


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
    assert not Interval.of([1.1e-16, 0.0, 0.0]).excludes_zero  # rounding
    assert not Interval.of([3.7e-17, 3.7e-17]).excludes_zero
    assert Interval.of([1e-6, 1e-6]).excludes_zero


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


def drawn(settings: list[str]) -> tuple[list[list[float]], list[str]]:
    """The x positions of the lines and points of a sweep's first panel, and how they are joined."""
    rows = [SettingRow(name, {"by head": {0: 0.5, 1: 0.6}}) for name in settings]
    axis = draw_sweep(rows).axes[0]
    joined = [container.lines[0] for container in axis.containers]
    return [line.get_xdata().tolist() for line in joined], [line.get_linestyle() for line in joined]


def test_numbers_are_joined_where_they_are_and_categories_are_points_side_by_side():
    assert drawn(["a.b=0", "a.b=0.5", "a.b=4"]) == ([[0.0, 0.5, 4.0]], ["-"])
    assert drawn(["method.name=fedavg", "method.name=local"]) == ([[0.0], [1.0]], ["None", "None"])
    assert drawn(["FedAvg", "Local only"]) == ([[0.0], [1.0]], ["None", "None"])


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
    runs = [str(tmp_path / "s" / f"method.pull={pull}" / f"seed-{seed}") for seed in (0, 1) for pull in (0, 2)]
    code, out, _ = command("compare", *runs)
    assert "fedproto, pull=2" in out
    assert "mean over seeds" in out
    assert command("compare", "s")[1] == out  # the folder of a sweep stands for its runs
    latex = command("compare", "s", "--format", "latex")[1]
    assert r"\begin{tabular}{lrrrrr}" in latex
    assert command(*words, "--format", "csv")[1].startswith("setting,by head,by head ±,")
    assert command("draw", "s", "--what", "curves", "--out", "c.png")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "s"], "sweep needs settings to compare: --grid section.key=a,b,c, --runs A.toml,B.toml, or a FILE"),
        (["--grid", "method.pull=0,1"], "sweep needs --out FOLDER, for its runs."),
        (["--grid", "method.pul=0,1", "--out", "s"], 'method.pul: unknown key of fedproto. Did you mean "pull"?'),
        (
            ["--grid", "run.seed=1,2", "--out", "s"],
            "--grid run.seed=1,2: the seeds are chosen by --seeds. Use --seeds 1,2.",
        ),
        (
            ["--grid", "method.pull=0,1", "--set", "run.seed=4", "--out", "s"],
            "--set run.seed=4: the seeds of a sweep are",
        ),
        (
            ["--grid", "method.pull=0,1", "--seeds", "0,x", "--out", "s"],
            "--seeds: got 0,x; must be the number of seeds",
        ),
        (["--grid", "method.pull=0,1", "--seeds", "2,2", "--out", "s"], "--seeds: got [2, 2]; must be the number of"),
        (["--grid", "method.pull=0,1", "--seeds", "0", "--out", "s"], "--seeds: got 0; must be the number of seeds"),
        (
            ["--grid", "method.pull=1,-5,x", "--out", "s"],
            "2 problems:\n  - method.pull=-5: method.pull: got -5; must be 0 or more\n  - method.pull=x: method.pull: got",
        ),
        (
            ["--grid", "method.name=fedproto,fedavg", "--set", "method.pull=0.5", "--out", "s"],
            "method.name=fedavg: method.pull: unknown key of fedavg.",
        ),
        (["x.toml", "--runs", "a.toml", "--out", "s"], "--runs has the experiment files of the sweep: leave FILE out"),
        (["--runs", "nowhere.toml", "--out", "s"], "There is no experiment file nowhere.toml."),
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


def test_a_setting_that_diverges_does_not_stop_the_others(command, tmp_path):  # noqa: F811
    out = tmp_path / "s"
    sets = [f"--set={word}" for word in ("data.clients=3", "run.rounds=3", "method.name=fedavg", "eval.validation=0.2")]
    words = ["sweep", "--grid", "train.lr=0.1,1e30", "--seeds", "2", *sets, "--out", str(out)]
    for _ in range(2):  # the same command again says the same
        code, text, _ = command(*words)
        said = " ".join(text.split())
        assert code == 0
        assert "train.lr=1e30 (2 of 2 runs stopped)" in said
        assert "Stopped, and in none of the figures: train.lr=1e30, seed 1. Round 1: all 3 uploads were reject" in said
        assert "Try a smaller train.lr (it is 1e+30)" in said
        assert "Best on the validation sets: train.lr=0.1." in said
        assert "--resume" not in said  # a run with fewer rounds would be one of another sweep
    good, bad = json.loads((out / "sweep.json").read_text())
    assert good["stopped"] == {}
    assert set(good["figures"]["by head"]["seeds"]) == {"0", "1"}
    assert set(bad["stopped"]) == {"0", "1"}
    assert bad["figures"] == {}
    assert [set(row.stopped) for row in read_sweep(out)] == [set(), {0, 1}]


def test_a_sweep_in_which_all_runs_stop_is_an_error(command, tmp_path):  # noqa: F811
    sets = [f"--set={word}" for word in ("data.clients=3", "run.rounds=3", "method.name=fedavg")]
    words = ["sweep", "--grid", "train.lr=1e29,1e30", "--seeds", "1", *sets, "--out", str(tmp_path / "s")]
    code, _, err = command(*words)
    assert code == 1
    assert "All runs have stopped. train.lr=1e29: Round 1: all 3 uploads were rejected" in err


def test_a_setting_with_a_stopped_run_is_not_the_best():
    """Its mean is that of the seeds that went well."""
    lucky = SettingRow("a.b=1", {"validation": {0: 0.9, 1: 0.91}}, stopped={2: "Round 3: ..."})
    plain = SettingRow("a.b=2", {"validation": {0: 0.5, 1: 0.51, 2: 0.52}})
    assert sweep.best_setting([lucky, plain]) is plain
    assert best_row([lucky, plain], "validation") is None
    assert best_row([lucky._replace(stopped={}), plain], "validation").setting == "a.b=1"
    assert settings_table([lucky, plain]).rows[0][0] == "a.b=1 (1 of 3 runs stopped)"


def test_heads_are_compared_among_the_clients_own_classes():
    """The single head of fedavg chooses among all classes, that of a client of local knows only its own."""
    local = SettingRow("local", {"by head": {0: 0.95, 1: 0.95}, "own classes": {0: 0.95, 1: 0.95}})
    fedavg = SettingRow("fedavg", {"by head": {0: 0.90, 1: 0.91}, "own classes": {0: 0.98, 1: 0.99}})
    table = settings_table([local, fedavg])
    assert table.heads[-1] == "own classes, minus the first"
    assert table.rows[1][-1].text == "+3.5 ± 6.4"
    former = [row._replace(figures={"by head": row.figures["by head"]}) for row in (local, fedavg)]
    assert settings_table(former).heads[-1] == "by head, minus the first"
    stopped = SettingRow("fednh", {}, stopped={0: "", 1: ""})
    assert settings_table([local, stopped]).heads[-1] == "own classes, minus the first"


def stored(method: str, seed: int, share: float, *words: str) -> StoredRun:
    """A run that only says that it has been."""
    spread = {"mean": share, "std": 0.0}
    summary = {
        "method": method,
        "dataset": "digits",
        "seed": seed,
        "rounds": 50,
        "best": None,
        "majority": None,
        "accuracy": {"head": spread, "prototype": None},
        "global": {"accuracy": None},
        "personal": {},
        "cost": {"up_params": 1, "up_bytes": 4, "down_bytes": 4},
        "seconds": {"total": 1.0},
    }
    config = Config.load(None, [f"method.name={method}", f"run.seed={seed}", *words])
    return StoredRun(Path(f"runs/{method}/{seed}"), config.table(), summary, [], [])


def test_runs_of_one_setting_are_put_together():
    runs = [stored("local", 0, 0.5), stored("local", 1, 0.7), stored("fedavg", 0, 0.6), stored("fedavg", 1, 0.8)]
    rows = Comparison(runs).rows
    assert [row.setting for row in rows] == ["local", "fedavg"]
    assert rows[0].interval("by head").mean == pytest.approx(0.6)
    assert rows[1].compared_with(rows[0], "by head").mean == pytest.approx(0.1)
    assert Comparison([stored("local", 0, 0.5), stored("fedavg", 0, 0.5)]).rows == []


def test_runs_with_other_numbers_of_rounds_are_other_settings():
    runs = [stored("local", 0, 0.5), stored("local", 1, 0.7), stored("local", 2, 0.1, "run.rounds=5")]
    rows = Comparison(runs).rows
    assert [(row.setting, list(row.figures["by head"])) for row in rows] == [
        ("local, rounds=50", [0, 1]),
        ("local, rounds=5", [2]),
    ]


def test_a_run_of_an_older_version_gets_the_defaults_that_it_lacks():
    old, new = stored("fedavg", 0, 0.5), stored("fedavg", 1, 0.6)
    del old.settings["train"]["augment"]
    assert len(Comparison([old, new]).rows) == 1


def test_only_what_makes_a_comparison_hard_is_remarked():
    pair = [stored("local", 0, 0.5), stored("fedavg", 0, 0.5)]
    assert not any("Careful" in note for note in Comparison(pair).notes)
    assert "Careful: these runs have different seeds." in Comparison([*pair, stored("local", 1, 0.5)]).notes
    complete = [*pair, stored("local", 1, 0.5), stored("fedavg", 1, 0.5)]
    assert not any("Careful" in note for note in Comparison(complete).notes)


def test_the_best_is_bold_where_its_differences_exclude_0():
    sure = [stored("local", seed, 0.5 + seed / 10) for seed in range(3)]
    better = [stored("fedavg", seed, 0.55 + seed / 10 + seed / 1000) for seed in range(3)]
    table = Comparison([*sure, *better]).table
    assert [row[1].bold for row in table.cells] == [False, True]
    assert any(note.startswith("Bold: the highest mean") for note in table.notes)
    noisy = [stored("fedavg", seed, (0.5, 0.9, 0.6)[seed]) for seed in range(3)]
    table = Comparison([*sure, *noisy]).table
    assert [row[1].bold for row in table.cells] == [False, False]
    assert len(table.notes) == 1


COMPARED = """
[run]
rounds = 2
[data]
clients = 3
[method]
name = "fedproto"
distance = "l2"
[[compare]]
method.pull = 0.5
[[compare]]
label = "FedNH (0.9)"
method.name = "fednh"
method.rho = 0.9
[[compare]]
method.name = "local"
"""


def test_settings_of_a_file_have_their_own_options(tmp_path):
    (tmp_path / "c.toml").write_text(COMPARED)
    runs, notes = plan.plan_sweep(tmp_path / "c.toml", tmp_path / "s", (0, 7), sets=["run.rounds=1"])
    assert notes == []
    assert [(run.setting, run.seed) for run in runs[:3]] == [("pull=0.5", 0), ("FedNH (0.9)", 0), ("local", 0)]
    assert [run.seed for run in runs] == [0, 0, 0, 7, 7, 7]
    first, second, third = (run.config for run in runs[:3])
    assert (first.method.pull, first.method.distance, second.method.rho) == (0.5, "l2", 0.9)
    assert [one.method_name for one in (first, second, third)] == ["fedproto", "fednh", "local"]
    assert {one.run.rounds for one in (first, second, third)} == {1}
    assert runs[1].out == tmp_path / "s" / "FedNH+(0.9)" / "seed-0"
    crossed = plan.plan_sweep(tmp_path / "c.toml", tmp_path / "s", (0,), ["train.lr=0.1,0.2"]).runs
    assert [run.setting for run in crossed[:3]] == [
        "pull=0.5 train.lr=0.1",
        "pull=0.5 train.lr=0.2",
        "FedNH (0.9) train.lr=0.1",
    ]


def test_files_are_settings(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(f"[train]\nlr = 0.{ord(name) - 96}\n")
    settings = plan.file_settings([tmp_path / "a.toml", tmp_path / "b.toml"])
    runs = plan.plan_sweep(None, tmp_path / "s", (0,), settings=settings).runs
    assert [(run.setting, run.config.train.lr) for run in runs] == [("a", 0.1), ("b", 0.2)]


def test_equal_settings_are_made_once(tmp_path):
    runs, notes = plan.plan_sweep(None, tmp_path / "s", (0,), ["method.pull=1,1.0,2,1"])
    assert [run.setting for run in runs] == ["method.pull=1", "method.pull=2"]
    assert notes == [
        "method.pull=1.0 is the same experiment as method.pull=1: it is run once.",
        "method.pull=1 is the same experiment as method.pull=1: it is run once.",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[compare]]\nlabel = 'a'\n[[compare]]\nlabel = 'a'\n",
            'two settings are called "a". Give each another label',
        ),
        ("[[compare]]\nmethod = 'fedavg'\n", 'method = "fedavg" is not a table of keys. Write section.key = value'),
        ("[[compare]]\nrun.seed = 3\n", "[[compare]] 1: run.seed: the seeds are chosen by --seeds."),
        ("compare = 3\n", "[[compare]]: must be a list of tables"),
        (
            "[[compare]]\nmethod.pul = 1\n[[compare]]\nmethod.name = 'local'\n",
            "pul=1: method.pul: unknown key of fedproto.",
        ),
    ],
)
def test_wrong_compare_tables_are_said(text, message, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(UserError) as problem:
        plan.plan_sweep(tmp_path / "c.toml", tmp_path / "s", (0,))
    assert message in str(problem.value)


def labelled(*labels: str) -> dict:
    """An experiment that compares settings with these labels."""
    return {"compare": [{"label": text, "method": {"pull": float(number)}} for number, text in enumerate(labels)]}


@pytest.mark.parametrize(("first", "second"), [("a b", "a+b"), ("a/b", "a_b")])
def test_two_settings_with_the_same_folder_are_refused(first, second, tmp_path):
    with pytest.raises(UserError) as caught:
        plan.plan_sweep(labelled(first, second), tmp_path / "s", [0])
    folder = first.replace(" ", "+").replace("/", "_")
    assert str(caught.value) == (
        f'The settings "{first}" and "{second}" would both have the folder {folder}. Give one of them another label.'
    )


@pytest.mark.parametrize("text", [".", ".."])
def test_a_setting_does_not_leave_the_folder_of_its_sweep(text, tmp_path):
    with pytest.raises(UserError) as caught:
        plan.plan_sweep(labelled(text), tmp_path / "s", [0])
    assert str(caught.value) == f'The setting "{text}" cannot be the name of a folder. Give it another label.'


def test_a_long_name_of_a_setting_is_shortened_to_a_folder_of_its_own(tmp_path):
    long = ["ä" * 150 + ending for ending in "xy"]
    runs = plan.plan_sweep(labelled(*long, "b" * 200), tmp_path / "s", [0]).runs
    names = [run.out.parent.name for run in runs]
    assert len(set(names)) == 3
    assert max(len(name.encode()) for name in names) == 200
    assert [name[:50] for name in names] == ["ä" * 50] * 2 + ["b" * 50]
    assert names[2] == "b" * 200  # not shortened
    for run in runs:
        run.out.mkdir(parents=True)
    assert [run.setting for run in runs] == [*long, "b" * 200]
    assert plan.plan_sweep(labelled(*long, "b" * 200), tmp_path / "s", [0]).runs == runs


def test_a_file_with_compare_tables_is_no_experiment(tmp_path):
    (tmp_path / "c.toml").write_text(COMPARED)
    with pytest.raises(UserError, match=r"these are the settings of a sweep. Run the file with `protofed sweep`"):
        Config.load(tmp_path / "c.toml")


def test_a_sweep_does_not_go_into_a_run_or_another_sweep(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    with pytest.raises(UserError, match=r"run is the folder of a run. Give another --out for the sweep."):
        plan.plan_sweep(None, tmp_path / "run", (0,), ["method.pull=1,2"])
    runs = plan.plan_sweep(None, tmp_path / "s", (0,), ["method.pull=1,2"]).runs
    plan.write_plan(tmp_path / "s", runs)
    with pytest.raises(UserError, match=r"another sweep: it has method.pull=1, seed 0, which this one has not."):
        plan.plan_sweep(None, tmp_path / "s", (0,), ["method.pull=2,3"])
    more = plan.plan_sweep(None, tmp_path / "s", (0, 1), ["method.pull=1,2,3"]).runs  # one that goes on
    assert len(more) == 6


def test_a_grid_of_two_keys_is_drawn(tmp_path):
    rows = [
        SettingRow(f"a.b={x} c.d={name}", {"by head": {0: 0.5, 1: 0.6}, "prototype distance": {0: 1.0}})
        for x in (1, 2)
        for name in ("p", "q")
    ]
    for ending in ("png", "svg"):
        write_picture(draw_sweep(rows), tmp_path / f"s.{ending}")
        assert (tmp_path / f"s.{ending}").stat().st_size > 5000


PAPER = """
[run]
rounds = 2
[data]
name = "cifar10"
clients = 4
limit = 400
[partition]
name = "dirichlet"
alpha = 0.1
[net]
name = "lenet"
[[compare]]
label = "FedProto_1"
method.name = "fedproto"
method.pull = 0.5
[[compare]]
method.name = "fednh"
method.rho = 0.9
[[compare]]
method.name = "fedavg"
[[compare]]
method.name = "local"
"""


@pytest.mark.slow
def test_four_methods_give_a_table_and_a_figure_for_a_paper(command, tmp_path):  # noqa: F811
    if not (data_folder("") / "cifar10.npz").exists():
        pytest.skip("no cifar10.npz; set PROTOFED_DATA to the folder that has it")
    (tmp_path / "paper.toml").write_text(PAPER)
    code, latex, err = command("sweep", "paper.toml", "--seeds", "3", "--out", "s", "--format", "latex")
    assert code == 0, err
    rows = [line.split(" & ")[0] for line in latex.splitlines() if line.endswith(r"\\")]
    assert rows == ["setting", r"FedProto\_1", "fednh rho=0.9", "fedavg", "local"]
    assert command("draw", "s", "--what", "curves", "--out", "figure.pdf")[0] == 0
    pdf = (tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    if not shutil.which("pdflatex"):
        pytest.skip("pdflatex is not installed (Debian: texlive-latex-base, texlive-latex-recommended)")
    page = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}\n"
    page += latex + "\\includegraphics{figure.pdf}\\end{document}\n"
    (tmp_path / "paper.tex").write_text(page, encoding="utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    made = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-2000:]
    assert b"/Type3" not in (tmp_path / "paper.pdf").read_bytes()


@pytest.mark.slow
def test_a_sweep_that_is_killed_leaves_nobody_behind_and_goes_on(tmp_path):
    def words(out: str) -> list[str]:
        sets = ["--set", "data.clients=3", "--set", "run.rounds=12"]
        return ["sweep", "--grid", "method.pull=0,2", "--seeds", "2", *sets, "--out", out]

    call = [sys.executable, "-c", "from protofed.cli import entry; entry()"]
    begun = subprocess.Popen([*call, *words("killed")], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        assert becomes_true(lambda: any((tmp_path / "killed").glob("*/*/rounds.jsonl")), 120), "no round ended"
        assert processes_in(tmp_path) > {begun.pid}  # its workers are found
    finally:
        os.kill(begun.pid, signal.SIGKILL)
        begun.wait()
    assert becomes_true(lambda: not processes_in(tmp_path), 20), processes_in(tmp_path)
    for out in ("killed", "whole"):
        subprocess.run([*call, *words(out)], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "killed" / "sweep.json").read_text() == (tmp_path / "whole" / "sweep.json").read_text()


def becomes_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition becomes true within this time."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


def processes_in(folder: Path) -> set[int]:
    """The processes that run in this folder."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # the process has ended, or is another user's
            if link.readlink() == folder:
                found.add(int(link.parent.name))
    return found


def test_values_of_a_grid_in_python_stay_one_value_each_whatever_is_in_them():
    values = ["a,b", "it's", "both \",' of them", "[1", "plain", [8, 8], 0.5, True]
    settings = plan.grid_settings(plan.grid_words({"data.path": values}))
    assert [plan.toml_or_text(word.removeprefix("data.path=")) for (word,) in settings] == values
    assert settings[4:5] == [("data.path=plain",)]


@pytest.mark.parametrize("values", ["fedavg", 0.5])
def test_values_of_a_grid_in_python_that_are_no_list_are_said(values):
    with pytest.raises(UserError, match=r"the values of method\.name must be a list"):
        plan.grid_words({"method.name": values})


def test_a_grid_without_values_is_said():
    with pytest.raises(UserError, match="there are no values"):
        plan.grid_settings(["method.pull=,"])


def test_the_best_of_equal_settings_with_different_numbers_of_seeds_is_the_first():
    figures = [{"by head": {0: 0.5}, "validation": {0: 0.5}}, {"by head": {0: 0.5, 1: 0.5}, "validation": {1: 0.5}}]
    rows = [SettingRow(name, figure) for name, figure in zip("ab", figures, strict=True)]
    assert "50.0" in settings_table(rows).text()
    rows[1].figures["validation"][2] = 0.5
    assert sweep.best_setting(rows) is rows[0]


def test_a_client_that_diverged_leaves_no_distance_that_is_no_number():
    result = run_experiment({"run": {"rounds": 1}, "data": {"clients": 2}}, progress=False)
    assert (sweep._prototype_distance(result) or 0) > 0
    kept = dict(result.state.kept)
    kept[1] = kept[1]._replace(params={name: value * torch.nan for name, value in kept[1].params.items()})
    assert sweep._prototype_distance(replace(result, state=result.state._replace(kept=kept))) is None


def test_a_run_in_memory_has_the_partition_of_the_same_run_in_a_folder(tmp_path):
    table = {"run": {"rounds": 1}, "data": {"clients": 3}}
    run_experiment({**table, "method": {"name": "local"}}, tmp_path / "local", progress=False)
    same = compare(run_experiment(table, progress=False), tmp_path / "local")
    assert not [note for note in same.notes if "different partitions" in note]
    other = compare(run_experiment({**table, "data": {"clients": 2}}, progress=False), tmp_path / "local")
    assert [note for note in other.notes if "different partitions" in note]
