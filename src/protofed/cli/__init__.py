"""The command `protofed`. Modules that take long to import are imported inside the commands that need them."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer
import typer.core

from protofed import __version__
from protofed.cli.arguments import AsJson, ExperimentFile, Sets, TrustCode, option
from protofed.cli.check import check_command
from protofed.cli.compare import compare_command, runs_command
from protofed.cli.data import data_app
from protofed.cli.deploy import deploy_app
from protofed.cli.draw import draw_command
from protofed.cli.hints import SetsKeys
from protofed.cli.measure import measure_command
from protofed.cli.models import export_command, join_command, predict_command
from protofed.cli.plan import plan_command
from protofed.cli.pretrain import pretrain_command
from protofed.cli.privacy import privacy_command
from protofed.cli.prototypes import prototypes_command
from protofed.cli.report import report_command, watch_command
from protofed.cli.reproduce import reproduce_command
from protofed.cli.stopping import advice_if_stopped, system_message
from protofed.cli.sweep import sweep_command
from protofed.errors import UserError, is_out_of_memory
from protofed.plugins import label, outside_error

typer.core.HAS_RICH = False  # otherwise --help has a backslash in front of "[required]", and imports Rich
app = typer.Typer(
    name="protofed",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its import would take half of the time of --help
    help="Prototype-based federated learning for clients that differ in data, labels, models and machines.",
    epilog="Start with `protofed run`: FedProto on digits with 20 clients, in a few seconds. Then see `protofed list`.",
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"protofed {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_(
    kind: Annotated[
        Optional[str],
        typer.Argument(
            help="methods, datasets, partitions, nets, measures, watchers or recipes. Without one: all of them."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the methods, datasets (and which are there), partitions, nets, measures, watchers and recipes."""
    from protofed.cli.listing import KINDS, NOTES, entry_lines, list_entries
    from protofed.errors import did_you_mean

    if kind is not None and kind not in KINDS:
        raise UserError(f'There is no list "{kind}". {did_you_mean(kind, KINDS)}')
    lists = {name: list_entries(name) for name in ([kind] if kind else KINDS)}
    if as_json:
        print(json.dumps(lists[kind] if kind else lists, indent=2))
        return
    for name, entries in lists.items():
        print(f"{name}:")
        width = max((len(entry["name"]) for entry in entries), default=0)
        for entry in entries:
            print("\n".join(entry_lines(entry, width, explained=kind is not None)))
        if name in NOTES:
            print(f"  {NOTES[name]}")
    if kind is None:
        print("`protofed list methods` and so on also say what the options mean.")


@app.command(cls=SetsKeys)
def run(
    file: ExperimentFile = None,
    sets: Sets = None,
    out: Annotated[Optional[Path], option("--out", help="Run folder to write. Default: a new one in runs/.")] = None,
    resume: Annotated[
        bool,
        option(
            "--resume",
            help="Continue the run in --out; the result is identical to an uninterrupted run. "
            "--set run.rounds=N adds rounds.",
        ),
    ] = False,
    quiet: Annotated[bool, option("--quiet", help="Print only errors.")] = False,
    watch: Annotated[bool, option("--watch", help="Show the run in the browser while it goes on.")] = False,
    trust_code: TrustCode = False,
) -> None:
    """Run an experiment and write a run folder."""
    from rich.console import Console

    from protofed.cli.printing import say
    from protofed.cli.screen import Screen, run_verdict
    from protofed.experiment.config import Config
    from protofed.experiment.folder import Folder
    from protofed.experiment.run import run as run_experiment
    from protofed.experiment.stored import has_diverged
    from protofed.experiment.watchers import Watcher

    if resume:
        if out is None or file is not None:
            raise UserError(
                "--resume continues the run in --out with the config.toml of that folder: "
                "give --out, and no experiment file."
            )
        folder = out
        config = Config.load(Folder.existing(folder).path / "config.toml", sets or ())
    else:
        config = Config.load(file, sets or ())
        folder = out or _new_run_folder(f"{label(config.method_name)}-{label(config.data.name)}")

    def advice() -> str:
        started = (folder / "config.toml").exists()
        return f"Continue with: protofed run --resume --out {shlex.quote(str(folder))}" if started else ""

    console = Console(quiet=quiet)
    with advice_if_stopped(advice), Screen(console) as screen:
        watchers: list[Watcher] = [screen]
        if watch:
            from protofed.report.live import LiveWatcher

            watchers.append(LiveWatcher(folder, lambda text: say(console, text)))
        result = run_experiment(config, folder, resume=resume, watchers=watchers)
    say(console, run_verdict(result))
    if has_diverged(result.summary):
        print("protofed: The run has diverged: its loss is not finite. The exit code is 1.", file=sys.stderr)
        raise typer.Exit(1)


def _new_run_folder(name: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2, ... that does not exist yet."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


@app.command(cls=SetsKeys)
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="File to write. It must not exist yet.")],
    sets: Sets = None,
) -> None:
    """Write an experiment file with every key, its default and its meaning."""
    from protofed.cli.template import template
    from protofed.experiment.config import Config
    from protofed.experiment.folder import must_be_new, write_atomically

    must_be_new(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = template(Config.load(None, sets or ()), str(file))
    write_atomically(file, text.encode())
    print(f"Written to {file}. Edit it, then run: protofed run {shlex.quote(str(file))}")


app.command("compare")(compare_command)
app.command("runs")(runs_command)
app.add_typer(data_app, name="data")
app.command("check")(check_command)
app.add_typer(deploy_app, name="deploy")
app.command("plan", cls=SetsKeys)(plan_command)
app.command("predict")(predict_command)
app.command("export")(export_command)
app.command("join")(join_command)
app.command("draw")(draw_command)
app.command("measure")(measure_command)
app.command("pretrain")(pretrain_command)
app.command("privacy", cls=SetsKeys)(privacy_command)
app.command("prototypes")(prototypes_command)
app.command("report")(report_command)
app.command("reproduce")(reproduce_command)
app.command("sweep", cls=SetsKeys)(sweep_command)
app.command("watch")(watch_command)


def raise_unless_outside(problem: Exception) -> None:
    """Show an exception in code outside the package as a message and end; raise any other one again."""
    message = outside_error(problem)
    if message is None:
        raise problem
    print(f"protofed: {message}", file=sys.stderr)
    sys.exit(1)


def entry() -> None:
    """Run the command. Errors of the user and of the operating system are messages, not tracebacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ± still gets the numbers
    try:
        app()
    except UserError as problem:
        print(f"protofed: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    except OSError as problem:
        print(f"protofed: {system_message(problem)}", file=sys.stderr)
        sys.exit(1)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise_unless_outside(problem)
        advice = "Use a smaller net, a smaller train.batch, or fewer processes (engine.workers, --jobs)."
        print(f"protofed: There is not enough memory ({problem}). {advice}", file=sys.stderr)
        sys.exit(1)
    except Exception as problem:
        raise_unless_outside(problem)
