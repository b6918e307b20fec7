"""The command `protofed pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

from protofed.cli.arguments import Root, option
from protofed.cli.stopping import advice_if_stopped
from protofed.errors import UserError


def pretrain_command(
    data: Annotated[list[str], option("--data", metavar="NAME", help="Dataset of images; may be repeated.")],
    out: Annotated[Path, option("--out", help="File to write (.safetensors).")],
    net: Annotated[str, option("--net", help="Name of the net. resnet18 has group norm by default here.")] = "resnet18",
    sets: Annotated[
        Optional[list[str]],
        option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Option of [net] or [train], e.g. net.stem=imagenet; may be repeated.",
        ),
    ] = None,
    size: Annotated[int, option("--size", min=1, help="All images are resized to size x size pixels.")] = 32,
    epochs: Annotated[int, option("--epochs", min=1, help="Number of epochs.")] = 20,
    batch: Annotated[int, option("--batch", min=1, help="Images per batch.")] = 64,
    lr: Annotated[float, option("--lr", help="Initial learning rate; it falls along a cosine.")] = 0.01,
    seed: Annotated[int, option("--seed", min=0, help="Seed of all random numbers.")] = 0,
    threads: Annotated[
        int, option("--threads", min=0, help="Number of threads; 0: one per core. It affects the last bits.")
    ] = 0,
    root: Root = "",
) -> None:
    """Train an encoder centrally on datasets of images, and write it for `data.encoder`.

    It is trained by SGD with momentum 0.9 and weight decay 0.0005 on randomly cropped and flipped images. Its classes
    are those of all datasets together.
    """
    from rich.console import Console

    from protofed.cli.printing import say
    from protofed.engines.threads import cores
    from protofed.experiment.config import Config
    from protofed.experiment.options import toml_value
    from protofed.models.pretrain import load_datasets, must_be_encoder, train_encoder

    must_be_encoder(out)
    for setting in sets or ():
        key = setting.partition("=")[0].strip()
        if key == "net.name":
            raise UserError(f"--set {setting}: choose the net with --net.")
        if key.partition(".")[0] not in ("net", "train"):
            raise UserError(
                f"--set {setting}: only options of [net] and [train] can be set: net.key=value or train.key=value."
            )
    settings = [
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
    config = Config.load(None, settings)
    datasets = load_datasets(data, root, size)
    console = Console()
    with advice_if_stopped(lambda: "Nothing was written."):
        encoder = train_encoder(config, datasets, threads or cores(), lambda text: say(console, text))
    num_bytes = encoder.write(out)
    say(console, encoder.text())
    say(
        console, f"Written to {out}, {num_bytes / 1e6:.1f} MB. In an experiment:\ndata.encoder = {toml_value(str(out))}"
    )
