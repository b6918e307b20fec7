"""The command `protofed reproduce`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from protofed.cli.arguments import AsJson, Format, RayAddress, RunsAtATime, chosen_format, option
from protofed.cli.stopping import advice_if_stopped, same_command_continues
from protofed.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console


def reproduce_command(
    name: Annotated[
        Optional[str], typer.Argument(help="Name of a table or figure from --list, e.g. fedproto-table1.")
    ] = None,
    quick: Annotated[bool, option("--quick", help="Run a smaller version that takes minutes.")] = False,
    seeds: Annotated[
        Optional[int],
        option(
            "--seeds",
            min=1,
            help="Number of seeds: 0, 1, ... Each study has its own default, and may have cells with one seed.",
        ),
    ] = None,
    out: Annotated[
        Path, option("--out", help="Folder for the runs and the tables. Finished runs in it are reused.")
    ] = Path("runs/reproduce"),
    kept: Annotated[
        Optional[Path],
        option(
            "--kept",
            help="JSON written by an earlier reproduce; cells found there are reused with all their seeds, only "
            "missing ones are run.",
        ),
    ] = None,
    finished: Annotated[
        bool, option("--finished", help="Make no runs: show what is finished, and say which cells are missing.")
    ] = False,
    only: Annotated[
        Optional[list[str]],
        option("--only", help='Run only cells whose "ROW, COLUMN" has this form, e.g. "fedavg, *"; can be repeated.'),
    ] = None,
    listed: Annotated[bool, option("--list", help="List every table, figure and theorem of the four papers.")] = False,
    jobs: RunsAtATime = None,
    ray: RayAddress = "",
    format: Format = "text",
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of the papers, several runs at a time, and show it next to the published numbers.

    To continue after an interruption, run the same command again. With --finished --kept NAME.json, which comes with
    protofed, a table is shown at once, as far as it was computed before.
    """
    from protofed.cli.printing import wide_console
    from protofed.studies.reproduce.papers import ENTRIES
    from protofed.studies.reproduce.partition_table import PARTITION_TABLE
    from protofed.studies.reproduce.studies import STUDIES

    format = chosen_format(format, as_json)
    console = wide_console(stderr=format != "text")
    if listed or name is None:
        _show_list(format)
        return
    if name == PARTITION_TABLE:
        _show_partitions(out, format, console)
        return
    if name not in STUDIES:
        entry = next((entry for entry in ENTRIES if entry.name == name), None)
        if entry:
            raise UserError(f"`protofed reproduce` has no runs for {name}. --list says: {entry.state}: {entry.how}.")
        raise UserError(f'There is no study "{name}". {did_you_mean(name, [entry.name for entry in ENTRIES])}')
    seeds = seeds or (STUDIES[name].quick_seeds if quick else STUDIES[name].seeds)
    _run_study(name, quick, seeds, out, kept, finished, only or [], jobs, ray, format, console)


def _show_list(format: str) -> None:
    """Print every table and figure with its state."""
    from protofed.experiment.table import ResultTable
    from protofed.studies.reproduce.papers import ENTRIES

    if format == "json":
        print(json.dumps([entry._asdict() for entry in ENTRIES], indent=2))
        return
    if format != "text":
        heads = list(ENTRIES[0]._fields)
        print(ResultTable(heads, [list(entry) for entry in ENTRIES], labels=len(heads)).render(format))
        return
    width = max(len(entry.name) for entry in ENTRIES)
    for paper in dict.fromkeys(entry.paper for entry in ENTRIES):
        print(f"{paper}:")
        for entry in ENTRIES:
            if entry.paper == paper:
                print(f"  {entry.name:<{width}}  {entry.shows}\n  {'':<{width}}    {entry.state}: {entry.how}")


def _show_partitions(out: Path, format: str, console: Console) -> None:
    """Write and show the statistics of partitions, which need no runs; --quick and --seeds change nothing."""
    from protofed.cli.printing import say, show_table
    from protofed.experiment.folder import write_atomically
    from protofed.studies.reproduce import page, partition_table

    name, rows = partition_table.PARTITION_TABLE, partition_table.partition_rows()
    heads, lines = partition_table.partition_table(rows)
    parts = [f"# {partition_table.PARTITION_TITLE}", partition_table.PARTITION_NOTE, page.markdown_table(heads, lines)]
    content = {"name": name, "title": partition_table.PARTITION_TITLE, "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{name}.md", ("\n\n".join(parts) + "\n").encode())
    write_atomically(out / f"{name}.json", json.dumps(content, indent=1).encode())
    if format != "text":
        table = page.screen_table(heads, lines)
        print(json.dumps(content, indent=1) if format == "json" else table.render(format))
        return
    show_table(console, page.screen_table(heads, lines), break_heads=False)
    for line in (partition_table.PARTITION_NOTE, f"Written to {shlex.quote(str(out))}: {name}.md, {name}.json."):
        say(console, line)


def _run_study(
    name: str,
    quick: bool,
    seeds: int,
    out: Path,
    kept: Path | None,
    finished: bool,
    only: list[str],
    asked: int | None,
    ray: str,
    format: str,
    console: Console,
) -> None:
    """Do the missing runs (not if only what is `finished` is wanted), then write and show the results."""
    from protofed.cli.printing import say, show_table
    from protofed.cli.progress import RunProgress
    from protofed.experiment.folder import write_atomically
    from protofed.experiment.recipes import kept_file
    from protofed.experiment.wording import quantity
    from protofed.pictures.style import write_picture
    from protofed.studies import sweep
    from protofed.studies.ray_runs import Cluster
    from protofed.studies.reproduce import page
    from protofed.studies.reproduce.figures import figures_of_run, is_finished
    from protofed.studies.reproduce.measured import measure_checkpoints
    from protofed.studies.reproduce.studies import STUDIES
    from protofed.studies.reproduce.study import CellResult, read_kept, study_as_json
    from protofed.studies.side_by_side import call_all, runs_at_a_time

    study = STUDIES[name]
    kept_figures = read_kept(kept_file(kept), study, quick) if kept else {}
    jobs = study.jobs(out, seeds, quick, kept_figures, only)
    if not finished:
        sweep.require_data(jobs, " Or show the kept figures alone: add --finished." if kept else "")
    say(console, f"{study.title}{', quick version' if quick else ''}:")
    if kept:
        number = sum(not (job.out / "result.json").exists() for job in jobs)
        missing = f" {quantity(number, 'run')} to do; to show the kept figures alone, add --finished."
        say(console, f"{len(kept_figures)} figures are taken from {kept}.{missing if number and not finished else ''}")
    at_a_time, cluster = runs_at_a_time(asked, ray), Cluster(ray, out) if ray else None
    if not finished:
        with advice_if_stopped(same_command_continues):
            with RunProgress(console, jobs, at_a_time) as progress:
                sweep.run_all(jobs, progress.run_ended, at_a_time, progress.tick, cluster)
            if study.central:
                say(console, "Measuring the runs ...")
                pairs = [(job.out, study.central.out(out, job.seed, study.changes(quick))) for job in jobs]
                call_all(measure_checkpoints, pairs, [str(job.out) for job in jobs], at_a_time, cluster=cluster)
    results = []
    for cell in study.chosen(quick):
        figures = {seed: run for (kept_cell, seed), run in kept_figures.items() if kept_cell == cell}
        for seed in set(range(cell.num_seeds(seeds))) - set(figures):
            folder = cell.out(out, seed, study.changes(quick))
            if is_finished(cell.figure, folder):
                sweep.check_stored_run(folder, cell.job(out, seed, study.changes(quick)).config)
                figures[seed] = figures_of_run(cell.figure, folder, study.also)
        results.append(CellResult(cell, dict(sorted(figures.items()))))
    if not any(result.runs for result in results):
        raise UserError(f"No run of {name} is finished in {out}. Leave --finished out, or give the --out of the runs.")
    content, stem = study_as_json(study, results, quick), f"{name}{'-quick' if quick else ''}"
    files = [f"{stem}.md", f"{stem}.json"]
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / files[0], page.markdown_page(study, results, quick, seeds).encode())
    write_atomically(out / files[1], json.dumps(content, indent=1).encode())
    if study.picture and not (finished or only or kept):
        files.append(f"{stem}.png")
        write_picture(study.picture(study.drawn_jobs(out, seeds, quick)), out / files[-1])
    elif study.picture and kept and not (finished or only):
        say(console, "The picture is not drawn: it needs all runs, not only their kept figures. Leave --kept out.")
    if format != "text":
        print(json.dumps(content, indent=1) if format == "json" else page.study_table(study, results).render(format))
        return
    for group in page.three_columns_each(results):
        show_table(console, page.screen_table(*page.accuracy_table(group)), break_heads=False)
    for line in (study.note or page.ACCURACY_NOTE, *page.unfinished_note(results, seeds)):
        say(console, line)
    if study.pairs:
        for group in page.three_columns_each(results):
            show_table(console, page.screen_table(*page.differences_table(study, group)), break_heads=False)
        say(console, page.DIFFERENCES_NOTE)
    if study.also:
        for group in page.three_columns_each(results):
            show_table(console, page.screen_table(*page.also_table(study, group)), break_heads=False)
        say(console, page.ALSO_NOTE)
    for extra in study.extra(results) if study.extra else ():
        show_table(console, page.screen_table(extra.heads, extra.lines), break_heads=False)
        say(console, extra.note)
    if study.sent:
        for table in page.details_tables(study, results):
            show_table(console, page.screen_table(*table), break_heads=False)
        say(console, page.DETAILS_NOTE)
    for line in [page.QUICK_NOTE] if quick else page.study_verdict(results):
        say(console, line)
    for line in study.differences:
        say(console, f"Known difference: {line}")
    say(console, f"Written to {shlex.quote(str(out))}: {', '.join(files)}, and a folder for each new run.")
