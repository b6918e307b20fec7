"""The commands about data: info, show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer

from protofed.errors import UserError, did_you_mean

data_app = typer.Typer(no_args_is_help=True, help="Look at datasets, and at how they are shared out.")


@data_app.command()
def info(
    name: Annotated[str, typer.Argument(help="A dataset; `protofed list datasets` shows them.")],
    root: Annotated[str, typer.Option("--root", help="Where its file is; default: $PROTOFED_DATA.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a dataset: shapes, classes, sizes, label histogram, and where its examples come from."""
    from protofed.data.sources import SOURCES
    from protofed.data.summary import summarise, summary_text

    if name not in SOURCES:
        raise UserError(f'There is no dataset "{name}". {did_you_mean(name, SOURCES)}')
    data = SOURCES[name](root)
    print(json.dumps(summarise(data), indent=2) if as_json else summary_text(data))


@data_app.command()
def show(
    file: Annotated[Optional[Path], typer.Argument(help="The experiment, TOML; none: the default one.")] = None,
    sets: Annotated[
        Optional[list[str]], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a value of it.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The picture, .png or .svg.")] = Path("partition.png"),
) -> None:
    """Draw who holds what in an experiment: clients, classes and sizes."""
    from protofed.experiment.config import Config
    from protofed.experiment.folder import must_be_new
    from protofed.experiment.members import Members
    from protofed.pictures.holdings import write_holdings
    from protofed.pictures.style import must_be_a_picture

    must_be_new(out)
    must_be_a_picture(out)
    config = Config.load(file, sets or ())
    members = Members.of(config)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_holdings(members, f"{members.title}, {config.partition_name}", out)
    sizes = [len(train) for train in members.train]
    print(f"{len(sizes)} clients with {min(sizes):,} to {max(sizes):,} training examples. Written to {out}.")
