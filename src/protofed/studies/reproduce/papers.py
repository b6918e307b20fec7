"""Every table, figure and theorem of the four papers, and whether it was run or checked here."""

from __future__ import annotations

from typing import NamedTuple

from protofed.studies.reproduce.tables_and_figures import TABLES_AND_FIGURES
from protofed.theory.statements import STATEMENTS

CHECKED = "checked by counter-examples or in many draws"


class Entry(NamedTuple):
    """A table, figure, lemma, theorem or corollary of a paper."""

    name: str
    paper: str
    shows: str
    state: str  # CHECKED, or one of the states in tables_and_figures.py
    how: str  # how it is made, or why it cannot be made: a clause that follows "STATE: "


_TABLES = tuple(
    Entry(f"{short}-{name}", paper, shows, state, how)
    for (short, paper), rows in TABLES_AND_FIGURES.items()
    for name, shows, state, how in rows
)
_THEOREMS = tuple(
    Entry(
        f"{statement.paper}-{statement.name.lower().replace(' ', '')}",
        next(paper for short, paper in TABLES_AND_FIGURES if short == statement.paper),
        f"{statement.name}, {statement.equations}: {statement.says}",
        CHECKED,
        f"{statement.verdict}; docs/theory.md, and `protofed measure DIR --what bounds` for a run",
    )
    for statement in STATEMENTS
)
ENTRIES: tuple[Entry, ...] = (*_TABLES, *_THEOREMS)
