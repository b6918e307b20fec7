"""The command that measures a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from protofed.cli.models import RunFolder

if TYPE_CHECKING:
    from rich.table import Table

    from protofed.measures.question import Measurement

_WIDEST = 24
"""Tables with more columns are not shown."""


def measure_command(
    folder: RunFolder,
    what: Annotated[
        Optional[list[str]],
        typer.Option(
            "--what",
            metavar="NAME",
            help="classification, confusion, cost, discrepancy, drift, fairness, gradients, margins, scatter or "
            "similarity; several: --what again, or commas. Default: fairness, classification, cost.",
        ),
    ] = None,
    client: Annotated[
        Optional[int],
        typer.Option("--client", show_envvar=False, help="Classification, confusion and scatter of this client only."),
    ] = None,
    accuracy: Annotated[
        float,
        typer.Option(
            "--accuracy", show_envvar=False, min=0, max=1, help="The accuracy that the cost is counted up to."
        ),
    ] = 0.9,
    beside: Annotated[
        Optional[Path],
        typer.Option("--beside", metavar="DIR", help="The run that discrepancy compares features with."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a finished run; docs/measures.md says what each measure is.

    Most need the data that the run was made with, where data.root or $PROTOFED_DATA says.
    """
    from rich.console import Console

    from protofed.cli.screen import say
    from protofed.experiment.folder import json_value
    from protofed.experiment.results import Result
    from protofed.measures.on_demand import CHEAP
    from protofed.measures.on_demand import measure as measured

    names = [name.strip() for word in what or () for name in word.split(",")]
    found = measured(
        Result.load(folder),
        names or CHEAP,
        client=client,
        accuracy=accuracy,
        beside=Result.load(beside) if beside else None,
    )
    if as_json:
        print(json.dumps(json_value({name: one._asdict() for name, one in found.items()}), indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # a file has room
    for name, one in found.items():
        say(console, f"{name}: {one.about}")
        wide = max((len(row) for row in one.rows.values()), default=0)
        if not one.rows:
            say(console, "There is nothing to measure.")
        elif wide > _WIDEST:
            say(console, f"{len(one.rows)} rows of {wide} columns are too wide to show: --json prints them.")
        else:
            console.print(_measure_table(one))


def _measure_table(found: Measurement) -> Table:
    """The figures as a person reads them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = list(dict.fromkeys(column for row in found.rows.values() for column in row))
    made.add_column("", overflow="fold")
    for column in columns:
        made.add_column(column.replace("_", " "), justify="right", overflow="fold")
    for name, row in found.rows.items():
        made.add_row(name, *(_format_cell(row.get(column)) for column in columns))
    return made


def _format_cell(value: Any) -> str:
    """A figure.

    >>> [_format_cell(value) for value in (None, float("nan"), 12345, 0.98765, 0.0000321, 0.0)]
    ['-', '-', '12,345', '0.988', '3.21e-05', '0.000']
    """
    if value is None or value != value:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if 0 < abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.3f}"
