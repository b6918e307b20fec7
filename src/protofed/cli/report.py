"""The commands `protofed report` and `protofed watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.arguments import option

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", help="Run folders, finished or not, or the folder of a sweep."),
]


def report_command(
    folders: Runs,
    out: Annotated[Path, option("--out", help="Page to write. It must not exist yet, unless --force is given.")] = Path(
        "report.html"
    ),
    force: Annotated[bool, option("--force", help="Overwrite the page.")] = False,
) -> None:
    """Write one HTML page about runs: verdict, curves, clients, prototypes, cost. It needs no network."""
    from protofed.errors import UserError
    from protofed.experiment.folder import must_be_new, write_atomically
    from protofed.experiment.stored import load_runs
    from protofed.report.content import gather
    from protofed.report.page import html_page

    if out.suffix not in (".html", ".htm"):
        raise UserError(f"--out: got {out.name}; its name must end in .html.")
    if not force:
        must_be_new(out, replaceable=True)
    runs = load_runs(folders)
    content = gather(runs)
    page = html_page(content).encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page)
    for sentence in content["verdict"]:
        print(sentence)
    print(f"Report of {len(runs)} run{'s' if len(runs) > 1 else ''} written to {out} ({len(page) / 1e6:.1f} MB).")


def watch_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run that is going on.")],
    port: Annotated[int, option("--port", min=0, max=65535, help="Port of the page. Default: a free one.")] = 0,
) -> None:
    """Show a run in the browser while it goes on. The page is served on this machine only."""
    from protofed.errors import UserError
    from protofed.experiment.folder import Folder
    from protofed.report.live import LivePage

    if not Folder.existing(folder).is_in_use():
        raise UserError(f"No run is going on in {folder}. Write its report instead: protofed report {folder}")
    page = LivePage([folder], port)
    print(f"Watch it at {page.address}", flush=True)
    print("The page ends with the run. Ctrl-C ends the page only.", flush=True)
    try:
        page.wait()
        print("The run has ended.")
    except KeyboardInterrupt:
        page.close()
