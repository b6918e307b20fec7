"""Tables of the clients of a deployed federation: the same rounds and answers as in a run on one machine."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

import protofed
from grid import LocalGrid, federate, without_time
from protofed.deploy.client_data import read_client_data
from protofed.errors import UserError
from protofed.experiment.config import Config, read_toml
from test_cli import protofed as command  # noqa: F401
from test_client_tables import folder, rows  # noqa: F401

NAMES = ("north", "south", "west")
EXPERIMENT = """
[run]
rounds = 2

[data]
name = "table"
root = "sites"
target = "outcome"
drop = ["west:age"]

[eval]
validation = 0.2
"""


def without_limits(clients):
    """Rows of clients.csv without what only a client itself can compute: its temperature, its rule for unknown inputs."""
    return [
        {key: value for key, value in row.items() if not re.match("unknown|false|temperature|auc", key)}
        for row in clients
    ]


@pytest.fixture
def deployed(folder, command):  # noqa: F811
    (folder.parent / "e.toml").write_text(EXPERIMENT)
    code, _, problem = command("deploy", "init", "e.toml", "fed", "--clients", ",".join(NAMES))
    assert (code, problem) == (0, "")
    return folder.parent / "fed"


def test_the_rounds_are_those_of_a_run(deployed, monkeypatch):
    monkeypatch.chdir(deployed.parent)
    result = federate(deployed, LocalGrid(deployed, NAMES))
    run = protofed.run({**read_toml(Path("e.toml")), "engine": {"name": "loop", "workers": 1}}, "run")
    assert without_time(result.rounds) == without_time(run.rounds)  # bit for bit, with the same engine
    assert [row["name"] for row in result.clients] == list(NAMES)
    assert without_limits(result.clients) == without_limits(run.clients)
    for file in (deployed / "server").rglob("*.json*"):  # medians, scales and categories stay with the client
        assert "dose" not in file.read_text(), file


def test_a_client_predicts_raw_rows_as_in_a_run(deployed, command):  # noqa: F811
    federate(deployed, LocalGrid(deployed, NAMES))
    assert command("run", "e.toml", "--out", "run")[0] == 0
    rows(9, 7, columns=("sex", "dose")).drop(columns="outcome").to_csv(deployed.parent / "new.csv", index=False)
    for words in (("fed/clients/south", "--out", "fed.csv"), ("run", "--client", "south", "--out", "run.csv")):
        code, _, problem = command("predict", words[0], "--input", "new.csv", *words[1:])
        assert (code, problem) == (0, "")
    answers, expected = (pd.read_csv(deployed.parent / name) for name in ("fed.csv", "run.csv"))
    pd.testing.assert_frame_equal(answers, expected, rtol=1e-4)


def test_a_client_knows_the_texts_that_mean_missing(folder, command):  # noqa: F811
    root = folder.parent
    (root / "e.toml").write_text(EXPERIMENT.replace("[eval]", 'missing = ["?"]\n\n[eval]'))
    assert command("deploy", "init", "e.toml", "fed", "--clients", ",".join(NAMES))[0] == 0
    federate(root / "fed", LocalGrid(root / "fed", NAMES))
    assert command("export", "fed/clients/south", "--out", "south.safetensors")[0] == 0
    for text in ("", "?"):
        (root / f"new{text}.csv").write_text(f"sex,dose\nf,{text}\n{text},2.5\n")
    for model in ("fed/clients/south", "south.safetensors"):
        empty, marked = (command("predict", model, "--input", f"new{text}.csv") for text in ("", "?"))
        assert empty[0] == 0
        assert marked == empty


def test_tables_may_come_later_and_have_another_format(folder, command):  # noqa: F811
    (folder.parent / "e.toml").write_text(EXPERIMENT)
    code, screen, _ = command("deploy", "init", "e.toml", "fed", "--clients", "north,south", "--own-data")
    assert code == 0
    assert "Missing: the data of north, south." in screen
    client = folder.parent / "fed" / "clients" / "north"
    assert "the label in the column `outcome`" in (client / "README.md").read_text()
    assert 'data = "data.csv"' in (client / "client.toml").read_text()
    assert Config.load(client / "experiment.toml").data.root == ""
    code, _, problem = command(
        "deploy", "init", "e.toml", "fed2", "--clients", "n,s", "--data", "n=sites/north.csv,s=sites/south.parquet"
    )
    assert (code, problem) == (0, "")
    assert (folder.parent / "fed2" / "clients" / "s" / "data.parquet").exists()
    settings = (folder.parent / "fed2" / "clients" / "s" / "client.toml").read_text()
    assert 'data = "data.parquet"' in settings
    assert "position = 1 " in settings


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--clients", "north,south"), "got north, south, but sites has the tables of north, south, west"),
        (("--clients", "3"), "got client-0, client-1, client-2, but sites has the tables of north, south, west"),
        (("--clients", "a", "--data", "a=a.npz"), "a.npz: the experiment's data are tables"),
        (("--clients", "a", "--data", "a=sites/none.csv"), "There is no file sites/none.csv"),
        (
            ("--clients", "a,b,c", "--own-data", "--set", "data.scaling=federated"),
            "which a deployed federation cannot do yet",
        ),
        (("--clients", "a,b,c", "--set", "data.root=sites/north.csv", "--set", "data.client=sex"), "is not a folder"),
    ],
)
def test_what_cannot_be_deployed_is_explained(words, problem, folder, command):  # noqa: F811
    (folder.parent / "e.toml").write_text(EXPERIMENT)
    code, _, text = command("deploy", "init", "e.toml", "fed", *words)
    assert code == 2
    assert problem in " ".join(text.split())
    assert not (folder.parent / "fed").exists()


def test_a_table_needs_an_experiment_on_tables(folder):  # noqa: F811
    with pytest.raises(
        UserError, match=r"is a table, but the experiment says nothing about tables\. Give it a \[data\]"
    ):
        read_client_data(folder / "north.csv", Config.of({}))
