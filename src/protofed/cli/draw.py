"""The command that draws runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from protofed.errors import UserError, did_you_mean


def draw_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of finished runs.")],
    what: Annotated[
        str,
        typer.Option(
            "--what",
            help="curves, losses, cost, clients, partition, tsne, pca, similarity, embeddings, attention, margins, "
            "sweep or spiral.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The picture, .png or .svg; never an existing file.")],
    window: Annotated[
        int, typer.Option("--window", min=1, help="curves, losses, cost: the moving average over so many rounds.")
    ] = 1,
    client: Annotated[
        Optional[list[int]], typer.Option("--client", help="embeddings, spiral: whose; may be given several times.")
    ] = None,
    by: Annotated[
        Optional[list[str]],
        typer.Option("--by", help="curves, cost, clients: by head, prototype, global, ...; default: head, prototype."),
    ] = None,
) -> None:
    """Draw runs, at the width of a printed column; runs that differ only in their seeds are one curve with a band."""
    from protofed.experiment.folder import must_be_new
    from protofed.pictures.catalogue import PICTURES, Wishes
    from protofed.pictures.style import must_be_a_picture, write_picture

    if what not in PICTURES:
        raise UserError(f'--what: there is no picture "{what}". {did_you_mean(what, PICTURES)}')
    must_be_new(out)
    must_be_a_picture(out)
    wishes = Wishes(window, tuple(client or ()), tuple(by) if by else Wishes().by)
    picture = PICTURES[what].draw([PICTURES[what].load(folder) for folder in folders], wishes)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_picture(picture, out)
    print(f"{what}: {PICTURES[what].about}. Written to {out}.")
