"""A pull to prototypes that gets out of hand is said, with its cause, once."""

from __future__ import annotations

import io
import sys
import warnings

import pytest
from rich.console import Console

import protofed
from protofed import cli
from protofed.cli.screen import Screen, run_verdict
from protofed.errors import StoppedRunError
from protofed.experiment.config import Config
from protofed.experiment.divergence import all_rejected, pull_warning
from protofed.experiment.folder import Folder

TABLE = {"run": {"rounds": 6}, "data": {"clients": 4, "limit": 300}}
NAN = float("nan")


def losses(*pairs: tuple[float | None, float | None]) -> list[dict]:
    """Rounds with these cross-entropies and pulls."""
    return [{"round": n, "loss": {"supervised": s, "pull": p}} for n, (s, p) in enumerate(pairs, 1)]


def test_the_first_round_that_is_too_strong_is_named():
    config = Config.of({"method": {"pull": 1e6}, "train": {"lr": 0.01}})
    rows = losses((2.2, 0.0), (0.5, 990.0), (2.2, 3e3), (2.2, 3.9e21))
    assert pull_warning(config, rows) == (
        "Round 3: the term pull of the loss is 3e+03 and the cross-entropy 2.2, so that clients follow the prototypes and "
        "do not learn. Try a smaller method.pull (it is 1e+06) or train.lr (it is 0.01)."
    )
    assert pull_warning(config, rows[:2]) == ""


@pytest.mark.parametrize("lost", [NAN, None, float("inf")])
def test_a_loss_that_is_not_finite_is_blamed_on_the_pull_only_if_it_began_with_it(lost):
    config = Config.of({"method": {"pull": 1e6}})
    begins = pull_warning(config, losses((2.2, 0.0), (lost, lost), (lost, lost)))
    assert begins.startswith("Round 2: the loss is not finite since clients are pulled to prototypes. Try a smaller")
    assert pull_warning(config, losses((lost, lost), (lost, lost))) == ""  # before there were prototypes
    assert pull_warning(config, losses((2.2, 0.0), (2.0, 0.3), (lost, lost))) == ""  # long after
    assert pull_warning(config, losses((1e9, 0.0), (lost, lost))) == ""  # it was lost before


def test_a_run_without_pull_or_without_training_is_never_warned():
    assert pull_warning(Config.of({"method": {"name": "local"}}), [{"round": 1, "loss": {"supervised": 5e9}}]) == ""
    assert pull_warning(Config.of({}), [{"round": 1, "loss": {}}]) == ""


def test_from_python_it_is_one_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = protofed.run({**TABLE, "method": {"pull": 1e6}})
    assert [warning.category for warning in caught] == [RuntimeWarning]
    assert "Try a smaller method.pull (it is 1e+06)" in str(caught[0].message)
    assert "Try a smaller method.pull" in run_verdict(result)
    assert "The loss is not finite: the run has diverged" not in run_verdict(result)


def test_the_monitor_does_not_hide_it(tmp_path):
    with pytest.warns(RuntimeWarning, match=r"Try a smaller method\.pull"):
        protofed.run({**TABLE, "run": {"rounds": 2, "monitor": 2}, "method": {"pull": 1e6}}, tmp_path / "run")


def test_on_the_screen_it_is_one_line():
    text = io.StringIO()
    with Screen(Console(file=text, width=200)) as screen:
        protofed.run({**TABLE, "method": {"pull": 1e6}}, watchers=[screen])
    assert text.getvalue().count("Try a smaller method.pull") == 1


@pytest.mark.parametrize("method", ["fedproto", "fedtgp", "fpl"])
def test_ordinary_runs_are_not_warned(method):
    result = protofed.run({**TABLE, "method": {"name": method}})  # a warning would be an error here
    assert "method.pull" not in run_verdict(result)


def test_a_learning_rate_that_is_too_large_is_still_the_cause():
    with pytest.raises(StoppedRunError) as stopped:
        protofed.run({**TABLE, "train": {"lr": 1e20}})
    assert str(stopped.value) == (
        "Round 1: all 4 uploads were rejected, so the run stops (clients by reason: prototypes/mean is not finite: "
        "0, 1, 2, 3). The loss is not finite: the run has diverged. Try a smaller train.lr (it is 1e+20), or train.clip."
    )
    result = protofed.run({**TABLE, "method": {"name": "local"}, "train": {"lr": 1e20}})  # nothing is uploaded
    assert "The loss is not finite: the run has diverged. Try a smaller train.lr, or train.clip." in run_verdict(result)


def test_a_run_that_stops_can_be_ended_with_the_rounds_before(tmp_path, monkeypatch, capsys):
    """Exit code 1; the message names the command that writes the results of the rounds before."""
    monkeypatch.chdir(tmp_path)
    words = ["run", "--set", "data.clients=3", "--set", "run.rounds=4", "--set", "method.pull=1e38", "--out", "r"]

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["protofed", *words])
        with pytest.raises(SystemExit) as ended:
            cli.entry()
        return ended.value.code or 0, capsys.readouterr().err

    code, message = command(*words)
    assert code == 1
    assert message.startswith("protofed: Round 2: all 3 uploads were rejected, so the run stops")
    assert (
        "Round 2: the loss is not finite since clients are pulled to prototypes. Try a smaller method.pull" in message
    )
    assert message.endswith("`protofed run --resume --out r --set run.rounds=1` writes their results.\n")
    assert not (tmp_path / "r" / "result.json").exists()
    assert command("run", "--resume", "--out", "r") == (1, message)  # the same again
    assert command("run", "--resume", "--out", "r", "--set", "run.rounds=1", "--quiet") == (0, "")
    assert protofed.Result.load("r").summary["rounds"] == 1


@pytest.mark.parametrize("personal", [False, True])
def test_fewer_rounds_are_advised_only_where_they_are_not_refused(personal, tmp_path):
    rows = [{"round": 1, "loss": {"supervised": 1.0}}, {"round": 2, "loss": {"supervised": 1.0}}]
    stopped = all_rejected(Config.of({"eval": {"personal": personal}}), rows, {0: "it is stale"}, Folder(tmp_path))
    assert ("--set run.rounds=1" in str(stopped)) != personal
