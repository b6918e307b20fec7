"""Mistakes that a newcomer made with only the README in hand: each has a message with the right cause."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import protofed
from protofed.data.table.recipe import fit_recipe
from protofed.errors import ConfigError, UserError
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.sections import RunSection
from protofed.models.input_scale import table_cautions
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


def test_columns_that_differ_in_capitals_only_are_told(tmp_path):
    table = tables(tmp_path / "sites", a_csv=("x", "y"), b_csv=("x", "y"))
    file = tmp_path / "sites" / "b.csv"
    file.write_text(file.read_text().replace("age", "Age"))
    notes = " ".join(Members.of(Config.of(table)).notes)
    assert "careful: the columns 'age' (a) and 'Age' (b) differ only in capital letters or blanks" in notes


def test_a_file_of_another_format_among_tables_is_not_passed_over(tmp_path):
    table = tables(tmp_path / "sites", a_csv=("x", "y"))
    (tmp_path / "sites" / "README.md").write_text("about these files")
    (tmp_path / "sites" / ".settings.json").write_text("{}")
    (tmp_path / "sites" / "old.zip").mkdir()
    assert Members.of(Config.of(table)).names == ("a",)
    (tmp_path / "sites" / "fourth.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"fourth\.xlsx is not read: tables end in \.csv.*Save it as CSV"):
        Members.of(Config.of(table))


def test_numbers_that_are_too_large_for_inputs_are_refused(tmp_path):
    table = tables(tmp_path / "sites", a_csv=("x", "y"))
    file = tmp_path / "sites" / "a.csv"
    file.write_text(file.read_text().replace("\n10,", "\n1e300,"))
    with pytest.raises(UserError, match=r'"age" has values larger than 3\.4e\+38, such as 1e\+300'):
        Members.of(Config.of(table))


def test_rows_of_a_table_in_another_unit_are_told(command, tmp_path):  # noqa: F811
    root = tables(tmp_path / "sites", a_csv=("x", "y"), b_csv=("x", "y"))["data"]["root"]
    words = ["data.name=table", f"data.root={root}", "data.target=outcome", "run.rounds=1"]
    assert command("run", *(part for word in words for part in ("--set", word)), "--out", "r")[0] == 0
    (tmp_path / "rows.csv").write_text("age\n10\n20\n")
    assert "Careful" not in command("predict", "r", "--client", "a", "--input", "rows.csv")[2]
    (tmp_path / "rows.csv").write_text("age\n10000\n20000\n")
    err = command("predict", "r", "--client", "a", "--input", "rows.csv")[2]
    assert 'Careful: the column "age", with values from 10000 to 20000, seems to have another scale' in err


def test_a_partition_that_mixes_the_clients_of_an_own_file_is_told(command, tmp_path):  # noqa: F811
    draw = np.random.RandomState(0)
    np.savez(
        tmp_path / "own.npz",
        x=draw.normal(size=(300, 4)),
        y=np.arange(300) % 3,
        client=np.array(["a", "b", "c"])[np.arange(300) // 100],
    )
    table = {"data": {"name": "npz", "root": str(tmp_path / "own.npz")}}
    mixed = Members.of(Config.of({**table, "partition": {"name": "iid"}})).notes
    assert any("of 3 clients an example belongs to, and partition iid mixes them" in note for note in mixed)
    only_one = tmp_path / "one.npz"
    np.savez(only_one, x=draw.normal(size=(30, 4)), y=np.arange(30) % 3, client=np.array(["a"] * 30))
    one = {"data": {"name": "npz", "root": str(only_one)}, "partition": {"name": "iid"}}
    assert not Members.of(Config.of(one)).notes
    for name in ("natural", "pooled"):
        assert not Members.of(Config.of({**table, "partition": {"name": name}})).notes
    assert (
        "246 training and 54 test examples of 3 classes" in command("data", "info", "own.npz")[1]
    )  # the name of a file is understood


def test_a_rare_property_is_not_taken_for_another_unit():
    """A column that is 1 in one of 200 training rows: 14 standard deviations from its mean, and an ordinary value."""
    rare = np.arange(400) % 200 == 0
    recipe = fit_recipe(pd.DataFrame({"smoker": rare.astype(float)}), {"smoker": "number"}, "y")
    assert table_cautions(recipe, pd.DataFrame({"smoker": [1.0]})) == []
    assert len(table_cautions(recipe, pd.DataFrame({"smoker": [100.0]}))) == 1


@pytest.mark.parametrize(
    ("table", "problems"),
    [
        ({"data": {"name": "digts", "clients": -3}}, ["data.clients: got -3", 'data.name: there is no "digts"']),
        ({"train": {"epochs": float("inf")}}, ["train.epochs: got inf; must be a finite number"]),
    ],
)
def test_every_wrong_value_is_told_once(table, problems):
    with pytest.raises(ConfigError) as refused:
        Config.of(table)
    assert len(refused.value.problems) == len(problems)
    for problem in problems:
        assert any(one.startswith(problem) for one in refused.value.problems)


def test_clients_and_newcomers_without_examples_are_told(run):
    with pytest.raises(UserError, match="data: no client has an example"):
        protofed.Federation([(np.zeros((0, 4)), np.zeros(0, int))])
    with pytest.raises(UserError, match="The newcomer has no examples"):
        protofed.join(run, (np.zeros((0, 1, 8, 8)), np.zeros(0, int)))


def test_a_table_for_a_model_of_arrays_is_told(run, command, tmp_path):  # noqa: F811
    (tmp_path / "rows.csv").write_text("age\n10\n")
    err = command("predict", str(run), "--client", "0", "--input", "rows.csv")[2]
    assert "rows.csv is a table, but the model takes arrays [n, 1, 8, 8]. Give an .npy file." in err


@pytest.mark.parametrize("rounds", [1, 7, 40, 41])
@pytest.mark.parametrize(("every", "last"), [(0, 0), (1, 0), (5, 0), (5, 3), (20, 20), (3, 50)])
def test_the_number_of_tests_is_that_of_the_rounds_that_are_tested(rounds, every, last):
    run = RunSection(rounds=rounds, eval_every=every, eval_last=last)
    tested = [number for number in range(1, rounds + 1) if run.is_tested(number, number == rounds)]
    assert run.number_of_tests() == len(tested)
