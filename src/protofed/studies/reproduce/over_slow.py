"""Prototype-guided FL's tables over the shares of slow clients, computed from the cells of a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from protofed.measures.correlation import pearson
from protofed.measures.discrepancy import feature_discrepancy
from protofed.studies.reproduce.published import PROTOMARGIN_RHO
from protofed.studies.reproduce.study import CellResult, ExtraTable

SLOW = ("0", "0.5", "0.8")
"""The shares of slow clients, delta in the paper."""
_NOT_RUN = "not run"


class Spread(NamedTuple):
    """The mean of three figures, one per share of slow clients, and their standard deviation."""

    mean: float
    std: float  # of a sample, with n - 1, as all ± of the paper's Table 3

    def text(self, percent: bool) -> str:
        factor, digits = (100, 1) if percent else (1, 3 if abs(self.mean) < 1 else 2)
        return f"{factor * self.mean:.{digits}f} ± {factor * self.std:.{digits}f}"


def spread_over_slow(results: Sequence[CellResult], place: Callable[[str], tuple[str, str]]) -> Spread | None:
    """The means over seeds of the cells in the row and column `place(slow)`; None unless all three have been run."""
    by_place = {(result.cell.row, result.cell.column): result for result in results if result.runs}
    cells = [by_place.get(place(slow)) for slow in SLOW]
    means = [cell.interval.mean for cell in cells if cell]
    return Spread(float(np.mean(means)), float(np.std(means, ddof=1))) if len(means) == len(SLOW) else None


def columns_over_slow(results: Sequence[CellResult], papers: Mapping[str, Mapping[str, str]]) -> list[ExtraTable]:
    """For each row the mean over the columns "slow S". `papers`: by the text before "slow S", the paper's by row."""
    columns = {result.cell.column for result in results}
    if not all(f"slow {slow}" in columns for slow in SLOW):
        return []  # the quick version
    lines = []
    for row in dict.fromkeys(result.cell.row for result in results):
        line = [row]
        for kind, paper in papers.items():
            spread = spread_over_slow(results, lambda slow, row=row, kind=kind: (row, f"{kind}slow {slow}"))  # type: ignore[misc]
            line += [spread.text(not kind) if spread else _NOT_RUN, paper.get(row, "")]
        lines.append(line)
    heads = ["", *(text for kind in papers for text in (kind.removesuffix(", ") or "accuracy", "paper"))]
    note = (
        "Mean over the three shares of slow clients ± the sample standard deviation between them, each a mean over "
        "seeds; the paper's figures are of the same kind."
    )
    return [ExtraTable(note, heads, lines)]


def margins_over_slow(results: Sequence[CellResult], paper: Mapping[str, tuple[str, str]]) -> list[ExtraTable]:
    """Table 4: per method the mean over slow, FFD against fedavg, and the correlation of margin and accuracy."""
    rows = list(dict.fromkeys(result.cell.row.rpartition(", slow ")[0] for result in results))
    by_place = {(result.cell.row, result.cell.column): result for result in results if result.runs}

    def spread(method: str, column: str) -> Spread | None:
        if method:
            return spread_over_slow(results, lambda slow: (f"{method}, slow {slow}", column))
        central = by_place.get(("central", column))
        return Spread(central.interval.mean, float("nan")) if central else None

    baseline, lines = spread("fedavg", "MMD"), []
    for method in rows:
        figures = {
            column: spread(method, column) for column in ("accuracy", "margin", "margin (round)", "MMD", "gradients")
        }
        ffd = _discrepancy(by_place, method) if method and figures["MMD"] and baseline else ""
        papers = paper.get(method or "central", ("", ""))
        texts = {
            key: value.text(key == "accuracy").replace(" ± nan", "") if value else _NOT_RUN
            for key, value in figures.items()
        }
        lines.append(
            [
                method or "central",
                texts["accuracy"],
                texts["margin"],
                texts["margin (round)"],
                papers[0],
                texts["MMD"] if method else "",
                ffd if method != "fedavg" else "",
                papers[1],
                texts["gradients"] if method else "",
            ]
        )
    heads = ["", "accuracy", "margin", "margin (round)", "paper", "MMD", "FFD, %", "paper", "gradients"]
    note = (
        "Mean over the three shares of slow clients ± the sample standard deviation between them, each a mean over "
        "seeds. FFD, Eq. (17): by how many percent MMD is smaller than fedavg's, on the seeds that both have."
    )
    return [ExtraTable(note, heads, lines), _correlations(results)]


def _discrepancy(by_place: Mapping[tuple[str, str], CellResult], method: str) -> str:
    """FFD of a method against fedavg: both means are over the seeds that both have; "" if there are none."""
    means: list[tuple[float, float]] = []
    for slow in SLOW:
        own, base = (by_place[f"{name}, slow {slow}", "MMD"].accuracy for name in (method, "fedavg"))
        shared = sorted(own.keys() & base.keys())
        if not shared:
            return ""
        means.append((float(np.mean([own[seed] for seed in shared])), float(np.mean([base[seed] for seed in shared]))))
    ours, theirs = np.mean(means, 0)
    return f"{feature_discrepancy(float(ours), float(theirs)):.1f}"


def _correlations(results: Sequence[CellResult]) -> ExtraTable:
    """Pearson's correlation of margin and accuracy over all runs but the central ones, each of them once."""
    runs = {
        column: {
            (result.cell.words, seed): value
            for result in results
            if result.cell.column == column and result.cell.row != "central"
            for seed, value in result.accuracy.items()
        }
        for column in ("accuracy", "margin", "margin (round)")
    }
    lines = []
    for column in ("margin", "margin (round)"):
        both = sorted(runs["accuracy"].keys() & runs[column].keys())
        found = pearson([runs[column][key] for key in both], [runs["accuracy"][key] for key in both])
        lines.append([column, f"{found.rho:+.2f}", f"{found.p_value:.2g}", str(found.number)])
    note = (
        "Pearson's correlation of margin and accuracy over the runs of all methods, shares and seeds. The runs are not "
        f"independent, so that the p-value is too small. The paper has {PROTOMARGIN_RHO} over datasets and methods."
    )
    return ExtraTable(note, ["", "rho", "p", "runs"], lines)
