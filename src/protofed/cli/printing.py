"""How commands print: texts, and tables that wrap only on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from protofed.experiment.table import ResultTable


def wide_console(stderr: bool = False) -> Console:
    """A console. Where the output is not a terminal, lines may have any length, so that nothing wraps."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=10_000)


def say(console: Console, text: str) -> None:
    """Print a text without markup. Only a terminal folds its lines, between words."""
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def show_table(console: Console, table: ResultTable, break_heads: bool = True) -> None:
    """Print a table with an empty line above and below. A terminal folds long texts; elsewhere nothing wraps."""
    from rich.padding import Padding

    if console.is_terminal:
        console.print(Padding(table.rich(break_heads), (1, 0)))
    else:
        say(console, f"\n{table.text()}\n")
