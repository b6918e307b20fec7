"""The command `protofed measure`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

from protofed.cli.arguments import AsJson, RunFolder, option

if TYPE_CHECKING:
    from rich.table import Table

    from protofed.measures.question import Measurement

_MAX_COLUMNS = 24
"""Tables with more columns are not printed."""


def measure_command(
    folder: RunFolder,
    what: Annotated[
        Optional[list[str]],
        option(
            "--what",
            metavar="NAME",
            help="bounds, classification, confusion, cost, discrepancy, drift, entropy, fairness, gradients, "
            "margins, model_margins, objective, scatter or similarity. For several, repeat --what or use commas. "
            "Default: fairness, classification, cost.",
        ),
    ] = None,
    client: Annotated[
        Optional[int],
        option("--client", help="For bounds, classification, confusion, entropy, scatter: measure only this client."),
    ] = None,
    accuracy: Annotated[
        float,
        option("--accuracy", min=0, max=1, help="For cost: also count what was sent until this accuracy was reached."),
    ] = 0.9,
    beside: Annotated[
        Optional[Path], option("--beside", metavar="DIR", help="For discrepancy: the run to compare with.")
    ] = None,
    baseline: Annotated[
        Optional[Path],
        option(
            "--baseline", metavar="DIR", help="For discrepancy: also show how much nearer than this run it is (FFD)."
        ),
    ] = None,
    every: Annotated[
        Optional[int],
        option("--every", min=1, help="For bounds: repeat the run, and probe every this many rounds of it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a finished run. docs/measures.md defines every measure.

    Most measures need the data of the run, in the folder that data.root or $PROTOFED_DATA names.
    """
    from rich.console import Console

    from protofed.cli.screen import say
    from protofed.experiment.folder import json_value
    from protofed.experiment.results import Result
    from protofed.measures.on_demand import DEFAULT_MEASURES, measure

    names = [name.strip() for text in what or () for name in text.split(",")]
    measurements = measure(
        Result.load(folder),
        names or DEFAULT_MEASURES,
        client=client,
        accuracy=accuracy,
        beside=Result.load(beside) if beside else None,
        baseline=Result.load(baseline) if baseline else None,
        every=every,
    )
    if as_json:
        as_dicts = {name: measurement._asdict() for name, measurement in measurements.items()}
        print(json.dumps(json_value(as_dicts), indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # lines of a file may be long
    for name, measurement in measurements.items():
        say(console, f"{name}: {measurement.about}")
        columns = max((len(row) for row in measurement.rows.values()), default=0)
        if not measurement.rows:
            say(console, "There is nothing to measure.")
        elif columns > _MAX_COLUMNS:
            say(console, f"The table ({len(measurement.rows)} rows, {columns} columns) is too wide. Use --json.")
        else:
            console.print(_measure_table(measurement))
        for note in measurement.notes:
            say(console, note)


def _measure_table(measurement: Measurement) -> Table:
    """The rows of a measurement as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = list(dict.fromkeys(column for row in measurement.rows.values() for column in row))
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right", overflow="fold")
    for name, row in measurement.rows.items():
        table.add_row(name, *(_format_cell(row.get(column)) for column in columns))
    return table


def _format_cell(value: Any) -> str:
    """A number with three decimals, or with three significant digits if it is very small or large.

    >>> [_format_cell(value) for value in (None, float("nan"), "2 of 3", 12345, 0.98765, 0.0000321, 0.0)]
    ['-', '-', '2 of 3', '12,345', '0.988', '3.21e-05', '0.000']
    """
    if value is None or value != value:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if 0 < abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.3f}"
