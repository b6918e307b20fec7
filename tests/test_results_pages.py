"""The results pages of FedNH and MP-FedCL: their tables and the numbers in their sentences follow from kept figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from protofed.measures.intervals import Interval, paired
from protofed.studies.reproduce import page, published
from protofed.studies.reproduce.studies import STUDIES
from protofed.studies.reproduce.study import CellResult, read_kept

DOCS = Path(__file__).parents[1] / "docs" / "results"
KEPT = sorted(file for file in (DOCS / "data").glob("*.json") if file.stem.partition("-")[0] in ("fednh", "mpfedcl"))
STUDY_FILES = [file for file in KEPT if "cells" in json.loads(file.read_text(encoding="utf-8"))]


def text_of(name: str) -> str:
    return re.sub(r"\s+", " ", (DOCS / name).read_text(encoding="utf-8"))


class Kept:
    """The kept figures of a study."""

    def __init__(self, name: str) -> None:
        self.study = STUDIES[name]
        figures = read_kept(DOCS / "data" / f"{name}.json", self.study, quick=False)
        self.results = [
            CellResult(cell, {seed: run for (other, seed), run in figures.items() if other == cell})
            for cell in self.study.cells
        ]
        self.by_place = {(result.cell.row, result.cell.column): result for result in self.results}

    def mean(self, row: str, column: str) -> Interval:
        return self.by_place[row, column].interval

    def gap(self, first: str, second: str, column: str) -> Interval:
        gap = paired(self.by_place[first, column].accuracy, self.by_place[second, column].accuracy)
        assert gap, (first, second, column)
        return gap


@pytest.mark.parametrize("file", STUDY_FILES, ids=lambda file: file.stem)
def test_tables_are_those_of_the_kept_figures(file):
    kept = Kept(file.stem)
    text = (DOCS / f"{file.stem.partition('-')[0]}.md").read_text(encoding="utf-8")
    assert page.markdown_table(*page.accuracy_table(kept.results)) in text
    assert page.markdown_table(*page.differences_table(kept.study, kept.results)) in text


@pytest.mark.parametrize("file", STUDY_FILES, ids=lambda file: file.stem)
def test_unfinished_tables_say_so(file):
    kept = Kept(file.stem)
    is_missing = bool(page.unfinished_note(kept.results, kept.study.seeds))
    text = (DOCS / f"{file.stem.partition('-')[0]}.md").read_text(encoding="utf-8")
    section = text[: text.index(page.markdown_table(*page.accuracy_table(kept.results)))].rpartition("\n## ")[2]
    assert ("not finished" in section) == is_missing, file.stem


def test_the_papers_own_spreads_repeat():
    """FedNH's Table 1: the ± of PM(V) and PM(L) are the same numbers for CIFAR-10 and CIFAR-100."""
    repeated = 0
    for alpha in (0.3, 1.0):
        first, second = (published.FEDNH_TABLE1[data, alpha] for data in ("cifar10", "cifar100"))
        for method in second:
            repeated += [value.partition("±")[2] for value in first[method][1:]] == [
                value.partition("±")[2] for value in second[method][1:]
            ]
    assert repeated == 10
    assert "in all ten rows that both have" in text_of("fednh.md")
