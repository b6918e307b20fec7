"""Clients by number and by name, where only some of them are tested, and where names look like numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import protofed
from protofed.experiment.stored import StoredRun
from protofed.pictures.drawing import _client_numbers
from protofed.report.content import gather


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on four tables, of which two clients are tested, in the folder `run`."""
    path = tmp_path_factory.mktemp("names")
    draws = np.random.RandomState(0)
    for name in ("aachen", "berlin", "chemnitz", "dresden"):
        frame = pd.DataFrame({"a": draws.randn(30), "b": draws.randn(30), "y": np.tile(["p", "q", "r"], 10)})
        frame.to_csv(path / f"{name}.csv", index=False)
    table = {
        "data": {"name": "table", "root": str(path), "target": "y", "scaling": "federated"},
        "method": {"name": "protomargin"},
        "run": {"rounds": 2},
        "eval": {"clients_sampled": 2},
    }
    protofed.run(table, path / "run")
    return path / "run"


def test_names_are_those_of_the_clients_and_not_of_the_tested_ones(folder):
    run = StoredRun.load(folder)
    tested = [row["client"] for row in run.clients]
    assert len(tested) == 2
    names = {0: "aachen", 1: "berlin", 2: "chemnitz", 3: "dresden"}
    assert run.client_names() == names
    for number, name in names.items():
        assert _client_numbers([run], [name]) == (number,)
    (axis, *_) = protofed.draw("attention", folder).figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == list(names.values())
    assert [(row["client"], row["name"]) for row in gather([run])["runs"][0]["clients"]] == [
        (number, names[number]) for number in tested
    ]


def test_a_name_that_looks_like_a_number_is_a_name(tmp_path):
    draws = np.random.RandomState(0)
    frame = pd.DataFrame({"site": np.repeat([1, 2, 3], 20), "a": draws.randn(60), "y": np.tile(["p", "q"], 30)})
    frame.loc[frame["site"] == 2, "y"] = "p"
    frame.to_csv(tmp_path / "all.csv", index=False)
    data = {"name": "table", "root": str(tmp_path / "all.csv"), "target": "y", "client": "site", "min_classes": 1}
    result = protofed.run({"data": data, "run": {"rounds": 1}})
    by_name, by_number = (protofed.measure(result, "confusion", client=client) for client in ("2", 1))
    assert repr(by_name) == repr(by_number)
    assert repr(by_name) != repr(protofed.measure(result, "confusion", client=2))
