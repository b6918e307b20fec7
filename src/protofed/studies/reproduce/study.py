"""A table or figure of a paper as runs: the settings of each cell, and the figures of its finished runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.recipes import recipe_file
from protofed.measures.intervals import Interval, paired
from protofed.studies.plan import SweepRun
from protofed.studies.reproduce.figures import BY_HEAD, Figures


@dataclass(frozen=True)
class Cell:
    """One cell of a table: runs of a recipe that differ in their seeds."""

    row: str
    column: str
    recipe: str  # its name in recipes/, without .toml
    words: tuple[str, ...] = ()  # changes to the recipe, "section.key=value"
    paper: str = ""  # the paper's figure, "95.04 ± 6.48"; "" if the paper does not have this cell
    figure: str = BY_HEAD  # a path in result.json, or "last N." or "round N." and a column of rounds.jsonl, or measured
    percent: bool = True  # whether the figure is shown in percent
    smaller_is_better: bool = False
    most_seeds: int = 0  # the number of seeds if it is smaller than that of the study's other cells; 0: it is not

    def shares_figures(self, other: Cell) -> bool:
        """Whether both cells show the same figure of the same runs."""
        return (self.recipe, self.words, self.figure) == (other.recipe, other.words, other.figure)

    def num_seeds(self, seeds: int) -> int:
        """The number of seeds of this cell in a study with this number of seeds."""
        return min(seeds, self.most_seeds) if self.most_seeds else seeds

    def all_words(self, changes: Sequence[str]) -> list[str]:
        """The cell's words and these changes to them. The last word for a key counts."""
        return list({word.partition("=")[0]: word for word in (*self.words, *changes)}.values())

    def out(self, root: Path, seed: int, changes: Sequence[str] = ()) -> Path:
        """The folder of a run. Cells of several studies with the same runs share it."""
        folder = "+".join(self.all_words(changes)).replace("/", "_").replace('"', "") or "as-it-is"
        return root / self.recipe / folder / f"seed-{seed}"

    def command(self, seed: int, changes: Sequence[str] = ()) -> str:
        """The command that repeats the run."""
        words = " ".join(f"--set {shlex.quote(word)}" for word in self.all_words([*changes, f"run.seed={seed}"]))
        return f"protofed run recipes/{self.recipe}.toml {words}"

    def digest(self, changes: Sequence[str] = ()) -> str:
        """A string that is equal for runs of the same experiment, whatever their seeds."""
        config = self.job(Path(), 0, changes).config
        budget = f" {config.run.seconds:g} s" if config.run.seconds else ""
        return f"{config.digest()[:16]} {config.run.rounds}{budget}"

    def job(self, root: Path, seed: int, changes: Sequence[str] = ()) -> SweepRun:
        file = recipe_file(self.recipe)
        config = Config.load(file, self.all_words([*changes, f"run.seed={seed}", "engine.workers=1"]))
        return SweepRun(f"{self.row}, {self.column}", seed, self.out(root, seed, changes), config)


class ExtraTable(NamedTuple):
    """A table that is computed from the cells of a study."""

    note: str
    heads: list[str]
    lines: list[list[str]]


@dataclass(frozen=True)
class Study:
    """A table or figure, with a quick version of it."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    quick: tuple[str, ...]  # changes that make every run short
    quick_columns: tuple[str, ...]
    differences: tuple[str, ...]  # known differences from the paper
    sent: Mapping[str, str] = field(default_factory=dict)  # the paper's thousands sent per round, rounds to converge
    picture: Callable[[Sequence[SweepRun]], Figure] | None = None
    seeds: int = 3
    quick_seeds: int = 3
    pairs: tuple[tuple[str, str], ...] = ()  # rows whose difference is shown, the second subtracted from the first
    note: str = ""  # what the figures are, if they are not accuracies over clients
    also: tuple[str, ...] = ()  # names in `Figures.others` that a table shows
    extra: Callable[[Sequence[CellResult]], list[ExtraTable]] | None = None
    central: Cell | None = None  # the runs on pooled data, with which all runs are compared when they are measured

    def chosen(self, quick: bool) -> tuple[Cell, ...]:
        """The cells of the full or the quick version."""
        return tuple(cell for cell in self.cells if not quick or cell.column in self.quick_columns)

    def changes(self, quick: bool) -> tuple[str, ...]:
        """The changes to every run of the full or the quick version."""
        return self.quick if quick else ()

    def jobs(
        self, root: Path, seeds: int, quick: bool, kept: KeptFigures | None = None, only: Sequence[str] = ()
    ) -> list[SweepRun]:
        """All runs without kept figures, seed by seed, each of them once.

        `only`: patterns such as "fedavg, *"; a run is made if one of them matches the "ROW, COLUMN" of one of its
        cells. The central runs are made with any other run of their seed, because it is measured next to them.
        """
        names = [f"{cell.row}, {cell.column}" for cell in self.chosen(quick)]
        for pattern in only:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UserError(f'--only {pattern}: no cell matches. Use * for any text, for example "{names[0]}".')
        by_folder: dict[Path, SweepRun] = {}
        for seed in range(seeds):
            missing = [
                cell for cell in self.chosen(quick) if seed < cell.num_seeds(seeds) and (cell, seed) not in (kept or {})
            ]
            central = [cell for cell in self.chosen(quick) if self.central and cell.words == self.central.words]
            for cell in dict.fromkeys([*missing, *(central if missing else ())]):
                job = cell.job(root, seed, self.changes(quick))
                if not only or cell in central or any(fnmatchcase(job.setting, pattern) for pattern in only):
                    by_folder.setdefault(job.out, job)
        return list(by_folder.values())

    def drawn_jobs(self, root: Path, seeds: int, quick: bool) -> list[SweepRun]:
        """The runs of a picture: one per method and run. Methods that have a run in common show it both.

        The method is the part of a row before the first comma.
        """
        jobs: dict[tuple[Path, str], SweepRun] = {}
        for seed in range(seeds):
            for cell in self.chosen(quick):
                if seed < cell.num_seeds(seeds):
                    job = cell.job(root, seed, self.changes(quick))
                    jobs.setdefault((job.out, cell.row.partition(",")[0]), job)
        return list(jobs.values())


class CellResult(NamedTuple):
    """The figures of a cell's runs, by seed."""

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
        """The mean over seeds; rounds until convergence are rounded."""
        numbers = zip(*(run[: Figures._fields.index("others")] for run in self.runs.values()), strict=True)
        means: list[Any] = [None if None in values else float(np.mean(values)) for values in numbers]
        mean = Figures(*means)
        return mean if mean.converged is None else mean._replace(converged=round(mean.converged))

    def other(self, name: str) -> dict[int, float]:
        """One of the further figures by seed, for the seeds that have it."""
        return {seed: run.others[name] for seed, run in self.runs.items() if name in run.others}


class Orderings(NamedTuple):
    """How many of the paper's orderings of two rows within a column our runs confirm."""

    same: int  # the same order, and the 95 % interval of the difference excludes 0
    reversed: int  # the opposite order, and the interval excludes 0
    open: int  # the interval includes 0
    reversals: list[tuple[str, str, str]]  # of the reversed ones: the better row here, the worse row, the column


def orderings(results: Sequence[CellResult]) -> Orderings:
    """Compare every pair of rows of a column for which the paper's figures differ."""
    same, opposite, open_, reversals = 0, 0, 0, []
    for first, second in combinations([result for result in results if result.cell.paper], 2):
        if first.cell.column != second.cell.column:
            continue
        paper_gap = paper_mean(first.cell.paper) - paper_mean(second.cell.paper)
        gap = paired(first.accuracy, second.accuracy)
        if gap is None or paper_gap == 0 or first.cell.shares_figures(second.cell):
            continue
        if not gap.excludes_zero:
            open_ += 1
        elif (gap.mean > 0) == (paper_gap > 0):
            same += 1
        else:
            opposite += 1
            better, worse = (first, second) if gap.mean > 0 else (second, first)
            reversals.append((better.cell.row, worse.cell.row, first.cell.column))
    return Orderings(same, opposite, open_, reversals)


def paper_mean(text: str) -> float:
    """The mean of a paper's cell.

    >>> paper_mean("95.04 ± 6.48")
    95.04
    """
    return float(text.partition("±")[0])


def study_as_json(study: Study, results: Sequence[CellResult], quick: bool) -> dict[str, Any]:
    """All figures of the tables, with the command and the digest of each cell. `versions` of a run is a position."""
    all_versions = [run.versions for result in results for run in result.runs.values() if run.versions]
    versions = [one for position, one in enumerate(all_versions) if one not in all_versions[:position]]
    cells = [
        {
            "row": result.cell.row,
            "column": result.cell.column,
            "figure": result.cell.figure,
            "paper": result.cell.paper or None,
            "command": result.cell.command(0, study.changes(quick)),
            "digest": result.cell.digest(study.changes(quick)),
            "runs": {
                str(seed): {
                    **run._asdict(),
                    "others": dict(run.others),
                    "versions": versions.index(run.versions) if run.versions else None,
                }
                for seed, run in result.runs.items()
            },
        }
        for result in results
    ]
    return {"name": study.name, "quick": quick, "title": study.title, "versions": versions, "cells": cells}


KeptFigures = dict[tuple[Cell, int], Figures]
"""Figures of earlier runs, by cell and seed."""


def _stored_figures(run: Mapping[str, Any], versions: Sequence[Mapping[str, str | None]]) -> Figures:
    """The figures of a run in a stored file. The accuracy must be a number, not null."""
    position = run.get("versions")
    return Figures(**run)._replace(
        accuracy=run["accuracy"] + 0, versions=None if position is None else versions[position]
    )


def read_kept(file: Path, study: Study, quick: bool) -> KeptFigures:
    """The figures in a file that `study_as_json` made, of cells that are still the same experiments."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        stored_name = stored["name"] + (" --quick" if stored["quick"] else "")
        keys = ("row", "column", "figure", "digest")
        runs = {tuple(cell[key] for key in keys): cell["runs"] for cell in stored["cells"]}
        kept = {
            (cell, int(seed)): _stored_figures(run, stored.get("versions", []))
            for cell in study.chosen(quick)
            for seed, run in runs.get(
                (cell.row, cell.column, cell.figure, cell.digest(study.changes(quick))), {}
            ).items()
        }
    except OSError as problem:
        raise UserError(f"--kept {file} cannot be read: {problem.strerror}.") from problem
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        raise UserError(
            f"--kept {file} does not have the form that `protofed reproduce` writes. Give a NAME.json of its --out."
        ) from problem
    name = study.name + (" --quick" if quick else "")
    if stored_name != name:
        raise UserError(f"--kept {file} has figures of {stored_name}, not of {name}.")
    if not kept:
        raise UserError(f"--kept {file}: none of its cells is the same experiment now. Leave --kept out to run all.")
    return kept
