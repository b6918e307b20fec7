"""The command `protofed draw`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Optional

import typer

from protofed.cli.arguments import TrustCode, option
from protofed.errors import UserError


def draw_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of sweeps for all their runs.")
    ],
    what: Annotated[
        str,
        option(
            "--what",
            help="curves, losses, cost, clients, partition, tsne, pca, similarity, blocks, embeddings, maps, "
            "attention, margins, bounds, sweep, inputs or spiral.",
        ),
    ],
    out: Annotated[Optional[Path], option("--out", help="Picture to write: .pdf, .svg or .png.")] = None,
    animation: Annotated[
        Optional[Path],
        option("--animate", help="For embeddings, instead of --out: the prototypes over rounds, .gif or .mp4."),
    ] = None,
    force: Annotated[bool, option("--force", help="Replace the picture if it exists.")] = False,
    width: Annotated[Optional[float], option("--width", help="Width in inches. Default: about 3.4, a column.")] = None,
    height: Annotated[Optional[float], option("--height", help="Height in inches.")] = None,
    title: Annotated[Optional[str], option("--title", help='Another title; "" for none.')] = None,
    label: Annotated[
        Optional[list[str]],
        option("--label", metavar="NAME=TEXT", help="Another name in the legend; may be repeated."),
    ] = None,
    ylim: Annotated[
        Optional[str], option("--ylim", metavar="LOW,HIGH", help="Limits of the y axis, as in --ylim=60,100.")
    ] = None,
    window: Annotated[
        int, option("--window", min=1, help="For curves, losses, cost: rounds of the moving average.")
    ] = 1,
    client: Annotated[
        Optional[list[str]],
        option(
            "--client",
            help="For similarity, blocks, embeddings, maps, spiral: number or name of a client; may be repeated.",
        ),
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
            "miou_objects, miou_head, ...; for several, repeat --by or use commas. Default: head, prototype.",
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Draw runs as a picture with the width of a printed column, for papers: fonts are embedded as TrueType.

    In curves, runs that differ only in their seed become one curve with a band. A method has the same colour and mark
    in every picture. A run that is still going on is drawn up to its last round.
    """
    from protofed.pictures.catalogue import PICTURES
    from protofed.pictures.drawing import draw

    if animation:
        _animate(folders, what, animation, force)
        return
    if out is None:
        raise UserError("--out: missing. Give the picture to write, for example --out curves.pdf.")

    ways = [way.strip() for text in by or () for way in text.split(",") if way.strip()]
    draw(
        what,
        *folders,
        out=out,
        force=force,
        window=window,
        clients=client or (),
        classes=class_name or (),
        width=width,
        height=height,
        title=title,
        labels=_line_labels(label or ()),
        ylim=_limits(ylim) if ylim else None,
        **({"by": ways} if ways else {}),
    )
    print(f"{what}: {PICTURES[what].about}. Written to {out}.")


def _animate(folders: Sequence[Path], what: str, out: Path, force: bool) -> None:
    """Write the prototypes of one run as they move."""
    from protofed.experiment.stored import StoredRun
    from protofed.pictures.animation import animate

    if what != "embeddings" or len(folders) != 1:
        raise UserError("--animate shows the embeddings of one run: give one folder and --what embeddings.")
    frames = animate(StoredRun.load(folders[0]), out, force)
    print(f"The prototypes after {frames} rounds. Written to {out}.")


def _line_labels(words: Sequence[str]) -> dict[str, str]:
    """The names and their replacements in NAME=TEXT words. A name may have = signs, too: the last one counts."""
    for word in words:
        if "=" not in word:
            raise UserError(f"--label {word}: must look like NAME=TEXT, for example --label fedproto=FedProto.")
    return {name: text for name, _, text in (word.rpartition("=") for word in words)}


def _limits(text: str) -> tuple[float, float]:
    """The two numbers of LOW,HIGH."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise UserError(f"--ylim: got {text}; must be two numbers, for example --ylim=60,100.") from None
    return low, high
