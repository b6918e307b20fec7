"""docs/theory.md: its tables and sentences follow from the kept rows, and the rows from the formulas and the runs."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

import protofed
from protofed.experiment.bounds.monitor import read_bounds
from protofed.experiment.config import Config
from protofed.theory import fednh_bounds, fedproto_bounds, mpfedcl_bounds
from protofed.theory.statements import STATEMENTS

TOP = Path(__file__).parents[1]
PAGE = (TOP / "docs" / "theory.md").read_text(encoding="utf-8")
_KEPT = json.loads((TOP / "docs" / "results" / "data" / "theory.json").read_text(encoding="utf-8"))
KEPT = {
    name: {**run, "rows": [dict(zip(run["columns"], row, strict=True)) for row in run["rows"]]}
    for name, run in _KEPT.items()
}
FEDPROTO = [name for name in KEPT if name.startswith(("digits", "mnist"))]
CLOSE = 1e-4
"""Rows are kept with six significant digits, and a bound is a difference of such numbers."""


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "scripts")
    yield importlib.import_module("theory_page")
    for name in ("theory_page", "series"):
        sys.modules.pop(name, None)


def groups(rows):
    return [[row for row in rows if row["round"] == number] for number in dict.fromkeys(row["round"] for row in rows)]


def test_the_page_has_the_tables_and_commands_of_the_kept_rows(script):
    assert set(KEPT) == set(script.RUNS)
    for name in ("digits", "digits-small", "mnist", "fednh", "mpfedcl"):
        assert script.table(KEPT[name]["rows"]) in PAGE, name
        assert script.command(name) in PAGE.replace(" \\\n  ", " "), name
    assert script.premise_table(KEPT) in PAGE
    assert all(KEPT[name]["command"] == script.command(name) for name in KEPT)
    assert {name: run["rows"] for name, run in script.read_kept().items()} == {
        n: run["rows"] for n, run in KEPT.items()
    }


def test_the_sentence_about_dropout_and_lemma_1():
    def shares(*names):  # of eta S, by which the loss falls
        return [-row["training_change"] / (row["lr"] * row["S"]) for name in names for row in KEPT[name]["rows"]]

    def constants(*names):
        return [row["L1"] for name in names for row in KEPT[name]["rows"]]

    dropout, without = ("mnist-4", "mnist-4-no-momentum"), ("mnist-4-no-dropout", "mnist-4-neither")
    fewest, most = (round(100 * limit(shares(*without))) for limit in (min, max))
    text = re.sub(r"\s+", " ", PAGE)
    for sentence in (
        f"({fewest} to {most} %, instead of {100 * min(shares(*dropout)):.0f} to {100 * max(shares(*dropout)):.0f} % with",
        f"({min(constants(*without)):.0f} to {max(constants(*without)):.0f} instead of {min(constants(*dropout)):.0f} to "
        f"{max(constants(*dropout)):.0f})",
    ):
        assert sentence in text, sentence


@pytest.mark.parametrize("name", FEDPROTO)
def test_fedproto_bounds_follow_from_the_constants(name):
    for rows in groups(KEPT[name]["rows"]):
        l2, g, most = (max(row[key] for row in rows) for key in ("L2", "G", "steps"))
        for row in rows:
            eta, steps, lam = row["lr"], row["steps"], row["pull"]
            one = fedproto_bounds.fedproto_lemma1(L1=row["L1"], sigma2=row["sigma2"], eta=eta, E=steps, S=row["S"])
            assert row["training_bound"] == pytest.approx(one, rel=CLOSE, abs=CLOSE * eta * row["S"])
            two = fedproto_bounds.fedproto_lemma2(lam=lam, L2=l2, eta=eta, E=most, G=g)
            assert row["printed"] == pytest.approx(one + two, rel=CLOSE, abs=CLOSE)
            if "l2" in KEPT[name]["command"]:
                assert two * (1 - CLOSE) <= row["server_bound"] <= 4 / 3 * two * (1 + CLOSE)  # smoothed below 0.1
            assert row["bound"] == pytest.approx(row["training_bound"] + row["server_bound"], rel=CLOSE, abs=CLOSE)
            factor = row["server_bound"] / two  # of the run's distance
            limit = fedproto_bounds.fedproto_largest_eta(
                L1=row["L1"], L2=l2, sigma2=row["sigma2"], G=g, lam=lam * factor * most / steps, E=steps, S=row["S"]
            )
            assert row["largest_lr"] == pytest.approx(limit, rel=1e-2, abs=1e-6)
            assert row["holds"] == (row["change"] <= row["bound"] + 1e-6 * (1 + abs(row["loss"])))
            assert row["change"] == pytest.approx(row["training_change"] + row["server_change"], abs=1e-5)


def test_fednh_bounds_follow_from_the_constants():
    for rows in groups(KEPT["fednh"]["rows"]):
        g, most = (max(row[key] for row in rows) for key in ("G", "steps"))
        for row in rows:
            words = {"sigma2": row["sigma2"], "eta": row["lr"], "S": row["S"], "M_G": g, "s": 1.0, "moved": 0.0}
            own, server = (
                fednh_bounds.fednh_lemma3(**{"L_g": row["L1"], "J": row["steps"]} | words | changes)
                for changes in ({"M_G": 0.0}, {"L_g": 0.0, "S": 0.0, "J": most, "moved": row["W_step"]})
            )
            assert row["bound"] == pytest.approx(own + server, rel=CLOSE)
            assert row["smallest_epsilon"] == pytest.approx((1 - row["rho"]) * row["kappa"] / most, rel=CLOSE)
            assert row["highest_square"] <= row["lemma1"] < row["smallest_epsilon"] / 2


def test_mpfedcl_bounds_follow_from_the_constants():
    for row in KEPT["mpfedcl"]["rows"]:
        words = {"L2": row["L2"], "eta": row["lr"], "G": row["G"], "tau": 10.0, "v": row["v"]}
        both = mpfedcl_bounds.mpfedcl_theorem1(L1=row["L1"], delta2=row["delta2"], square=row["S"], **words)
        assert row["bound"] == pytest.approx(both, rel=CLOSE)
        assert row["steps"] == 1


def test_the_sentences_of_the_page_are_true():
    def negative(name):
        rows = KEPT[name]["rows"]
        return f"{sum(row['bound'] < 0 for row in rows)} of {len(rows)}"

    assert negative("digits") == "0 of 80"
    assert negative("digits-small") == "80 of 80"
    for name in ("digits-corollary", "digits-mse"):
        assert f"negative in {negative(name)}" in " ".join(PAGE.split()), negative(name)
    small = sorted(abs((row["bound"] - row["change"]) / row["change"]) for row in KEPT["digits-small"]["rows"])
    assert 0.05 < small[len(small) // 2] < 0.06
    assert all(
        row["holds"] for name in ("digits", "digits-small", "mnist", "fednh", "mpfedcl") for row in KEPT[name]["rows"]
    )
    failed = sum(not row["training_holds"] for row in KEPT["mnist"]["rows"])
    assert f"fails in {failed} of {len(KEPT['mnist']['rows'])} rounds" in " ".join(PAGE.split())
    first, last = ([row for row in KEPT["digits"]["rows"] if row["round"] == number] for number in (5, 20))
    assert 0.011 < min(row["largest_pull"] for row in first) < 0.012
    assert min(row["bound"] for row in KEPT["digits"]["rows"]) > 2.49
    assert sum(not row["training_holds"] for row in KEPT["digits"]["rows"]) == 3
    assert round(min(row["largest_pull"] for row in last), 4) == 0.0005
    fednh = KEPT["fednh"]["rows"]
    assert round(max(row["theta_change"] for row in fednh), 2) == 0.19
    assert round(max(row["server_bound"] for row in fednh), 1) == 6.7
    assert round(min(row["smallest_epsilon"] for row in fednh)) == 67
    assert max(row["highest_square"] for row in fednh) < 6
    assert all(row["largest_lr"] == 0 for row in KEPT["digits"]["rows"])
    assert all(
        row["largest_lr"] > row["lr"] and row["largest_pull"] > row["pull"] for row in KEPT["digits-small"]["rows"]
    )
    factors = [row["server_bound"] / -row["training_change"] for row in KEPT["mpfedcl"]["rows"]]
    assert 30 < min(factors) < max(factors) < 50


def test_the_page_names_every_function_and_every_test_that_it_mentions():
    for statement in STATEMENTS:
        for bound in (*statement.printed, *statement.corrected):
            assert f"`{bound.__name__}`" in PAGE, bound.__name__
    tests = "".join(file.read_text(encoding="utf-8") for file in (TOP / "tests").glob("test_theory*.py"))
    mentioned = re.findall(r"`(test_\w+)`", PAGE)
    assert len(mentioned) > 3
    assert all(f"def {name}(" in tests for name in mentioned)


def test_a_kept_run_can_be_computed_again(tmp_path, script):
    """Five rounds of digits-small; another processor may round differently."""
    recipe, words = script.RUNS["digits-small"]
    config = Config.load(TOP / "recipes" / f"{recipe}.toml", [*words.split(), "run.rounds=5"])
    protofed.run(config, tmp_path / "run")
    kept = [row for row in KEPT["digits-small"]["rows"] if row["round"] == 5]
    for ours, theirs in zip(read_bounds(tmp_path / "run"), kept, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ("loss", "change", "bound", "S", "L1", "L2", "G", "sigma2", "largest_pull"):
            assert ours[key] == pytest.approx(theirs[key], rel=2e-2, abs=1e-5), key
