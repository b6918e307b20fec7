"""The command `protofed`. Heavy imports wait until a command needs them."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from protofed import __version__
from protofed.cli.data import data_app as data_app
from protofed.cli.draw import draw_command
from protofed.cli.measure import measure_command
from protofed.cli.models import export_command, join_command, predict_command
from protofed.cli.pretrain import pretrain_command
from protofed.cli.prototypes import prototypes_command
from protofed.cli.reproduce import reproduce_command
from protofed.cli.sweep import sweep_command
from protofed.errors import UserError

app = typer.Typer(
    name="protofed",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Prototype-based federated learning for clients that differ in data, labels, models and machines.",
    epilog="Start with `protofed run`: fedproto on digits, 20 clients, a few seconds. Then `protofed list`.",
)


Sets = Annotated[
    Optional[list[str]],
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a value, e.g. --set train.lr=0.1; a new name drops the old one's options.",
    ),
]


def version(wanted: bool) -> None:
    if wanted:
        print(f"protofed {__version__}")
        raise typer.Exit


@app.callback()
def main(
    show: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_(
    kind: Annotated[
        Optional[str], typer.Argument(help="methods, datasets, partitions, nets or recipes; all of them if left out")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what there is: methods, datasets, partitions, nets, recipes, with their options and defaults."""
    from protofed.cli.listing import KINDS, list_entries
    from protofed.errors import did_you_mean
    from protofed.experiment.options import toml_value

    if kind is not None and kind not in KINDS:
        raise UserError(f"There is no list of {kind!r}. {did_you_mean(kind, KINDS)}")
    lists = {name: list_entries(name) for name in ([kind] if kind else KINDS)}
    if as_json:
        print(json.dumps(lists[kind] if kind else lists, indent=2))
        return
    for name, entries in lists.items():
        print(f"{name}:")
        wide = max((len(entry["name"]) for entry in entries), default=0)
        for entry in entries:
            print(f"  {entry['name']:<{wide}}  {entry['about']}")
            options = ", ".join(f"{key}={toml_value(value)}" for key, value in entry["options"].items())
            if options:
                print(f"  {'':<{wide}}    {options}")


@app.command()
def run(
    file: Annotated[
        Optional[Path], typer.Argument(help="The experiment, TOML; none: fedproto on digits, 20 clients, nway.")
    ] = None,
    sets: Sets = None,
    out: Annotated[
        Optional[Path], typer.Option("--out", help="The run folder to write; default: a new one in runs/.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --out, bit for bit; --set run.rounds=N for more rounds."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Run a federation and write a run folder."""
    from rich.console import Console

    from protofed.cli.screen import Screen, run_verdict, say
    from protofed.experiment.config import Config
    from protofed.experiment.folder import Folder
    from protofed.experiment.run import run as run_experiment

    if resume:
        if out is None or file is not None:
            raise UserError(
                "--resume continues the run in --out with its own config.toml: give --out, and no experiment file."
            )
        config = Config.load(Folder.old(out).path / "config.toml", sets or ())
    else:
        config = Config.load(file, sets or ())
        out = out or fresh(f"{config.method_name}-{config.data.name}")
    console = Console(quiet=quiet)
    try:
        with Screen(console) as screen:
            result = run_experiment(config, out, resume=resume, watchers=[screen])
    except (KeyboardInterrupt, OSError) as stopped:
        asked = isinstance(stopped, KeyboardInterrupt)
        print("\nInterrupted." if asked else f"protofed: {trouble(stopped)}", file=sys.stderr)
        if (out / "config.toml").exists():
            print(f"Continue with: protofed run --resume --out {shlex.quote(str(out))}", file=sys.stderr)
        raise typer.Exit(130 if asked else 1) from None
    say(console, run_verdict(result))


def fresh(name: str) -> Path:
    """A folder in runs/ that is not there yet."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put runs side by side: accuracy by head and by prototype, spread over clients, cost."""
    from rich.console import Console

    from protofed.cli.compare import EXPLAINED, by_setting, collect, compare_table, over_seeds, remarks
    from protofed.cli.screen import say

    results = collect(folders)
    if as_json:
        print(json.dumps(results, indent=2))
        return
    console = Console()
    console.print(compare_table(results))
    for remark in remarks(results):
        say(console, remark)
    if rows := by_setting(results):
        console.print(over_seeds(rows))
        say(console, EXPLAINED)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write; never an existing one.")],
    sets: Sets = None,
) -> None:
    """Write an experiment file with every key, its default and what it means."""
    from protofed.cli.template import template
    from protofed.experiment.config import Config
    from protofed.experiment.folder import must_be_new, write_atomically

    must_be_new(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = template(Config.load(None, sets or ()), str(file))
    write_atomically(file, text.encode())
    print(f"Written to {file}. Change it, then: protofed run {shlex.quote(str(file))}")


app.add_typer(data_app, name="data")
app.command("predict")(predict_command)
app.command("export")(export_command)
app.command("join")(join_command)
app.command("draw")(draw_command)
app.command("measure")(measure_command)
app.command("pretrain")(pretrain_command)
app.command("prototypes")(prototypes_command)
app.command("reproduce")(reproduce_command)
app.command("sweep")(sweep_command)


def entry() -> None:
    """Run the command; a user's error is a message, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no ± still gets the figures
    try:
        app()
    except UserError as problem:
        print(f"protofed: {problem}", file=sys.stderr)
        sys.exit(2)
    except OSError as problem:
        print(f"protofed: {trouble(problem)}", file=sys.stderr)
        sys.exit(1)


def trouble(problem: BaseException) -> str:
    """What the system complains of."""
    what, where = getattr(problem, "strerror", None) or problem, getattr(problem, "filename", None)
    return f"{what}: {where}." if where else f"{what}."
