"""Arguments and options that several commands share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Optional

import typer

from protofed.errors import UserError, did_you_mean

option = partial(typer.Option, show_envvar=False)
"""`typer.Option`, without the words "(env var: 'None')" that click otherwise adds to its error messages."""

ExperimentFile = Annotated[
    Optional[Path],
    typer.Argument(help="Experiment file (TOML). Without one: FedProto on digits, 20 clients, n-way split."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run.")]
Sets = Annotated[
    Optional[list[str]],
    option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a value, e.g. --set train.lr=0.1; may be repeated. A new method.name, net.name or partition.name "
        "drops the options that the file gives for the old one.",
    ),
]
Root = Annotated[str, option("--root", help="Folder of the data files. Default: $PROTOFED_DATA.")]


def _trust(context: typer.Context, value: bool) -> bool:
    """Trust the code that run folders name until the command has ended."""
    from protofed.trust.known_code import trusting

    if value:
        context.with_resource(trusting())
    return value


TrustCode = Annotated[
    bool,
    option(
        "--trust-code",
        callback=_trust,
        help="Run the code that the run folder names (such as ./mine.py), although you have not run it before or it "
        "has changed since.",
    ),
]
RunsAtATime = Annotated[
    Optional[int],
    option("--jobs", min=1, help="Number of runs at a time. Default: 2; with --ray, one per core of the cluster."),
]
RayAddress = Annotated[
    str,
    option(
        "--ray",
        metavar="ADDRESS",
        help="Make the runs on a cluster of Ray, e.g. --ray 10.0.0.1:6379; auto: the one this machine belongs to. All "
        "its machines must see the folder --out (docs/cluster.md).",
    ),
]
AsJson = Annotated[bool, option("--json", help="Print JSON.")]
Format = Annotated[
    str,
    option(
        "--format",
        metavar="FORMAT",
        help="How to print the table: text, latex (booktabs), markdown, csv or json (like --json).",
    ),
]


def chosen_format(format: str, as_json: bool) -> str:
    """The format of a table that --format and --json ask for."""
    from protofed.experiment.table import FORMATS

    if format not in FORMATS:
        raise UserError(f'--format: there is no format "{format}". {did_you_mean(format, FORMATS)}')
    if as_json and format not in ("text", "json"):
        raise UserError(f"--json and --format {format}: give one of them.")
    return "json" if as_json else format
