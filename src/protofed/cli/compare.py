"""The commands `protofed compare` and `protofed runs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.arguments import AsJson, Format, chosen_format


def compare_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of sweeps for all their runs.")
    ],
    format: Format = "text",
    as_json: AsJson = False,
) -> None:
    """Compare runs: accuracy by head and by prototype, its spread over clients, and cost.

    Runs that differ only in their seed also get a table with intervals, which is the one that --format writes. A run
    that is still going on is shown with its figures so far.
    """
    from protofed.cli.printing import say, show_table, wide_console
    from protofed.studies.comparison import compare

    comparison, format = compare(*folders), chosen_format(format, as_json)
    if format != "text":
        print(json.dumps(comparison.as_json(), indent=2) if format == "json" else comparison.table.render(format))
        return
    console = wide_console()
    show_table(console, comparison.by_run)
    for note in comparison.notes:
        say(console, note)
    if comparison.rows:
        show_table(console, comparison.table)
        for note in comparison.table.notes[:1]:  # a terminal shows no bold
            say(console, note)


def runs_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to search, with all folders in it.")] = Path(
        "runs"
    ),
    format: Format = "text",
    as_json: AsJson = False,
) -> None:
    """List the run folders in a folder: state, method, data, result and age."""
    from protofed.cli.printing import show_table, wide_console
    from protofed.studies.run_list import list_runs

    listed, format = list_runs(folder), chosen_format(format, as_json)
    if format == "json":
        print(json.dumps(listed.records(), indent=2))
    elif format != "text":
        print(listed.render(format))
    else:
        show_table(wide_console(), listed)
