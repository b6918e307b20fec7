"""A table or figure of a paper as runs: what each of its cells is, and what the finished runs say of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.experiment.accuracy import over_clients
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder
from protofed.measures.intervals import Interval, paired
from protofed.studies.recipes import recipe_file
from protofed.studies.sweep import SweepRun

NEAR, LAST = 0.005, 10
"""A run has converged in the first round that is as good as the mean of its last ten, less half a point."""


@dataclass(frozen=True)
class Cell:
    """One figure of a table: runs of a recipe that differ in their seeds."""

    row: str
    column: str
    recipe: str  # its name in recipes/, without .toml
    words: tuple[str, ...] = ()  # what is changed in it, "section.key=value"
    paper: str = ""  # "95.04 ± 6.48"; nothing if the paper has no such cell
    way: str = "head"  # or "prototype": by what it predicts

    def out(self, root: Path, seed: int, smaller: Sequence[str] = ()) -> Path:
        """The folder of a run; cells of several studies that are the same runs share it."""
        folder = "+".join((*self.words, *smaller)).replace("/", "_").replace('"', "") or "as-it-is"
        return root / self.recipe / folder / f"seed-{seed}"

    def command(self, seed: int, smaller: Sequence[str] = ()) -> str:
        """What a reader types to get the run again."""
        words = " ".join(f"--set {shlex.quote(word)}" for word in (*self.words, *smaller, f"run.seed={seed}"))
        return f"protofed run recipes/{self.recipe}.toml {words}"

    def digest(self, smaller: Sequence[str] = ()) -> str:
        """Tells two experiments apart, whatever their seeds."""
        config = self.job(Path(), 0, smaller).config
        return f"{config.digest()[:16]} {config.run.rounds}"

    def job(self, root: Path, seed: int, smaller: Sequence[str] = ()) -> SweepRun:
        file = recipe_file(self.recipe)
        config = Config.load(file, [*self.words, *smaller, f"run.seed={seed}", "engine.workers=1"])
        return SweepRun(f"{self.row}, {self.column}", seed, self.out(root, seed, smaller), config)


@dataclass(frozen=True)
class Study:
    """A table or figure, and how it is made small."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    quick: tuple[str, ...]  # changes that make every run short
    quick_columns: tuple[str, ...]
    known: tuple[str, ...]  # what is known to differ from the paper
    sent: Mapping[str, str]  # numbers sent a round, and rounds to converge, as the paper has them, by row
    picture: Callable[[Sequence[SweepRun]], Figure] | None = None
    seeds: int = 3

    def chosen(self, quick: bool) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if not quick or cell.column in self.quick_columns)

    def smaller(self, quick: bool) -> tuple[str, ...]:
        return self.quick if quick else ()

    def jobs(self, root: Path, seeds: int, quick: bool, kept: KeptFigures | None = None) -> list[SweepRun]:
        """All runs but those kept, seed by seed, none of them twice."""
        made: dict[Path, SweepRun] = {}
        for seed in range(seeds):
            for cell in self.chosen(quick):
                if (cell, seed) in (kept or {}):
                    continue
                job = cell.job(root, seed, self.smaller(quick))
                made.setdefault(job.out, job)
        return list(made.values())


class Figures(NamedTuple):
    """What a run gave."""

    accuracy: float  # the mean over clients
    spread: float  # over clients
    running: float  # the same in the reading of FedProto's authors' code
    converged: int  # rounds
    sent: float  # numbers, up, from all clients in a round


class Seen(NamedTuple):
    """What the runs of a cell gave, by seed."""

    cell: Cell
    runs: dict[int, Figures]

    @property
    def accuracy(self) -> dict[int, float]:
        return {seed: run.accuracy for seed, run in self.runs.items()}

    @property
    def interval(self) -> Interval:
        return Interval.of(list(self.accuracy.values()))

    @property
    def mean(self) -> Figures:
        """Over seeds; rounds to converge are rounded."""
        accuracy, spread, running, converged, sent = map(float, np.mean(list(self.runs.values()), 0))
        return Figures(accuracy, spread, running, round(converged), sent)


def cell_figures(cell: Cell, path: Path) -> Figures:
    """From the folder of a finished run."""
    folder, key = Folder(path), f"accuracy_{cell.way}"
    result = folder.result()
    tested = [row for row in folder.clients() if row["test"]]
    right, total = [round(row[key] * row["test"]) for row in tested], [row["test"] for row in tested]
    return Figures(
        result["accuracy"][cell.way]["mean"],
        result["accuracy"][cell.way]["std"],
        (over_clients(right, total, "running") or {"std": 0.0})["std"],
        converged({row["round"]: row[key] for row in folder.rounds() if row.get(key) is not None}),
        result["cost"]["up_params"],
    )


def converged(accuracies: Mapping[int, float]) -> int:
    """The first round that is as good as the mean of the last ten, less half a point, of those that were tested.

    >>> converged({5: 0.1, 10: 0.796, 15: 0.5, 20: 0.8})
    10
    """
    late = [one for number, one in accuracies.items() if number > max(accuracies) - LAST]
    goal = float(np.mean(late)) - NEAR
    return next(number for number, one in accuracies.items() if one >= goal)


class Orderings(NamedTuple):
    """How the paper's orderings of rows within a column fare with us."""

    same: int  # the same, and the 95 % interval of the difference excludes 0
    reversed: int  # the other way round, with such an interval
    open: int  # intervals that do not tell
    told: list[tuple[str, str, str]]  # those reversed: what is better here, what is worse, in which column


def orderings(found: Sequence[Seen]) -> Orderings:
    """Every pair of rows of a column for which the paper has figures that differ."""
    same, opposite, open_, told = 0, 0, 0, []
    for one, other in combinations([each for each in found if each.cell.paper], 2):
        if one.cell.column != other.cell.column:
            continue
        theirs = figure(one.cell.paper) - figure(other.cell.paper)
        gap = paired(one.accuracy, other.accuracy)
        if gap is None or theirs == 0:
            continue
        if not gap.sure:
            open_ += 1
        elif (gap.mean > 0) == (theirs > 0):
            same += 1
        else:
            opposite += 1
            better, worse = (one, other) if gap.mean > 0 else (other, one)
            told.append((better.cell.row, worse.cell.row, one.cell.column))
    return Orderings(same, opposite, open_, told)


def figure(told: str) -> float:
    """The mean of a paper's cell.

    >>> figure("95.04 ± 6.48")
    95.04
    """
    return float(told.partition("±")[0])


def to_keep(study: Study, found: Sequence[Seen], quick: bool) -> dict[str, Any]:
    """Everything that the tables are made of, small enough to keep."""
    cells = [
        {
            "row": one.cell.row,
            "column": one.cell.column,
            "way": one.cell.way,
            "paper": one.cell.paper or None,
            "command": one.cell.command(0, study.smaller(quick)),
            "digest": one.cell.digest(study.smaller(quick)),
            "runs": {str(seed): run._asdict() for seed, run in one.runs.items()},
        }
        for one in found
    ]
    return {"name": study.name, "quick": quick, "title": study.title, "cells": cells}


KeptFigures = dict[tuple[Cell, int], Figures]
"""What is known already, by cell and seed."""


def read_kept(file: Path, study: Study, quick: bool) -> KeptFigures:
    """What `to_keep` made, of cells that are the same experiments as now."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        of = told["name"] + (" --quick" if told["quick"] else "")
        stored = {(one["row"], one["column"], one["digest"]): one["runs"] for one in told["cells"]}
        found = {
            (cell, int(seed)): Figures(**{name: value + 0 for name, value in run.items()})  # numbers, no null
            for cell in study.chosen(quick)
            for seed, run in stored.get((cell.row, cell.column, cell.digest(study.smaller(quick))), {}).items()
        }
    except OSError as problem:
        raise UserError(f"--kept {file} cannot be read: {problem.strerror}.") from problem
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UserError(f"--kept {file} is not a table's JSON, as `protofed reproduce` writes it now.") from problem
    if of != (asked := study.name + (" --quick" if quick else "")):
        raise UserError(f"--kept {file} is of {of}, not of {asked}.")
    if not found:
        raise UserError(f"--kept {file} has no cell that is the same experiment now. Leave it out to make all runs.")
    return found
