"""What a person types and sees."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

from protofed import cli
from protofed.cli.screen import Screen, run_verdict
from protofed.experiment.accuracy import accuracy_mean_and_std
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder
from protofed.experiment.member_nets import counts_by_share
from protofed.experiment.run import run
from protofed.experiment.wording import duration

FAST = ["--set", "run.rounds=2", "--set", "data.clients=4"]


@pytest.fixture
def protofed(monkeypatch, capsys, tmp_path):
    """The command, run here and now: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["protofed", *words])
        with pytest.raises(SystemExit) as ended:
            cli.entry()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_run_prints_lines_a_verdict_and_the_paths(protofed, tmp_path):
    code, out, err = protofed("run", *FAST)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("fedproto on digits: 4 clients, 100 % of them per round; partition nway, ")
    assert lines[1].startswith("round 1/2  supervised 2.")
    assert "  head " in lines[1]
    assert "  left " in lines[1]
    assert lines[3].startswith("fedproto on digits after 2 rounds: ")
    assert lines[4].startswith("Majority-class baseline: ")
    assert lines[5].startswith("Rule for unknown inputs, softmax: it marks ")
    assert lines[6].startswith("Per round, all clients together send ")
    assert lines[7].startswith("Written to runs/fedproto-digits-1: checkpoint/, clients.csv")
    protofed("run", *FAST)
    assert (tmp_path / "runs" / "fedproto-digits-2" / "result.json").exists()


def test_help_has_no_backslashes(protofed):
    code, out, _ = protofed("predict", "--help")
    assert code == 0
    assert "[required]" in out
    assert "\\" not in out


def test_quiet_prints_nothing_but_errors(protofed):
    assert protofed("run", *FAST, "--quiet", "--out", "a") == (0, "", "")
    code, out, err = protofed("run", *FAST, "--quiet", "--out", "a")
    assert (code, out) == (2, "")
    assert (
        err
        == "protofed: a already exists and is not empty. Continue that run with --resume (in Python: resume=True), or give another --out.\n"
    )


def test_compare_puts_runs_side_by_side(protofed):
    for method in ("fedproto", "fedavg"):
        protofed("run", *FAST, "--quiet", "--set", f"method.name={method}", "--out", method)
    code, out, _ = protofed("compare", "fedproto", "fedavg")
    assert code == 0
    assert "by prototype" in out
    assert "Careful" not in out
    listed = json.loads(protofed("compare", "fedproto", "fedavg", "--json")[1])
    assert [entry["method"] for entry in listed] == ["fedproto", "fedavg"]
    assert listed[1]["accuracy"]["prototype"] is None
    protofed("run", *FAST, "--quiet", "--set", "net.hidden=[9]", "--out", "small")
    assert "Careful" not in protofed("compare", "fedproto", "small")[1]  # other nets, the same data
    protofed("run", *FAST, "--quiet", "--set", "partition.shots=9", "--out", "other")
    assert "Careful: these runs have different partitions of the data." in protofed("compare", "fedproto", "other")[1]


def test_compare_says_what_is_not_a_run(protofed, tmp_path):
    (tmp_path / "empty").mkdir()
    assert (
        protofed("compare", "nowhere")[2]
        == "protofed: There is no folder nowhere. Give folders that `protofed run --out` or a sweep wrote.\n"
    )
    assert "empty is not a run folder" in protofed("compare", "empty")[2]


def test_errors_are_one_message_with_exit_code_2_and_nothing_is_written(protofed, tmp_path):
    code, out, err = protofed("run", "--set", "train.lr=-1", "--set", "method.pul=3", "--out", "a")
    assert (code, out) == (2, "")
    assert err.startswith("protofed: The experiment has 2 problems:\n  - ")
    assert "Traceback" not in err
    assert not (tmp_path / "a").exists()
    assert protofed("run", "--set", "partition.ways=11", "--out", "a")[0] == 2
    assert protofed("run", "--set", "net.name=cnn", "--out", "a")[2].startswith(
        "protofed: net cnn needs images of at least 16x16"
    )
    assert not (tmp_path / "a").exists()


def test_fedavg_refuses_mixed_nets(protofed, tmp_path):
    (tmp_path / "mixed.toml").write_text(
        '[method]\nname = "fedavg"\n[[net]]\nhidden = [8]\n[[net]]\nhidden = [9]\nshare = 3\n'
    )
    code, _, err = protofed("run", "mixed.toml")
    assert code == 2
    assert err == (
        "protofed: fedavg cannot average nets of different shapes: clients 0-4 have mlp(hidden=[8]), 5-19 mlp(hidden=[9]). "
        "Use one net, or a method that shares prototypes (fedproto).\n"
    )
    assert protofed("run", "mixed.toml", "--set", "method.name=fedproto", "--set", "run.rounds=1", "--quiet")[0] == 0


def test_resume_goes_on_and_changes_rounds_only(protofed):
    protofed("run", *FAST, "--quiet", "--out", "a")
    code, out, _ = protofed("run", "--resume", "--out", "a", "--set", "run.rounds=3")
    assert code == 0
    assert "Resuming after round 2." in out
    assert "round 3/3" in out
    assert protofed("run", "--resume", "--out", "a", "--set", "train.lr=1")[2].startswith(
        "protofed: Resuming a can change only run.rounds, run.seconds, run.checkpoint_every, run.keep_checkpoints, run.trace_every, run.monitor, run.tensorboard, run.watchers, data.root, engine.workers, engine.memory, engine.address, not train.lr"
    )
    assert "give --out" in protofed("run", "--resume")[2]
    assert "There is no folder nowhere." in protofed("run", "--resume", "--out", "nowhere")[2]


@pytest.mark.parametrize("kind", ["methods", "datasets", "partitions", "nets", "recipes"])
def test_list_as_text_and_json(protofed, kind):
    assert protofed("list", kind)[1].startswith(f"{kind}:\n")
    entries = json.loads(protofed("list", kind, "--json")[1])
    assert all({"name", "about", "options", "meanings"} <= set(entry) and entry["about"] for entry in entries)
    assert all(set(entry["meanings"]) == set(entry["options"]) for entry in entries)
    assert entries


def test_odd_out_folders(protofed, tmp_path):
    (tmp_path / "file").write_text("")
    assert protofed("run", *FAST, "--out", "file")[2] == "protofed: file is a file, not a folder. Give another --out.\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("")
    assert (
        protofed("run", *FAST, "--out", "mine")[2]
        == "protofed: mine already exists and is not empty. Give another --out.\n"
    )
    assert "Written to [/x]: " in protofed("run", *FAST, "--out", "[/x]")[1]
    assert protofed("run", *FAST, "--out", "file/below")[0] == 2


def test_a_full_disk_is_a_message(protofed, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "a/rounds.jsonl")

    monkeypatch.setattr("protofed.experiment.folder.Folder.add_round", full)
    code, _, err = protofed("run", *FAST, "--out", "a")
    assert (code, err) == (
        1,
        "protofed: No space left on device: a/rounds.jsonl.\nContinue with: protofed run --resume --out a\n",
    )


def test_help_tells_of_every_argument(protofed):
    assert "Experiment file (TOML)." in protofed("run", "--help")[1]
    assert "Run folders, or folders of sweeps" in protofed("compare", "--help")[1]


def test_list_of_everything_and_of_nothing(protofed):
    assert "fedproto" in protofed("list")[1]
    assert protofed("list", "metods")[2].startswith('protofed: There is no list "metods". Did you mean "methods"?')


def test_list_says_what_options_mean_and_which_data_are_there(protofed, monkeypatch, tmp_path):
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path))
    (tmp_path / "usps.npz").touch()
    assert 'distance="mse": ' in protofed("list", "methods")[1]
    lines = {line.split()[0]: line for line in protofed("list", "datasets")[1].splitlines()[1:]}
    assert lines["digits"].endswith("[ready]")
    assert lines["usps"].endswith("[ready]")
    assert lines["mnist"].endswith(f"[not here: no mnist.npz in {tmp_path}]")
    assert lines["npz"].endswith("[set data.root to your files]")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "--rounds", "5"], "There is no option --rounds. Did you mean --set run.rounds=5?"),
        (["run", "--lr=0.1"], "There is no option --lr. Did you mean --set train.lr=0.1?"),
        (["sweep", "--clients", "5"], "Did you mean --set data.clients=5 or --set eval.clients=5?"),
        (["run", "--roundz", "5"], "No such option: --roundz"),
    ],
)
def test_an_option_that_is_a_key_names_the_key(protofed, words, hint):
    code, out, err = protofed(*words)
    assert (code, out) == (2, "")
    assert hint in " ".join(err.replace("│", " ").split())


def test_version(protofed):
    assert protofed("--version")[1].startswith("protofed 0.")


def test_a_run_that_diverges_ends_with_1_and_a_sentence(protofed):
    code, out, err = protofed("run", *FAST, "--set", "train.lr=1e30", "--out", "b")
    assert (code, err.startswith("protofed: Round 1: all 4 uploads were rejected, so the run stops")) == (1, True)
    code, out, err = protofed("run", *FAST, "--set", "method.name=local", "--set", "train.lr=1e30", "--out", "a")
    assert code == 1
    assert "the run has diverged" in out
    assert err == "protofed: The run has diverged: its loss is not finite. The exit code is 1.\n"
    assert "diverged" in protofed("runs", ".")[1]
    assert "Careful: the loss of a is not finite: it has diverged." in protofed("compare", "a")[1]


def test_runs_are_listed_with_their_state(protofed, tmp_path):
    protofed("run", *FAST, "--quiet", "--out", "all/one")
    for name in ("running", "stopped", "broken"):
        shutil.copytree(tmp_path / "all" / "one", tmp_path / "all" / name)
        (tmp_path / "all" / name / "result.json").unlink()
    (tmp_path / "all" / "broken" / "config.toml").write_text("[")
    with Folder(tmp_path / "all" / "running").locked():
        code, out, _ = protofed("runs", "all", "--json")
    assert code == 0
    listed = {row["run"]: row for row in json.loads(out)}
    states = {name: row["state"] for name, row in listed.items()}
    assert states == {
        "all/one": "finished",
        "all/running": "running",
        "all/stopped": "stopped",
        "all/broken": "damaged",
    }
    one = listed["all/one"]
    assert (one["method"], one["data"], one["seed"], one["rounds"]) == ("fedproto", "digits", 0, 2)
    assert 0 < one["by head"] < 1
    assert listed["all/stopped"]["by head"] == pytest.approx(one["by head"])  # the figures so far
    assert protofed("runs", "nowhere")[2].startswith("protofed: There is no folder nowhere.")
    assert "There are no run folders in all/one/checkpoint." in protofed("runs", "all/one/checkpoint")[2]


def test_nothing_wraps_where_the_output_is_no_terminal(protofed, tmp_path):
    name = "a-rather-long-name-of-a-run-folder-that-would-be-folded-at-eighty-columns-" * 2
    protofed("run", *FAST, "--quiet", "--out", name)
    for words in (["compare", name], ["runs", "."], ["measure", name]):
        assert all("│" not in line for line in protofed(*words)[1].splitlines())
    assert f"{name}  fedproto" in protofed("compare", name)[1]


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["--help"], ["torch", "numpy", "matplotlib", "scipy", "sklearn", "pydantic"]),
        (["compare", "a", "b"], ["torch", "matplotlib", "scipy", "sklearn"]),
        (["runs", "."], ["torch", "matplotlib", "scipy", "sklearn"]),
        (["list", "methods"], ["matplotlib", "scipy", "sklearn"]),
    ],
)
def test_commands_import_only_what_they_need(protofed, tmp_path, words, unneeded):
    if words[0] != "--help":
        protofed("run", *FAST, "--quiet", "--out", "a")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    code = (
        "import sys, contextlib, io\nfrom protofed.cli import entry\n"
        f"sys.argv = ['protofed', *{words}]\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): entry()\n"
        f"print([name for name in {unneeded} if name in sys.modules])"
    )
    made = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert made.stdout.splitlines()[-1] == "[]", made.stdout


def test_the_package_is_a_command(tmp_path):
    made = subprocess.run([sys.executable, "-m", "protofed", "--version"], capture_output=True, text=True, check=True)
    assert made.stdout.startswith("protofed 0")


def test_help_does_not_load_torch():
    code = "import sys; from protofed import cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ctrl_c_says_how_to_resume(protofed, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Screen, "round", interrupted)
    code, _, err = protofed("run", *FAST, "--out", "a")
    assert code == 130
    assert "Continue with: protofed run --resume --out a" in err
    monkeypatch.undo()


@pytest.mark.parametrize(
    "words", [["sweep", "--grid", "method.pull=0,1", "--out", "s"], ["reproduce", "fedproto-table1", "--quick"]]
)
@pytest.mark.parametrize(
    ("problem", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "\nInterrupted."),
        (OSError(28, "No space left on device", "s/x"), 1, "protofed: No space left on device: s/x."),
    ],
)
def test_stopped_studies_say_how_to_continue(words, problem, code, message, protofed, monkeypatch):
    def stopped(*_: object) -> None:
        raise problem

    monkeypatch.setattr("protofed.studies.sweep.run_all", stopped)
    monkeypatch.setattr("protofed.studies.sweep.require_data", lambda *runs: None)
    assert protofed(*words)[::2] == (code, f"{message}\nRun the same command again to continue.\n")


def test_a_number_out_of_range_is_said_without_an_environment_variable(protofed):
    code, _, err = protofed("prototypes", "--classes", "1", "--dim", "3")
    assert code == 2
    assert "Invalid value for '--classes': 1 is not in the range x>=2." in err


def test_live_table_on_a_terminal():
    text = io.StringIO()
    with Screen(Console(file=text, force_terminal=True, width=100)) as screen:
        result = run(Config.of({"run": {"rounds": 15}, "data": {"clients": 3}}), watchers=[screen])
    shown = text.getvalue()
    assert "prototype" in shown
    assert "15/15" in shown
    assert len(screen.last) == 12
    assert len(run_verdict(result).splitlines()) == 4


def test_verdict_says_whether_it_is_anything():
    result = run({"run": {"rounds": 1}, "data": {"clients": 3}, "train": {"epochs": 0}, "method": {"name": "local"}})
    assert "No accuracy is higher: check the loss" in run_verdict(result)
    sure = run({"run": {"rounds": 1}, "data": {"clients": 3}, "partition": {"ways": 1, "stdev": 0}})
    assert "tested on (almost) a single class" in run_verdict(sure)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s"), (3700, "1 h 1 min")]
)
def test_durations(seconds, said):
    assert duration(seconds) == said


def test_nets_are_shared_out_by_their_shares():
    assert counts_by_share([7, 7, 6], 20) == [7, 7, 6]
    assert counts_by_share([1, 1], 5) == [3, 2]
    assert counts_by_share([1, 3], 4) == [1, 3]
    assert counts_by_share([1, 1.6, 1.4], 4) == [1, 2, 1]  # the largest remainder gets the client that is left
    assert counts_by_share([1.4, 1.8, 1.8], 5) == [1, 2, 2]


def test_accuracy_skips_clients_without_test_examples():
    assert accuracy_mean_and_std([1, 0, 3], [2, 0, 3]) == {"mean": 0.75, "std": 0.25}
    assert accuracy_mean_and_std([0], [0]) is None
