"""The commands that use the models of a finished run: predict, export, join."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from protofed.errors import UserError

RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")]


def predict_command(
    folder: RunFolder,
    source: Annotated[
        Path, typer.Option("--input", show_envvar=False, help="Raw inputs [n, ...], .npy, like those of the data.")
    ],
    client: Annotated[
        Optional[int],
        typer.Option(
            "--client", show_envvar=False, help="Whose model; default: the server's if it has one, else client 0's."
        ),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="head or prototype; fedproto also has prototype_all.")] = "head",
    out: Annotated[
        Optional[Path], typer.Option("--out", help="Where to write the predictions, .npy: one record an input.")
    ] = None,
) -> None:
    """Predict with a model of a finished run.

    The records have the fields `label` and `scores`; by prototype also `distance`, to the nearest prototype, and
    `unknown`: is it farther than that class ever was in training? Without --out they are printed.
    """
    from protofed.experiment.results import Result
    from protofed.models import predict as predictions

    if out:
        predictions.must_be_writable(out)
    result = Result.load(folder)
    found = result.predict(predictions.read_inputs(source), client, by)
    if client is None:
        who = "client 0" if result.state.spokesman() == 0 else "the server"
        print(f"With {who}'s model (--client chooses another).", file=sys.stderr)
    if out:
        predictions.write_predictions(found, out)
        print(f"{predictions.prediction_text(found)} Written to {out}.")
    else:
        print(predictions.prediction_lines(found))


def export_command(
    folder: RunFolder,
    client: Annotated[int, typer.Option("--client", show_envvar=False, help="Whose model.")],
    out: Annotated[
        Optional[Path],
        typer.Option("--out", help="The file, .safetensors or .onnx; default: client-I.safetensors in DIR."),
    ] = None,
) -> None:
    """Write a client's trained model for other software: a safetensors state dict, or ONNX."""
    from protofed.experiment.results import Result
    from protofed.models.export import write_model

    path = out or folder / f"client-{client}.safetensors"
    model = Result.load(folder).state.model(client)
    write_model(model, path)
    print(f"{model.net.name}, {sum(value.numel() for value in model.params.values()):,} numbers. Written to {path}.")


def join_command(
    folder: RunFolder,
    data: Annotated[
        Path,
        typer.Option(
            "--data", show_envvar=False, help="The newcomer's x and y, .npz; x_test and y_test if it has them."
        ),
    ],
    net: Annotated[Optional[str], typer.Option("--net", help="Its net; default: that of the run's client 0.")] = None,
    sets: Annotated[
        Optional[list[str]], typer.Option("--set", metavar="NET.KEY=VALUE", help="An option of --net.")
    ] = None,
    start: Annotated[
        Optional[Path], typer.Option("--start", help="Layers to start from, .safetensors; the others are random.")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", show_envvar=False, min=1, help="How long it trains.")] = 10,
    out: Annotated[
        Optional[Path], typer.Option("--out", help="Where to write its model, .safetensors or .onnx.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let a new client join a finished run: it takes the prototypes of its classes, and fine-tunes.

    Says how good it gets, beside training alone from the same layers for the same steps.
    """
    from protofed.experiment.config import Config
    from protofed.experiment.results import Result
    from protofed.models import join as newcomer
    from protofed.models.export import must_be_exportable, write_model
    from protofed.nets import weights

    if out:
        must_be_exportable(out)
    if strange := [word for word in sets or () if not word.startswith("net.")]:
        raise UserError(f"--set {strange[0]}: only the newcomer's net can be changed, by --set net.key=value.")
    words = [*([f"net.name={net}"] if net else []), *(sets or [])]
    found = newcomer.join_run(
        Result.load(folder),
        *newcomer.read_newcomer(data),
        net=Config.load(None, words).nets[0] if words else None,
        layers=weights.read_weights(start) if start else None,
        epochs=epochs,
    )
    print(json.dumps(found.figures(), indent=2) if as_json else found.told())
    if out:
        write_model(found.model, out)
        print(f"Written to {out}.", file=sys.stderr if as_json else sys.stdout)
