"""The commands that use the models of a finished run: predict, export, join."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

from protofed.cli.arguments import AsJson, RunFolder, option
from protofed.errors import UserError


def predict_command(
    folder: RunFolder,
    source: Annotated[
        Path,
        option(
            "--input",
            help="Raw inputs [n, ...] (.npy), with the shape and scale of the dataset; of tables, rows (.csv, ...).",
        ),
    ],
    client: Annotated[
        Optional[str],
        option(
            "--client",
            help="Number or name of the client. Default: the server's model if it has one, otherwise client 0.",
        ),
    ] = None,
    by: Annotated[str, option("--by", help="head or prototype; fedproto also has prototype_all.")] = "head",
    out: Annotated[
        Optional[Path],
        option("--out", help="File to write the predictions to, one record per input (.npy), or answers (.csv)."),
    ] = None,
    draw: Annotated[
        Optional[Path],
        option("--draw", help="For a net that labels pixels: folder for a mask and an overlay (.png) of each image."),
    ] = None,
) -> None:
    """Predict with a model of a finished run.

    The records have the fields `label` and `scores`, of images with a label per pixel in the shape of the image. By
    prototype they also have `distance`, to the nearest prototype,
    and `unknown`, whether that distance is larger than for any training example of the class. Without --out they are
    printed. Answers (.csv) have the label, a probability per class, and the nearest prototype with its distance.
    """
    from protofed.experiment.results import Result
    from protofed.models import predict as predictions
    from protofed.models.answers import answers, write_answers

    if out:
        predictions.must_be_writable(out)
    result = Result.load(folder)
    inputs = predictions.read_inputs(source)
    model = result.predictor(client)
    predicted = model.predict(inputs, by)
    if client is None:
        owner = "the server" if model.client is None else result.state.members.client_name(model.client)
        print(f"Using the model of {owner}. Use --client for another one.", file=sys.stderr)
    if draw:
        from protofed.pictures.maps import write_overlays

        write_overlays(*predictions.images_and_classes(result.state, inputs, predicted), draw)
        print(f"{len(predicted):,} masks and overlays written to {draw}.")
    if out:
        if out.suffix == ".csv":
            write_answers(answers(model, inputs, by), out)
        else:
            predictions.write_predictions(predicted, out)
        print(f"{predictions.prediction_text(predicted)} Written to {out}.")
    elif not draw:
        print(predictions.prediction_lines(predicted))


def export_command(
    folder: RunFolder,
    client: Annotated[str, option("--client", help="Number or name of the client.")],
    out: Annotated[
        Optional[Path],
        option("--out", help="File to write, .safetensors or .onnx. Default: client-CLIENT.safetensors in DIR."),
    ] = None,
) -> None:
    """Write a client's trained model for other software: a safetensors state dict, or ONNX."""
    from protofed.experiment.results import Result
    from protofed.models.export import write_model

    path = out or folder / f"client-{client}.safetensors"
    model = Result.load(folder).state.model(client)
    write_model(model, path)
    num_params = sum(value.numel() for value in model.params.values())
    print(f"{model.net.name} with {num_params:,} parameters. Written to {path}.")


def join_command(
    folder: RunFolder,
    data: Annotated[
        Path, option("--data", help="Data of the new client (.npz): x and y, optionally x_test and y_test.")
    ],
    net: Annotated[
        Optional[str],
        option(
            "--net", help="Net of the new client. Default: the one of the first client with inputs of the same shape."
        ),
    ] = None,
    sets: Annotated[
        Optional[list[str]], option("--set", metavar="NET.KEY=VALUE", help="Option of the net; may be repeated.")
    ] = None,
    start: Annotated[
        Optional[Path],
        option("--start", help="Layers to start from (.safetensors). The others are initialised at random."),
    ] = None,
    epochs: Annotated[int, option("--epochs", min=1, help="Number of training epochs.")] = 10,
    out: Annotated[Optional[Path], option("--out", help="File to write its model to, .safetensors or .onnx.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let a new client join a finished run: it receives the prototypes of its classes and fine-tunes its model.

    The command reports its accuracy, and that of training alone from the same layers for the same number of steps.
    """
    from protofed.experiment.config import Config
    from protofed.experiment.results import Result
    from protofed.models import join as newcomer
    from protofed.models.export import must_be_exportable, write_model
    from protofed.nets import weights

    if out:
        must_be_exportable(out)
    for setting in sets or ():
        if not setting.startswith("net."):
            raise UserError(f"--set {setting}: only options of the new client's net can be set: --set net.key=value.")
    settings = [*([f"net.name={net}"] if net else []), *(sets or [])]
    joined = newcomer.join_run(
        Result.load(folder),
        *newcomer.read_newcomer(data),
        net=Config.load(None, settings).nets[0] if settings else None,
        layers=weights.read_weights(start) if start else None,
        epochs=epochs,
    )
    print(json.dumps(joined.figures(), indent=2) if as_json else joined.text())
    if out:
        write_model(joined.model, out)
        print(f"Written to {out}.", file=sys.stderr if as_json else sys.stdout)
