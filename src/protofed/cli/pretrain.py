"""The command that makes an encoder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from protofed.errors import UserError


def pretrain_command(
    data: Annotated[
        list[str],
        typer.Option("--data", show_envvar=False, metavar="NAME", help="A dataset of images; several: again."),
    ],
    out: Annotated[Path, typer.Option("--out", show_envvar=False, help="The file to write, .safetensors.")],
    net: Annotated[str, typer.Option("--net", help="Which net; resnet18 has group norm unless told.")] = "resnet18",
    sets: Annotated[
        Optional[list[str]],
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="An option of [net] or [train], e.g. net.stem=imagenet."
        ),
    ] = None,
    size: Annotated[int, typer.Option("--size", min=1, help="All images are brought to size x size.")] = 32,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="How often every image is seen.")] = 20,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images in a batch.")] = 64,
    lr: Annotated[float, typer.Option("--lr", help="The first learning rate; it falls along a cosine.")] = 0.01,
    seed: Annotated[int, typer.Option("--seed", min=0, help="All randomness comes from it.")] = 0,
    threads: Annotated[
        int, typer.Option("--threads", min=0, help="0: one a core. The last bits of the result depend on it.")
    ] = 0,
    root: Annotated[str, typer.Option("--root", help="Where the data files are; default: $PROTOFED_DATA.")] = "",
) -> None:
    """Train an encoder centrally on datasets of images, and write it for `data.encoder`.

    SGD with momentum 0.9 and weight decay 0.0005; images are cropped and flipped. Their classes are put side by side.
    """
    from rich.console import Console

    from protofed.cli.screen import say
    from protofed.engines.threads import cores
    from protofed.experiment.config import Config
    from protofed.experiment.options import toml_value
    from protofed.models.pretrain import load, must_be_encoder, train_encoder

    must_be_encoder(out)
    for word in sets or ():
        place = word.partition("=")[0].strip()
        if place == "net.name":
            raise UserError(f"--set {word}: the net is chosen by --net.")
        if place.partition(".")[0] not in ("net", "train"):
            raise UserError(
                f"--set {word}: only [net] and [train] can be changed, by net.key=value or train.key=value."
            )
    words = [
        f"net.name={net}",
        *(["net.norm=group"] if net == "resnet18" else []),
        f"run.seed={seed}",
        f"train.epochs={epochs}",
        f"train.batch={batch}",
        f"train.lr={lr}",
        "train.momentum=0.9",
        "train.weight_decay=5e-4",
        "train.augment=['crop', 'flip']",
        *(sets or []),
    ]
    config = Config.load(None, words)
    datasets = load(data, root, size)
    console = Console()
    try:
        made = train_encoder(config, datasets, threads or cores(), lambda text: say(console, text))
    except KeyboardInterrupt:
        print("\nInterrupted. Nothing was written.", file=sys.stderr)
        raise typer.Exit(130) from None
    size = made.write(out)
    say(console, made.told())
    say(console, f"Written to {out}, {size / 1e6:.1f} MB. In an experiment:\ndata.encoder = {toml_value(str(out))}")
