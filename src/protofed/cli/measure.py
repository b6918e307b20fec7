"""The command `protofed measure`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

from protofed.cli.arguments import AsJson, Format, RunFolder, TrustCode, chosen_format, option

_MAX_COLUMNS = 24
"""Tables with more columns are not printed on a terminal."""


def measure_command(
    folder: RunFolder,
    what: Annotated[
        Optional[list[str]],
        option(
            "--what",
            metavar="NAME",
            help="bounds, classification, confusion, cost, discrepancy, drift, entropy, fairness, gradients, "
            "margins, model_margins, objective, scatter, similarity or unknown, or your own (./mine.py:name). For "
            "several, repeat --what or use commas. Default: fairness, classification, cost.",
        ),
    ] = None,
    client: Annotated[
        Optional[str],
        option(
            "--client",
            help="For bounds, classification, confusion, entropy, scatter, unknown: measure only this client (number "
            "or name).",
        ),
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
    format: Format = "text",
    as_json: AsJson = False,
    trust_code: TrustCode = False,
) -> None:
    """Measure a finished run. docs/measures.md defines every measure.

    Most measures need the data of the run, in the folder that data.root or $PROTOFED_DATA names.
    """
    from protofed.cli.printing import say, show_table, wide_console
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
    format = chosen_format(format, as_json)
    if format == "json":
        as_dicts = {name: measurement._asdict() for name, measurement in measurements.items()}
        print(json.dumps(json_value(as_dicts), indent=2))
        return
    if format != "text":
        print("\n\n".join(measurement.table.render(format) for measurement in measurements.values()))
        return
    console = wide_console()
    for name, measurement in measurements.items():
        say(console, f"{name}: {measurement.about}")
        columns = max((len(row) for row in measurement.rows.values()), default=0)
        if not measurement.rows:
            say(console, "There is nothing to measure.")
        elif console.is_terminal and columns > _MAX_COLUMNS:
            say(console, f"The table ({len(measurement.rows)} rows, {columns} columns) is too wide. Use --format csv.")
        else:
            show_table(console, measurement.table, break_heads=False)
        for note in measurement.notes:
            say(console, note)
