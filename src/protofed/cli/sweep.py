"""The command `protofed sweep`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

from protofed.cli.arguments import (
    AsJson,
    ExperimentFile,
    Format,
    RayAddress,
    RunsAtATime,
    Sets,
    TrustCode,
    chosen_format,
    option,
)
from protofed.cli.stopping import advice_if_stopped, same_command_continues
from protofed.errors import UserError

if TYPE_CHECKING:
    from protofed.studies.sweep import Sweep


def sweep_command(
    file: ExperimentFile = None,
    grid: Annotated[
        Optional[list[str]],
        option("--grid", metavar="SECTION.KEY=A,B,...", help="Values to try. If repeated, all combinations are tried."),
    ] = None,
    runs: Annotated[
        Optional[str],
        option("--runs", metavar="A.toml,B.toml", help="Experiment files to compare, each with its own options."),
    ] = None,
    seeds: Annotated[
        str,
        option("--seeds", metavar="N or A,B,...", help="Runs per setting (seeds 0, 1, ...), or a list of seeds."),
    ] = "3",
    jobs: RunsAtATime = None,
    ray: RayAddress = "",
    sets: Sets = None,
    out: Annotated[Optional[Path], option("--out", help="Folder for the runs of the sweep.")] = None,
    format: Format = "text",
    as_json: AsJson = False,
    trust_code: TrustCode = False,
) -> None:
    """Run several settings with several seeds, some runs at a time, and compare the settings.

    Settings are the combinations of --grid, the [[compare]] tables of the experiment file, or the files of --runs. To
    continue an interrupted sweep, run the same command again. Settings are compared seed by seed: runs with the same
    seed have the same partition, the same clients per round and the same batches.
    """
    from protofed.cli.printing import say, show_table, wide_console
    from protofed.cli.progress import RunProgress
    from protofed.experiment.wording import quantity
    from protofed.studies import plan as planning
    from protofed.studies import sweep as sweeping
    from protofed.studies.side_by_side import runs_at_a_time

    format = chosen_format(format, as_json)
    files = [Path(name.strip()) for name in (runs or "").split(",") if name.strip()]
    if file is not None and files:
        raise UserError("--runs has the experiment files of the sweep: leave FILE out, or give it in --runs.")
    settings, chosen_seeds = planning.file_settings(files), planning.parse_seeds(seeds)
    if out is None:
        raise UserError("sweep needs --out FOLDER, for its runs.")
    plan = planning.plan_sweep(file, out, chosen_seeds, grid or (), settings, sets or ())
    if not (grid or files or len(plan.runs) > len(chosen_seeds)):
        raise UserError(
            "sweep needs settings to compare: --grid section.key=a,b,c, --runs A.toml,B.toml, or a FILE with "
            "[[compare]] tables."
        )
    sweeping.check_stored_runs(plan.runs)
    console = wide_console(stderr=format != "text")
    for note in plan.notes:
        say(console, note)
    settings_text = quantity(len(plan.runs) // len(chosen_seeds), "setting")
    say(console, f"{settings_text}, {quantity(len(chosen_seeds), 'seed')} each:")
    at_a_time = runs_at_a_time(jobs, ray)
    with advice_if_stopped(same_command_continues), RunProgress(console, plan.runs, at_a_time) as progress:
        made = sweeping.make_sweep(out, plan.runs, at_a_time, progress.run_ended, progress.tick, ray=ray)
    if format != "text":
        print(json.dumps(made.as_json(), indent=2) if format == "json" else made.table.render(format))
        return
    show_table(console, made.table)
    for line in _sweep_verdict(made, len(chosen_seeds)):
        say(console, line)
    say(console, f"Written to {shlex.quote(str(out))}: sweep.json, sweep.png, and a run folder for each run.")


def _sweep_verdict(made: Sweep, seeds: int) -> list[str]:
    """The meaning of the table, and the best setting."""
    from protofed.studies.comparison import EXPLAINED

    one_seed = "Accuracies in percent, with one seed: their uncertainty is unknown. Use --seeds 3 or more."
    lines = [EXPLAINED if seeds > 1 else one_seed]
    if diverged := made.diverged:
        lines.append(f"The loss of these runs is not finite, so they have diverged: {'; '.join(diverged)}.")
    for row in made.rows:
        for seed, reason in row.stopped.items():
            lines.append(f"Stopped, and in none of the figures: {row.setting or 'as it is'}, seed {seed}. {reason}")
    if made.best:
        lines.append(f"Best on the validation sets: {made.best.setting}.")
    elif any("validation" in row.figures for row in made.rows):
        lines.append("No best setting is reported: a run of every setting has stopped.")
    else:
        lines.append(
            "No best setting is reported: there are no validation sets, and test sets must not be used to choose. "
            "To get one, add --set eval.validation=0.2."
        )
    return lines
