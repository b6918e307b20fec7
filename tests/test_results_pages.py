"""The results pages: their tables are those of the kept figures. Tests of sentences are in a file per paper."""

from __future__ import annotations

import json
import runpy

import pytest

from kept import DOCS, text_of
from protofed.measures.intervals import Interval
from protofed.methods import METHODS
from protofed.studies.reproduce.studies import STUDIES

STUDY_FILES = [
    file for file in sorted((DOCS / "data").glob("*.json")) if "cells" in json.loads(file.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("file", sorted(DOCS.glob("*.md")), ids=lambda file: file.stem)
def test_tables_between_marks_are_what_the_script_writes(file):
    script = runpy.run_path(str(DOCS.parents[1] / "scripts" / "results_tables.py"))
    text = file.read_text(encoding="utf-8")
    assert script["with_tables"](text) == text, "run python scripts/results_tables.py"


def test_every_kept_table_is_on_a_page():
    marks = runpy.run_path(str(DOCS.parents[1] / "scripts" / "results_tables.py"))["MARKED"]
    marked = {name for file in DOCS.glob("*.md") for name, _ in marks.findall(file.read_text(encoding="utf-8"))}
    assert {file.stem for file in STUDY_FILES} <= marked


def test_the_main_claims_are_confirmed_only_by_intervals_that_exclude_0():
    script = runpy.run_path(str(DOCS.parents[1] / "scripts" / "results_tables.py"))
    verdicts = [script["verdict"](gap) for gap in (Interval(0.02, 0.01, 3), Interval(-0.02, 0.01, 3), None)]
    assert verdicts == ["yes", "no, the opposite", "undecided"]
    assert script["verdict"](Interval(0.005, 0.01, 3)) == "undecided"
    assert script["verdict"](Interval(0.02, None, 1)) == "undecided"
    lines = script["main_claims"]().splitlines()[2:]
    assert len(lines) == sum(len(claims) for claims in script["CLAIMS"].values())
    assert any("+3.08" in line and "n = 3" in line for line in lines)  # 97.13 - 94.05, the paper's Table 1


def test_the_page_of_segmentation_has_the_number_of_runs(tmp_path):
    study = STUDIES["protomargin-figure5"]
    assert f"# {len(study.jobs(tmp_path, study.seeds, False))} runs;" in text_of("segmentation.md")


def test_tables_of_another_version_of_a_study_are_not_shown(monkeypatch, tmp_path):
    script = runpy.run_path(str(DOCS.parents[1] / "scripts" / "results_tables.py"))
    monkeypatch.setitem(script["tables"].__globals__, "DOCS", tmp_path)
    assert script["tables"]("fedproto-table1") == "This table has not been run yet."
    (tmp_path / "data").mkdir()
    stored = json.loads((DOCS / "data" / "fedproto-table1.json").read_text())
    for cell in stored["cells"]:
        cell["digest"] = "0"
    (tmp_path / "data" / "fedproto-table1.json").write_text(json.dumps(stored))
    assert script["tables"]("fedproto-table1").startswith("The kept figures are those of an earlier version")


def test_the_table_of_all_methods_is_the_kept_one_and_its_sentences_follow_from_it():
    script = runpy.run_path(str(DOCS.parents[1] / "scripts" / "methods_table.py"))
    text = script["PAGE"].read_text(encoding="utf-8")
    assert script["with_table"](text) == text, "run python scripts/methods_table.py"
    kept = json.loads(script["KEPT"].read_text(encoding="utf-8"))
    assert sorted(kept) == sorted(METHODS)
    one_for_all = {"fedavg", "fedprox", "fedatt", "creff", "protomargin", "fesem", "fednh", "fpl", "mpfedcl"}
    by_head, own = (
        {name: 100 * row["accuracy"][way]["mean"] for name, row in kept.items()} for way in ("head", "head_own")
    )
    shared, personal = [{name: own[name] for name in names} for names in (one_for_all, set(kept) - one_for_all)]
    assert {round(by_head[name]) for name in shared} == {94, 95, 96}
    assert {round(by_head[name]) for name in personal} == {97, 98}
    assert kept["creff"]["accuracy"] == kept["fedavg"]["accuracy"]  # the same model is tested
    times = {name: f"{row['seconds'] / kept['fedavg']['seconds']:.1f}" for name, row in kept.items()}
    page = " ".join(text.split())
    assert [
        words
        for words in (
            f"training alone reaches {by_head['local']:.1f} %",
            f"models for all have {min(shared.values()):.1f} to {max(shared.values()):.1f} %",
            f"stays with the client {min(personal.values()):.1f} to {max(personal.values()):.1f} %",
            f"ditto: {times['ditto']} times",
            f"one of the body, {times['fedrep']} times",
            f"matching and retraining, {times['creff']} times",
            f"has an accuracy of {100 * kept['fedavg']['majority']:.1f} %",
        )
        if words not in page
    ] == []
