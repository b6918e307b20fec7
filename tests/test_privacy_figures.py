"""The tables of docs/privacy.md are those of the kept figures, and their sentences hold for them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

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
