"""The command `protofed sweep`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

from protofed.cli.arguments import AsJson, ExperimentFile, Sets, option
from protofed.cli.stopping import advice_if_stopped, same_command_continues
from protofed.errors import UserError

if TYPE_CHECKING:
    from protofed.measures.intervals import SettingRow


def sweep_command(
    file: ExperimentFile = None,
    grid: Annotated[
        Optional[list[str]],
        option("--grid", metavar="SECTION.KEY=A,B,...", help="Values to try. If repeated, all combinations are tried."),
    ] = None,
    seeds: Annotated[int, option("--seeds", min=1, help="Number of runs per setting, with seeds 0, 1, ...")] = 3,
    sets: Sets = None,
    out: Annotated[Optional[Path], option("--out", help="Folder for the runs of the sweep.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run every combination of values with several seeds, two runs at a time, and compare the settings.

    To continue an interrupted sweep, run the same command again. Settings are compared seed by seed: runs with the same
    seed have the same partition, the same clients per round and the same batches.
    """
    from rich.console import Console

    from protofed.cli.compare import over_seeds
    from protofed.cli.screen import Progress, say
    from protofed.experiment.folder import write_atomically
    from protofed.experiment.wording import quantity
    from protofed.measures.intervals import settings_as_json
    from protofed.pictures.style import write_picture
    from protofed.pictures.sweep_plot import draw_sweep
    from protofed.studies import sweep as sweeping

    if out is None or not grid:
        raise UserError("sweep needs --grid section.key=a,b,c and --out FOLDER.")
    jobs = sweeping.plan_runs(file, grid, seeds, sets or (), out)
    console = Console(stderr=as_json)
    say(console, f"{quantity(len(jobs) // seeds, 'setting')}, {quantity(seeds, 'seed')} each:")
    with advice_if_stopped(same_command_continues):
        sweeping.run_all(jobs, Progress(console, jobs).run_ended)
    rows = sweeping.setting_rows(jobs)
    write_atomically(out / "sweep.json", json.dumps(settings_as_json(rows), indent=2).encode())
    write_picture(draw_sweep(rows), out / "sweep.png")
    if as_json:
        print(json.dumps(settings_as_json(rows), indent=2))
        return
    console.print(over_seeds(rows))
    for line in _sweep_verdict(rows, seeds):
        say(console, line)
    say(console, f"Written to {shlex.quote(str(out))}: sweep.json, sweep.png, and a run folder for each run.")


def _sweep_verdict(rows: list[SettingRow], seeds: int) -> list[str]:
    """The meaning of the table, and the best setting."""
    from protofed.cli.compare import EXPLAINED
    from protofed.studies.sweep import best_setting

    one_seed = "Accuracies in percent, with one seed: their uncertainty is unknown. Use --seeds 3 or more."
    lines = [EXPLAINED if seeds > 1 else one_seed]
    best = best_setting(rows)
    if best:
        lines.append(f"Best on the validation sets: {best.setting}.")
    else:
        lines.append(
            "No best setting is reported: there are no validation sets, and test sets must not be used to choose. "
            "To get one, add --set eval.validation=0.2."
        )
    return lines
