"""The command `protofed draw`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from protofed.cli.arguments import option
from protofed.errors import UserError, did_you_mean


def draw_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of finished runs; for sweep, the folder of a sweep.")
    ],
    what: Annotated[
        str,
        option(
            "--what",
            help="curves, losses, cost, clients, partition, tsne, pca, similarity, blocks, embeddings, maps, "
            "attention, margins, bounds, sweep, inputs or spiral.",
        ),
    ],
    out: Annotated[Path, option("--out", help="Picture to write, .png, .svg or .pdf. It must not exist yet.")],
    window: Annotated[
        int, option("--window", min=1, help="For curves, losses, cost: rounds of the moving average.")
    ] = 1,
    client: Annotated[
        Optional[list[int]],
        option("--client", help="For similarity, blocks, embeddings, maps, spiral: a client to show; may be repeated."),
    ] = None,
    class_name: Annotated[
        Optional[list[str]],
        option("--class", help="For embeddings: a class to show; for blocks: a class, two per block. May be repeated."),
    ] = None,
    by: Annotated[
        Optional[list[str]],
        option(
            "--by",
            help="For curves, cost, clients: head, prototype, global, ...; for curves also miou, the server's mIoU, "
            "miou_objects, miou_head, ...; may be repeated. Default: head, prototype.",
        ),
    ] = None,
) -> None:
    """Draw runs as a picture with the width of a printed column.

    In curves, runs that differ only in their seed become one curve with a band.
    """
    from protofed.experiment.folder import must_be_new
    from protofed.pictures.catalogue import PICTURES, DrawOptions
    from protofed.pictures.style import must_be_a_picture, write_picture

    if what not in PICTURES:
        raise UserError(f'--what: there is no picture "{what}". {did_you_mean(what, PICTURES)}')
    must_be_new(out)
    must_be_a_picture(out)
    options = DrawOptions(window, tuple(client or ()), tuple(by) if by else DrawOptions().by, tuple(class_name or ()))
    picture = PICTURES[what].draw([PICTURES[what].load(folder) for folder in folders], options)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_picture(picture, out)
    print(f"{what}: {PICTURES[what].about}. Written to {out}.")
