"""Mistakes that a newcomer made with only the README in hand: each has a message with the right cause."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.pictures.catalogue import PICTURES
from test_cli import protofed as command  # noqa: F401

SMALL = ("--set", "run.rounds=1", "--set", "data.clients=3")


@pytest.fixture
def run(command, tmp_path):  # noqa: F811
    assert command("run", *SMALL, "--out", "r")[0] == 0
    return tmp_path / "r"


def tables(folder, **outcomes):
    """A table per client, by the name of its file, with these outcomes."""
    folder.mkdir()
    for file, names in outcomes.items():
        values = np.arange(20) + len(file)
        pd.DataFrame({"age": values, "outcome": [names[row % len(names)] for row in range(20)]}).to_csv(
            folder / file.replace("_", "."), index=False
        )
    return {"data": {"name": "table", "root": str(folder), "target": "outcome"}}


def test_endings_of_tables_may_have_capital_letters(tmp_path):
    table = tables(tmp_path / "sites", a_csv=("yes", "no"), B_CSV=("yes", "no"))
    assert Members.of(Config.of(table)).names == ("B", "a")


def test_classes_that_differ_in_capitals_or_blanks_only_are_told(tmp_path):
    table = tables(tmp_path / "sites", a_csv=("ill", "well"), b_csv=("Ill ", "well"))
    notes = Members.of(Config.of(table)).notes
    assert (
        "careful: the classes 'ill' (a) and 'Ill ' (b) differ only in capital letters or blanks, and are taken for "
        "different classes" in notes
    )
    assert not any("careful" in note for note in Members.of(Config.of(tables(tmp_path / "t", a_csv=("x", "y")))).notes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--what", "curves", "--client", "99"), "--client: the picture curves does not use it; similarity, blocks, "),
        (("--what", "partition", "--class", "3"), "--class: the picture partition does not use it; blocks, embeddings"),
        (("--what", "losses", "--by", "prototype"), "--by: the picture losses does not use it; curves, cost, clients"),
        (("--what", "tsne", "--window", "5"), "--window: the picture tsne does not use it; curves, losses, cost do."),
    ],
)
def test_options_that_a_picture_does_not_use_are_refused(words, message, run, command):  # noqa: F811
    code, _, err = command("draw", str(run), *words, "--out", "p.png")
    assert code == 2
    assert message in err


def test_the_help_names_the_pictures_that_use_an_option(command):  # noqa: F811
    text = " ".join(command("draw", "--help")[1].split())
    for option, field in (("window", "window"), ("client", "clients")):
        users = ", ".join(name for name, picture in PICTURES.items() if field in picture.uses)
        assert f"For {users}: " in text, option


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data", "info", "digits", "--root", "nowhere"), "--root nowhere: digits is read from no folder."),
        (("measure", "r", "--what", "./notes.txt:f"), "notes.txt is not a Python file: its name must end in .py."),
        (("measure", "nope"), "There is no folder nope. Give the --out of an earlier `protofed run`."),
        (("measure", "notes.txt"), "notes.txt is a file. Give the --out of an earlier `protofed run`."),
        (("run", *SMALL, "--resume", "--out", "nope"), "There is no folder nope."),
        (
            ("run", *SMALL, "--set", "data.name=mnist", "--set", "data.root=nope", "--resume", "--out", "r"),
            "not data.name. Start a new run for that.",
        ),
        (("join", "r", "--data", "new.npz", "--start", "notes.txt"), "notes.txt has no weights: its name must end in"),
        (("join", "r", "--data", "new.npz", "--start", "list.pt"), "only tensors. Write one with torch.save("),
        (("data", "convert", "leaf", "."), "Give the folder that has train/ and test/, with .json files."),
    ],
)
def test_the_message_has_the_right_cause(words, message, run, command, tmp_path):  # noqa: F811
    (tmp_path / "notes.txt").write_text("raise SystemExit(7)")
    np.savez(tmp_path / "new.npz", x=np.zeros((6, 64)), y=np.arange(6) % 2)
    torch.save({"hook": print}, tmp_path / "list.pt")
    code, out, err = command(*words)
    assert code == 2, out
    assert message in err
    assert "weights_only" not in err  # torch advises to load any object


def test_a_sweep_names_what_differs_before_it_announces_runs(command, tmp_path):  # noqa: F811
    words = ("sweep", "--grid", "method.pull=0,1", "--seeds", "1", *SMALL, "--out", "s")
    assert command(*words)[0] == 0
    code, out, err = command(*words, "--set", "run.rounds=2", "--set", "train.lr=0.5")
    assert code == 2
    assert "holds a run of another experiment, with another run.rounds, train.lr. Give another --out" in err
    assert "to do" not in out
    assert "with another data.clients. Give" in command(*words, "--set", "data.clients=4")[2]


def test_data_of_a_study_are_asked_for_before_its_runs(command, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path))
    code, out, err = command("reproduce", "fedproto-table1", "--quick", "--out", "r")
    assert code == 2
    assert "The runs need the dataset mnist, which is not here: no mnist.npz in" in err
    assert "to do" not in out


def test_a_table_model_asks_for_a_table(command, tmp_path):  # noqa: F811
    from protofed import run as run_experiment

    run_experiment(
        {**tables(tmp_path / "sites", a_csv=("x", "y"), b_csv=("x", "y")), "run": {"rounds": 1}}, tmp_path / "t"
    )
    (tmp_path / "notes.txt").write_text("age")
    code, _, err = command("predict", "t", "--client", "a", "--input", "notes.txt")
    assert code == 2
    assert "notes.txt is not a table. This model takes rows of one: .csv, " in err


def test_options_of_a_checked_net_may_be_written_as_elsewhere(command):  # noqa: F811
    for word in ("net.dim=3", "dim=3"):
        assert "passed all checks" in command("check", "mlp", "--set", word)[1]


def test_recipes_are_described_by_a_complete_sentence(command):  # noqa: F811
    text = " ".join(command("list", "recipes")[1].split())
    assert "et al. 2022): MNIST" in text
    assert "al. " in text
    assert not any(line.rstrip().endswith("et al.") for line in command("list", "recipes")[1].splitlines())
