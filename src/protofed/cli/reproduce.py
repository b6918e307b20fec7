"""`protofed reproduce`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from protofed.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console


def reproduce_command(
    name: Annotated[Optional[str], typer.Argument(help="A table or figure of --list, e.g. fedproto-table1.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version, in minutes.")] = False,
    seeds: Annotated[Optional[int], typer.Option("--seeds", min=1, help="Seeds 0, 1, ...; default: 3.")] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Where the runs and the tables go; runs that are there are not made again.")
    ] = Path("runs/reproduce"),
    kept: Annotated[
        Optional[Path],
        typer.Option("--kept", help="A table's JSON of an earlier time: what it has is not run, only what is missing."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Every table and figure of the four papers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Make a table or figure of the papers, ours beside theirs, from runs that are made two at a time.

    The same command goes on where an interrupted one stopped. With --kept docs/results/data/NAME.json a table that was
    made before is shown at once.
    """
    from rich.console import Console

    from protofed.studies.reproduce.fedproto import STUDIES
    from protofed.studies.reproduce.papers import ENTRIES

    if listed or name is None:
        _show_list(as_json)
        return
    if name not in STUDIES:
        known = next((entry for entry in ENTRIES if entry.name == name), None)
        if known:
            raise UserError(f"{name} is not made by this command. {known.state.capitalize()}: {known.how}.")
        raise UserError(f'There is no study "{name}". {did_you_mean(name, [entry.name for entry in ENTRIES])}')
    if kept and STUDIES[name].picture:
        raise UserError(f"--kept: {name} is drawn from the runs themselves. Leave it out.")
    _make_study(name, quick, seeds or STUDIES[name].seeds, out, kept, as_json, Console(stderr=as_json))


def _show_list(as_json: bool) -> None:
    """Every table and figure with its state."""
    from protofed.studies.reproduce.papers import ENTRIES

    if as_json:
        print(json.dumps([entry._asdict() for entry in ENTRIES], indent=2))
        return
    wide = max(len(entry.name) for entry in ENTRIES)
    for paper in dict.fromkeys(entry.paper for entry in ENTRIES):
        print(f"{paper}:")
        for entry in ENTRIES:
            if entry.paper == paper:
                print(f"  {entry.name:<{wide}}  {entry.shows}\n  {'':<{wide}}    {entry.state}: {entry.how}")


def _make_study(
    name: str, quick: bool, seeds: int, out: Path, kept: Path | None, as_json: bool, console: Console
) -> None:
    """Run what is missing, then show and write what was found."""
    from protofed.cli.screen import Progress, say
    from protofed.experiment.folder import write_atomically
    from protofed.pictures.style import write_picture as write_picture
    from protofed.studies import sweep
    from protofed.studies.reproduce import page
    from protofed.studies.reproduce.fedproto import STUDIES
    from protofed.studies.reproduce.study import Seen, cell_figures, read_kept, to_keep

    study = STUDIES[name]
    known = read_kept(kept, study, quick) if kept else {}
    jobs = study.jobs(out, seeds, quick, known)
    say(console, f"{study.title}{', made small' if quick else ''}:")
    if kept:
        say(console, f"{len(known)} figures are from {kept}.")
    try:
        sweep.run_all(jobs, Progress(console, jobs).told)
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        raise typer.Exit(130) from None
    found = []
    for cell in study.chosen(quick):
        runs = {seed: run for (own, seed), run in known.items() if own == cell}
        for seed in set(range(seeds)) - set(runs):
            runs[seed] = cell_figures(cell, cell.out(out, seed, study.smaller(quick)))
        found.append(Seen(cell, dict(sorted(runs.items()))))
    told, stem = to_keep(study, found, quick), f"{name}{'-quick' if quick else ''}"
    files = [f"{stem}.md", f"{stem}.json"]
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / files[0], page.page(study, found, quick).encode())
    write_atomically(out / files[1], json.dumps(told, indent=1).encode())
    if study.picture:
        files.append(f"{stem}.png")
        write_picture(study.picture(jobs), out / files[-1])
    if as_json:
        print(json.dumps(told, indent=1))
        return
    console.print(page.rich_table(*page.grid(found)))
    say(console, page.ACCURACY)
    if study.sent:
        console.print(page.rich_table(*page.details(study, found)))
        say(console, page.SPREAD)
    for line in (*page.study_verdict(found), *([page.QUICK_NOTE] if quick else [])):
        say(console, line)
    for line in study.known:
        say(console, f"Known difference: {line}")
    say(console, f"Written to {shlex.quote(str(out))}: {', '.join(files)}, and a folder for each run that was made.")
