"""The results of a study: tables for the screen, and a page in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from protofed.experiment.table import BOLD_RULE, ResultTable, TableCell
from protofed.measures.intervals import Interval, SettingRow, best_row, paired
from protofed.studies.reproduce.figures import (
    BY_HEAD,
    BY_HEAD_OWN,
    BY_PROTOTYPE,
    CONVERGENCE_ROUNDS,
    CONVERGENCE_TOLERANCE,
)
from protofed.studies.reproduce.study import CellResult, Orderings, Study, orderings, paper_mean

ACCURACY_NOTE = "Test accuracy in %, mean over clients and seeds ± the half-width of the 95 % interval over seeds."
DIFFERENCES_NOTE = (
    "Differences in points on the same seeds, with the half-width of their 95 % interval, and the paper's where it has "
    "both figures."
)
QUICK_NOTE = (
    "This is the quick version with few rounds and images: it checks that everything runs; its numbers are not "
    "comparable with the paper."
)
DETAILS_NOTE = (
    "The columns called paper have the paper's figure for the column before them. Spread: the standard deviation over "
    "clients; running: that of a running average over clients, as FedProto's authors' code computes it. Rounds: the "
    "first tested round within "
    f"{100 * CONVERGENCE_TOLERANCE:.1f} points of the mean of the last {CONVERGENCE_ROUNDS} rounds. Up and down: "
    "thousands of numbers per round that all clients send and receive; the paper has those sent."
)
ALSO_NOTE = "Further figures of the same runs, mean over seeds ± the half-width of the 95 % interval."
OWN_CLASSES = ", own classes"
"""How the name of a row ends whose head chooses among the client's own classes."""


def columns_of(results: Sequence[CellResult]) -> list[str]:
    """The names of the columns, in their order."""
    return list(dict.fromkeys(result.cell.column for result in results))


def three_columns_each(results: Sequence[CellResult]) -> list[list[CellResult]]:
    """The results in groups of three columns, which is what a screen with 80 characters has room for."""
    columns = columns_of(results)
    groups = [columns[first : first + 3] for first in range(0, len(columns), 3)]
    return [[result for result in results if result.cell.column in group] for group in groups]


def accuracy_table(results: Sequence[CellResult]) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of a table of accuracies: a row per method, with ours and the paper's per column."""
    columns = columns_of(results)
    rows = list(dict.fromkeys(result.cell.row for result in results))
    most = max(len(result.runs) for result in results)
    cells = {(result.cell.row, result.cell.column): _ours_and_paper(result, most) for result in results}
    shown = 2 if any(result.cell.paper for result in results) else 1  # without the paper's if it has none
    heads = ["", *(text for column in columns for text in (column, "paper")[:shown])]
    empty = ("-", "-")  # the method does not have this figure
    return heads, [
        [row, *(text for column in columns for text in cells.get((row, column), empty)[:shown])] for row in rows
    ]


def _ours_and_paper(result: CellResult, most: int) -> tuple[str, str]:
    """Our accuracy and the paper's. A cell with fewer seeds than `most` says how many it has."""
    ours = result.interval.text(result.cell.percent) if result.runs else "not run"
    if 0 < len(result.runs) < most:
        ours += f" ({len(result.runs)})"
    return ours, f"{paper_mean(result.cell.paper):.2f}" if result.cell.paper else ""


def differences_table(study: Study, results: Sequence[CellResult]) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of a table of differences on the same seeds, with the paper's."""
    columns = columns_of(results)
    by_place = {(result.cell.row, result.cell.column): result for result in results}
    most = max(len(result.runs) for result in results)
    lines = []
    for first, second in study.pairs:
        line = [f"{first} - {second}"]
        for column in columns:
            ours, other = by_place.get((first, column)), by_place.get((second, column))
            line += _paired_difference(ours, other, most) if ours and other else ("-", "-")
        lines.append(line)
    shown = 2 if any(result.cell.paper for result in results) else 1  # without the paper's if it has none
    heads = ["", *(text for column in columns for text in (column, "paper")[:shown])]
    return heads, [line if shown == 2 else [line[0], *line[1::2]] for line in lines]


def _paired_difference(first: CellResult, second: CellResult, most: int) -> tuple[str, str]:
    """Our difference of two cells, with the number of seeds that both have if it is below `most`, and the paper's."""
    gap = paired(first.accuracy, second.accuracy)
    ours = gap.text(first.cell.percent, "+") if gap else "not run"
    if gap and gap.number < most:
        ours += f" ({gap.number})"
    if not (first.cell.paper and second.cell.paper):
        return ours, ""
    return ours, f"{paper_mean(first.cell.paper) - paper_mean(second.cell.paper):+.2f}"


def also_table(study: Study, results: Sequence[CellResult]) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of a table of the study's further figures: a row per figure and method.

    A run is shown once, also if several rows show its accuracies.
    """
    columns, shown = columns_of(results), set()
    by_place: dict[tuple[str, str], CellResult] = {}
    for result in results:
        cell = result.cell
        if (cell.recipe, cell.words) not in shown:
            shown.add((cell.recipe, cell.words))
            by_place[cell.row, cell.column] = result
    rows = dict.fromkeys(row for row, _ in by_place)
    return ["", *columns], [
        [f"{name}, {row}", *(_plain(by_place.get((row, column)), name) for column in columns)]
        for name in study.also
        for row in rows
    ]


def _plain(result: CellResult | None, name: str) -> str:
    """The mean of a further figure with its interval, to three digits; "-" if there is none."""
    if result is None or not result.other(name):
        return "-"
    mean, half, _ = Interval.of(list(result.other(name).values()))
    return f"{mean:.3g}" if half is None else f"{mean:.3g} ± {half:.2g}"


def details_tables(study: Study, results: Sequence[CellResult]) -> list[tuple[list[str], list[list[str]]]]:
    """Per column of the study with finished runs, the heads and rows of a table of spread, convergence and cost."""
    tables = (_details_table(study, results, column) for column in columns_of(results))
    return [table for table in tables if table[1]]


def _details_table(study: Study, results: Sequence[CellResult], column: str) -> tuple[list[str], list[list[str]]]:
    """The rows with other read-outs of the same heads are left out, so that it fits 80 characters."""
    heads = [column, "spread", "running", "paper", "rounds", "paper", "up", "paper", "down"]
    lines = []
    for result in results:
        if result.cell.column == column and result.runs and result.cell.figure != BY_HEAD_OWN:
            paper_sent, _, paper_rounds = study.sent.get(result.cell.row, "").rpartition(", ")
            ours = result.mean
            lines.append(
                [
                    result.cell.row,
                    "-" if ours.spread is None else f"{100 * ours.spread:.1f}",
                    "-" if ours.running is None else f"{100 * ours.running:.2f}",
                    result.cell.paper.partition("± ")[2],
                    "-" if ours.converged is None else str(ours.converged),
                    paper_rounds,
                    _thousands(ours.sent),
                    paper_sent,
                    _thousands(ours.received),
                ]
            )
    return heads, lines


def _thousands(number: float | None) -> str:
    """A number in thousands; "-" if it is not known.

    >>> _thousands(3617), _thousands(436800), _thousands(None)
    ('3.6', '437', '-')
    """
    if number is None:
        return "-"
    return f"{number / 1000:,.1f}" if number < 100_000 else f"{number / 1000:,.0f}"


def study_verdict(results: Sequence[CellResult]) -> list[str]:
    """Sentences that say whether the paper's orderings hold, also with an equal read-out; [] if it has no orderings."""
    equal = orderings(equal_read_out(results))
    return [
        *_verdict(orderings(results), "Of"),
        *_verdict(equal, "With every head choosing among the client's own classes: of"),
    ]


def equal_read_out(results: Sequence[CellResult]) -> list[CellResult]:
    """The results that answer the same question: by prototype, or by head, among the client's own classes.

    They have the paper's figures, which are those of heads among all classes. [] if no row has this read-out.
    """
    heads = {(one.cell.row, one.cell.column): one.cell.paper for one in results if one.cell.figure == BY_HEAD}
    own = [
        one._replace(cell=replace(one.cell, paper=paper))
        for one in results
        if one.runs
        and one.cell.figure == BY_HEAD_OWN
        and (paper := heads.get((one.cell.row.removesuffix(OWN_CLASSES), one.cell.column)))
    ]
    return [*own, *(one for one in results if one.cell.figure == BY_PROTOTYPE)] if own else []


def _verdict(found: Orderings, opening: str) -> list[str]:
    same, opposite, open_, reversals = found
    total = same + opposite + open_
    if not total:
        return []
    by_chance = "fewer than one" if total < 20 else f"about {total / 20:.0f}"
    text = (
        f"{opening} the paper's {total} orderings of two methods, {same} hold{'s' * (same == 1)} (the 95 % "
        f"interval of the difference, seed by seed, excludes 0), {opposite} {'is' if opposite == 1 else 'are'} "
        f"reversed by the same criterion, and {open_} {'is' if open_ == 1 else 'are'} undecided with "
        f"these seeds. If all methods were equally good, {by_chance} of these intervals would exclude 0 by chance."
    )
    groups: dict[tuple[str, str], list[str]] = {}
    for better, worse, column in reversals:
        groups.setdefault((better, column), []).append(worse)
    parts = [f"{better} above {', '.join(worse)} at {column}" for (better, column), worse in groups.items()]
    return [text, *([f"Reversed: {'; '.join(parts)}."] if parts else [])]


def unfinished_note(results: Sequence[CellResult], seeds: int) -> list[str]:
    """A sentence about runs that are missing; [] if there are none."""
    wanted = [result.cell.num_seeds(seeds) for result in results]
    missing = sum(max(0, number - len(result.runs)) for number, result in zip(wanted, results, strict=True))
    if not missing:
        return []
    return [
        f"This table is not finished: {missing} of {sum(wanted)} figures (cells times seeds) are missing. A "
        "number in brackets is the number of seeds of a cell that has fewer than others."
    ]


def screen_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> ResultTable:
    """A table for the screen, on which the paper's figures are less prominent."""
    return ResultTable(heads, lines, dim=[head for head in heads if head.startswith("paper")])


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return ResultTable(heads, lines).markdown()


def study_table(study: Study, results: Sequence[CellResult]) -> ResultTable:
    """The accuracies of all columns with their numbers, for other programs and for papers."""
    heads, lines = accuracy_table(results)
    columns = columns_of(results)
    step = (len(heads) - 1) // len(columns)  # 2 with the paper's figures
    by_place = {(result.cell.row, result.cell.column): result for result in results if result.runs}
    rows: list[list[TableCell | str]] = []
    best = {column: _best_row([result for result in results if result.cell.column == column]) for column in columns}
    for line in lines:
        row: list[TableCell | str] = [line[0]]
        for number, text in enumerate(line[1:]):
            column = columns[number // step]
            result = by_place.get((line[0], column))
            if number % step:
                row.append(TableCell(text, float(text) if text not in ("", "-") else None))
            elif result is None:
                row.append(TableCell(text))
            else:
                interval = result.interval
                row.append(TableCell(text, interval.mean, interval.half, best[column] == line[0]))
        rows.append(row)
    unique = [head if head != "paper" else f"{heads[number - 1]}, paper" for number, head in enumerate(heads)]
    notes = [study.title + ".", study.note or ACCURACY_NOTE]
    if any(best.values()):
        smaller = dict.fromkeys(result.cell.column for result in results if result.cell.smaller_is_better)
        notes.append(BOLD_RULE + (f" Of these columns it is the lowest: {', '.join(smaller)}." if smaller else ""))
    return ResultTable(unique, rows, notes)


def _best_row(results: Sequence[CellResult]) -> str | None:
    """The row of a column that is better than every other one, by the rule of `intervals.best_row`; None if none is."""
    rows = [
        SettingRow(
            result.cell.row,
            {"": {seed: -value if result.cell.smaller_is_better else value for seed, value in result.accuracy.items()}},
        )
        for result in results
        if result.runs
    ]
    best = best_row(rows, "")
    return best.setting if best else None


def markdown_page(study: Study, results: Sequence[CellResult], quick: bool, seeds: int) -> str:
    """All tables and notes, with the command of each cell."""
    changes = f", with {', '.join(study.quick)}" if quick else ""
    last = max((seed for result in results for seed in result.runs), default=0)
    parts = [f"# {study.title}", f"Seeds 0 to {last}{changes}." if last else f"Seed 0{changes}."]
    parts += [*unfinished_note(results, seeds), study.note or ACCURACY_NOTE, markdown_table(*accuracy_table(results))]
    if study.pairs:
        parts += [DIFFERENCES_NOTE, markdown_table(*differences_table(study, results))]
    if study.also:
        parts += [ALSO_NOTE, markdown_table(*also_table(study, results))]
    if study.sent:
        parts += [DETAILS_NOTE, *(markdown_table(*table) for table in details_tables(study, results))]
    for table in study.extra(results) if study.extra else ():
        parts += [table.note, markdown_table(table.heads, table.lines)]
    parts += [QUICK_NOTE] if quick else study_verdict(results)
    if study.differences:
        parts += ["Known differences from the paper:", "\n".join(f"- {line}" for line in study.differences)]
    commands = dict.fromkeys(result.cell.command(0, study.changes(quick)) for result in results)
    parts += ["The command of each cell (`run.seed=1` and so on for the other seeds):"]
    return "\n\n".join(parts) + "\n\n" + "\n".join(["```", *commands, "```"]) + "\n"
