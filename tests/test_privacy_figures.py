"""The tables of docs/privacy.md are those of the kept figures, and their sentences hold for them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
PAGE = (TOP / "docs" / "privacy.md").read_text(encoding="utf-8")


def kept(name: str) -> dict:
    return json.loads((TOP / "docs" / "results" / "data" / f"{name}.json").read_text(encoding="utf-8"))


def bench(name: str) -> dict:
    return runpy.run_path(str(TOP / "benchmarks" / f"{name}.py"))


def test_the_cost_of_secure_sums_is_on_the_page():
    figures = kept("secure_sum")
    assert bench("secure_sum")["table"](figures) in PAGE
    assert {clients for row in figures.values() for clients in row} == {"10", "100", "1000"}


def test_the_cost_of_a_secure_sum_can_be_measured_again():
    row = bench("secure_sum")["measured"](10, 520)
    assert row["bytes"] == kept("secure_sum")["prototypes"]["10"]["bytes"]
    assert 0 < row["seconds"] < 5


def test_accuracy_against_epsilon_is_on_the_page():
    figures = kept("privacy")
    assert bench("privacy")["table"](figures) in PAGE
    curves = {(curve["data"], curve["name"]): curve for curve in figures["curves"]}
    assert {data for data, _ in curves} == {"digits", "mnist"}
    for curve in curves.values():  # more noise for a smaller epsilon, and no gain by noise
        noise, accuracy = curve["noise"], [sum(values) / len(values) for values in curve["accuracy"]]
        assert noise == sorted(noise, reverse=True)
        assert accuracy[0] < accuracy[-1]


def test_the_noise_of_the_figure_gives_its_epsilon():
    from protofed.trust.privacy.accounting import gaussian_epsilon

    curve = next(curve for curve in kept("privacy")["curves"] if curve["name"].startswith("fedproto"))
    for epsilon, noise in zip(curve["epsilon"][:-1], curve["noise"][:-1], strict=True):
        assert gaussian_epsilon(1 / noise, 1e-5) == pytest.approx(epsilon, rel=3e-3)


def test_the_measured_leaks_are_on_the_page_and_what_it_says_of_them_holds():
    figures = kept("leakage")
    for table in bench("leakage")["tables"](figures).values():
        assert table in PAGE
    prototypes = figures["prototypes"]
    assert prototypes["1"]["decoded, untrained"] > prototypes["1"]["decoded"] > prototypes["1"]["public mean"]
    assert all(prototypes[size]["decoded"] - prototypes[size]["public mean"] < 0.5 for size in ("5", "20", "100"))
    assert prototypes["1"]["membership"] > 0.99
    assert prototypes["2"]["membership"] > 0.85
    assert all(abs(prototypes[size]["membership"] - 0.5) < 0.03 for size in ("20", "100"))
    own = [prototypes[size]["membership, client's encoder"] for size in ("5", "20", "100")]
    assert own[0] > 0.9 > own[1] > 0.65 > own[2] > 0.5
    gradients = figures["gradients"]
    assert gradients["1"]["matched"] > 30
    assert gradients["8"]["best"] > 20
    assert max(gradients["8"]["best epsilon 8"], gradients["1"]["matched epsilon 8"]) < prototypes["1"]["public mean"]


def test_the_leaks_by_counts_can_be_measured_again():
    assert bench("leakage")["count_leaks"]() == {
        level: pytest.approx(row, rel=1e-6) for level, row in kept("leakage")["counts"].items()
    }


@pytest.mark.slow
@pytest.mark.usefixtures("mnist_root")
def test_membership_can_be_measured_again():
    """The first of the kept figures, with two of its ten repeats: one image behind a prototype is always found."""
    module = bench("leakage")
    attacker = module["Attacker"](steps=200)
    figures, _ = module["prototype_leaks"](attacker, attacker, 2)
    assert figures["1"]["membership"] == 1.0
    assert figures["100"]["membership"] < 0.7
