"""The kept figures in docs/results/data, for tests of the sentences about them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from protofed.measures.intervals import Interval, paired
from protofed.studies.reproduce.studies import STUDIES
from protofed.studies.reproduce.study import CellResult, KeptFigures, read_kept

DOCS = Path(__file__).parents[1] / "docs" / "results"


def text_of(name: str) -> str:
    """A page of docs/results with single spaces between words."""
    return re.sub(r"\s+", " ", (DOCS / name).read_text(encoding="utf-8"))


def kept_json(name: str) -> Any:
    return json.loads((DOCS / "data" / f"{name}.json").read_text(encoding="utf-8"))


@cache
def figures_of(name: str, quick: bool) -> KeptFigures:
    """The kept figures of a study. To find them takes a second: every cell's experiment is compared with the kept one."""
    return read_kept(DOCS / "data" / f"{name}{'-quick' if quick else ''}.json", STUDIES[name], quick)


class Kept:
    """The kept figures of a study."""

    def __init__(self, name: str, quick: bool = False) -> None:
        self.study = STUDIES[name]
        figures = figures_of(name, quick)
        self.results = [
            CellResult(cell, {seed: run for (other, seed), run in figures.items() if other == cell})
            for cell in self.study.chosen(quick)
        ]
        self.by_place = {(result.cell.row, result.cell.column): result for result in self.results}

    def mean(self, row: str, column: str) -> Interval:
        return self.by_place[row, column].interval

    def gap(self, first: str, second: str, column: str) -> Interval:
        gap = paired(self.by_place[first, column].accuracy, self.by_place[second, column].accuracy)
        assert gap, (first, second, column)
        return gap

    def gap_among_all(self, other: str, column: str) -> Interval:
        """fedproto's nearest prototype of all classes, less another row."""
        found = self.by_place["fedproto", column].other("prototype_all")
        gap = paired(found, self.by_place[other, column].accuracy)
        assert gap, (other, column)
        return gap
