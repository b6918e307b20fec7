"""The commands `protofed data info`, `protofed data convert` and `protofed data show`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from protofed.cli.arguments import AsJson, ExperimentFile, Root, Sets, option
from protofed.cli.hints import SetsKeys
from protofed.errors import UserError, did_you_mean
from protofed.plugins import label

data_app = typer.Typer(
    no_args_is_help=True, help="Look at datasets, convert published ones, and look at partitions among clients."
)


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
    """Show a dataset: where it is published, shapes, classes, sizes, histogram of labels, origins of examples."""
    from protofed.data.formats import PUBLISHED_FORMATS
    from protofed.data.sources import SOURCES
    from protofed.data.summary import summarise, summary_text
    from protofed.data.table.client_tables import TableOptions, read_frames
    from protofed.data.table.files import is_table, read_table
    from protofed.data.table.overview import overview_text, table_overview

    path, options = Path(name), TableOptions("")
    if path.suffix == ".npz" and not root:
        name, root = "npz", name
    if path.suffix == ".toml":
        from protofed.experiment.config import Config

        data = Config.load(path).data
        name, root, options = data.name, data.root, data.table_options()
        path = Path(root) if name == "table" else path
    if is_table(path) or (path.is_dir() and (name not in SOURCES or options.target)):
        if path.is_dir() or options.client:
            frames = read_frames(str(path), options)
        else:
            frames = {path.stem: (path.name, read_table(path, options.missing, options.categories))}
        overview = table_overview(frames, options)
        print(json.dumps(overview, indent=2) if as_json else overview_text(str(path), overview))
        return
    published = PUBLISHED_FORMATS.get(name)
    has_reader = published is None or name in SOURCES
    if published and not as_json:
        print(published.text(name) + ("\n" if has_reader else ""))
    about = {"published": published.as_json()} if published else {}
    if has_reader:
        source = SOURCES.find(name, "dataset")[1]
        if root and source.files == ():
            raise UserError(f"--root {root}: {name} is read from no folder. Leave it out.")
        dataset = source(root)
        print(json.dumps({**summarise(dataset), **about}, indent=2) if as_json else summary_text(dataset))
    elif as_json:
        print(json.dumps({"name": name, **about}, indent=2))


@data_app.command()
def convert(
    name: Annotated[str, typer.Argument(help="celeba, cifar10, femnist, images, ...; docs/data.md lists them.")],
    source: Annotated[Path, typer.Argument(metavar="FROM", help="Folder or file as it was published, unpacked.")],
    out: Annotated[
        Optional[Path], option("--out", help="File to write. Default: NAME.npz. It must not exist yet.")
    ] = None,
    size: Annotated[
        int, option("--size", min=0, help="Resize images to this number of pixels squared. 0: as the format suggests.")
    ] = 0,
    target: Annotated[str, option("--target", help="CelebA: the attribute to predict.")] = "Smiling",
) -> None:
    """Convert a published dataset once to an npz file with checksums, which are verified whenever it is read."""
    from protofed.data.formats import PUBLISHED_FORMATS
    from protofed.data.formats.published import ConvertOptions, use_of, write_converted

    if name not in PUBLISHED_FORMATS:
        raise UserError(f'There is no format "{name}". {did_you_mean(name, PUBLISHED_FORMATS)}')
    path = out or Path(f"{name}.npz")
    options = ConvertOptions(size, target, lambda text: print(text, file=sys.stderr))
    print(f"{write_converted(name, PUBLISHED_FORMATS[name], source, path, options)} Written to {path}.")
    print(f"Use it: {use_of(name, PUBLISHED_FORMATS[name], path)}")


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
