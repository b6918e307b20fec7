"""The commands `protofed data info` and `protofed data show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.arguments import AsJson, ExperimentFile, Root, Sets, option
from protofed.cli.hints import SetsKeys
from protofed.plugins import label

data_app = typer.Typer(no_args_is_help=True, help="Look at datasets and at their partition among clients.")


@data_app.command()
def info(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a dataset; `protofed list datasets` shows them. Of tables: the experiment file, the folder, "
            "or a table."
        ),
    ],
    root: Root = "",
    as_json: AsJson = False,
) -> None:
    """Show a dataset: shapes, classes, sizes, label histogram, and the origins of its examples."""
    from protofed.data.sources import SOURCES
    from protofed.data.summary import summarise, summary_text
    from protofed.data.table.client_tables import TableOptions, read_frames
    from protofed.data.table.files import SUFFIXES, read_table
    from protofed.data.table.overview import overview_text, table_overview

    path, options = Path(name), TableOptions("")
    if path.suffix == ".toml":
        from protofed.experiment.config import Config

        data = Config.load(path).data
        name, root, options = data.name, data.root, data.table_options()
        path = Path(root) if name == "table" else path
    if path.suffix in SUFFIXES or (path.is_dir() and (name not in SOURCES or options.target)):
        if path.is_dir() or options.client:
            frames = read_frames(str(path), options)
        else:
            frames = {path.stem: (path.name, read_table(path))}
        overview = table_overview(frames, options)
        print(json.dumps(overview, indent=2) if as_json else overview_text(str(path), overview))
        return
    dataset = SOURCES.find(name, "dataset")[1](root)
    print(json.dumps(summarise(dataset), indent=2) if as_json else summary_text(dataset))


@data_app.command(cls=SetsKeys)
def show(
    file: ExperimentFile = None,
    sets: Sets = None,
    out: Annotated[Path, option("--out", help="Picture to write, .png, .svg or .pdf. It must not exist yet.")] = Path(
        "partition.png"
    ),
) -> None:
    """Draw the partition of an experiment: how many examples of each class each client holds."""
    from protofed.data.summary import size_statistics
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
    write_holdings(members, f"{members.title}, {label(config.partition_name)}", out)
    about = size_statistics([len(train) for train in members.train])
    print(
        f"{about['clients']:,} clients with {about['smallest']:,} to {about['largest']:,} training examples, "
        f"{about['examples']:,} in all (mean {about['mean']:.1f}, standard deviation {about['std']:.1f}), and "
        f"{sum(map(len, members.test)):,} test examples. Written to {out}."
    )
