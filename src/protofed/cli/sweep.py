"""`protofed sweep`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from protofed.errors import UserError

if TYPE_CHECKING:
    from protofed.measures.intervals import SettingRow


def sweep_command(
    file: Annotated[Optional[Path], typer.Argument(help="The experiment, TOML; none: fedproto on digits.")] = None,
    grid: Annotated[
        Optional[list[str]],
        typer.Option("--grid", metavar="SECTION.KEY=A,B,...", help="Values to try; several: all combinations."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each setting, with seeds 0, 1, ...")] = 3,
    sets: Annotated[
        Optional[list[str]],
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a value of all runs."),
    ] = None,
    out: Annotated[Optional[Path], typer.Option("--out", help="The folder of the sweep's runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run every combination of values with several seeds, two runs at a time, and compare them.

    The same command goes on where an interrupted sweep stopped. Settings are compared seed by seed: runs with the same
    seed have the same partition, clients a round and batches.
    """
    from rich.console import Console

    from protofed.cli.compare import over_seeds
    from protofed.cli.screen import Progress, say
    from protofed.experiment.folder import write_atomically
    from protofed.experiment.wording import many
    from protofed.measures.intervals import settings_as_json
    from protofed.pictures.style import write_picture as write_picture
    from protofed.pictures.sweep_plot import draw_sweep
    from protofed.studies import sweep as sweeping

    if out is None or not grid:
        raise UserError("sweep wants --grid section.key=a,b,c and --out FOLDER.")
    jobs = sweeping.plan_runs(file, grid, seeds, sets or (), out)
    console = Console(stderr=as_json)
    say(console, f"{many(len(jobs) // seeds, 'setting')}, {many(seeds, 'seed')} each:")
    try:
        sweeping.run_all(jobs, Progress(console, jobs).told)
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        raise typer.Exit(130) from None
    found = sweeping.setting_rows(jobs)
    write_atomically(out / "sweep.json", json.dumps(settings_as_json(found), indent=2).encode())
    write_picture(draw_sweep(found), out / "sweep.png")
    if as_json:
        print(json.dumps(settings_as_json(found), indent=2))
        return
    console.print(over_seeds(found))
    for line in _sweep_verdict(found, seeds):
        say(console, line)
    say(console, f"Written to {shlex.quote(str(out))}: sweep.json, sweep.png, and a run folder for each run.")


def _sweep_verdict(found: list[SettingRow], seeds: int) -> list[str]:
    """What the table means, and which setting is best."""
    from protofed.cli.compare import EXPLAINED
    from protofed.studies.sweep import best_setting

    alone = "Accuracies in percent, of one seed: nothing can be said of how sure they are. Use --seeds 3 or more."
    lines = [EXPLAINED if seeds > 1 else alone]
    chosen = best_setting(found)
    if chosen:
        lines.append(f"Best on the validation sets: {chosen.setting}.")
    else:
        lines.append(
            "No setting is chosen: there are no validation sets, and the test sets are not for choosing. "
            "Add --set eval.validation=0.2 for that."
        )
    return lines
