"""The commands that use the models of a finished run: predict, export, join."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from protofed.cli.arguments import AsJson, RunFolder, TrustCode, option
from protofed.errors import UserError

if TYPE_CHECKING:
    from protofed.experiment.model import Model


def _is_deployed_client(folder: Path, client: str | None) -> bool:
    """Whether a folder is that of a client of a deployed federation, which has one model, and not a run folder."""
    if not (folder / "client.toml").exists():
        return False
    if client is not None:
        raise UserError(f"--client {client}: {folder} is the folder of one client. Leave the option out.")
    return True


def _deployed_model(folder: Path) -> Model:
    """The model of a client of a deployed federation."""
    from protofed.engines.flower.installed import require_flower

    require_flower()
    from protofed.deploy.client_work import ClientWork
    from protofed.models.predict import with_missing_texts

    work = ClientWork(folder)
    return with_missing_texts(work.model(), work.config)


def predict_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of a finished run, or a model (.safetensors) of join or export."),
    ],
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
    trust_code: TrustCode = False,
) -> None:
    """Predict with a model of a finished run, or with that of a deployed client: DIR is then the client's folder.

    The records have the fields `label` and `scores`, of images with a label per pixel in the shape of the image. By
    prototype they also have `distance`, to the nearest prototype. A client's records also have `unknown`: whether the
    input is unlike the classes that the client trains on (docs/own-data.md). Without --out they are
    printed without the scores. Answers (.csv) have the label, a probability per class, and the nearest prototype with
    its distance.
    """
    from protofed.experiment.results import Result
    from protofed.models import predict as predictions
    from protofed.models.answers import answers, write_answers
    from protofed.models.input_scale import scale_caution, table_cautions
    from protofed.models.model_files import read_model

    if out:
        predictions.must_be_writable(out)
    if folder.is_file() or _is_deployed_client(folder, client):
        if client is not None or draw:
            raise UserError(f"{folder} has one model. --client and --draw need a run folder.")
        model = read_model(folder) if folder.is_file() else _deployed_model(folder)
        inputs = predictions.read_inputs(source, model)
        predicted = model.predict(inputs, by)
    else:
        result = Result.load(folder)
        model = predictions.with_missing_texts(result.predictor(client), result.state.config)
        inputs = predictions.read_inputs(source, model)
        predicted = model.predict(inputs, by)
        if client is None:
            owner = "the server" if model.client is None else result.state.members.client_name(model.client)
            print(f"Using the model of {owner}. Use --client for another one.", file=sys.stderr)
        if draw:
            from protofed.pictures.maps import write_overlays

            write_overlays(*predictions.images_and_classes(result.state, inputs, predicted), draw)
            print(f"{len(predicted):,} masks and overlays written to {draw}.")
    if model.recipe:
        cautions = table_cautions(model.recipe, inputs)
    else:
        cautions = [scale_caution(model.data, model.raw_inputs(inputs))]
    for caution in filter(None, cautions):
        print(caution, file=sys.stderr)
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
    client: Annotated[
        Optional[str],
        option("--client", help="Number or name of the client; not if DIR is the folder of a deployed client."),
    ] = None,
    out: Annotated[
        Optional[Path],
        option("--out", help="File to write, .safetensors or .onnx. Default: client-CLIENT.safetensors in DIR."),
    ] = None,
    prototypes: Annotated[
        Optional[Path],
        option(
            "--prototypes",
            metavar="FILE.safetensors",
            help="Instead of a client's model, write what a new client needs to join: what the server would send it.",
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write a client's trained model for other software: a safetensors state dict, or ONNX.

    With --prototypes, write what the server would send to a new client: `protofed join FILE.safetensors` needs nothing
    else of the run, and no other client's model. DIR may also be the folder of a deployed client, without --client.
    """
    from protofed.experiment.results import Result
    from protofed.messages import message_size
    from protofed.models.export import has_scores_of_net, write_model
    from protofed.models.invitation import Invitation, write_invitation
    from protofed.models.predict import with_missing_texts

    if deployed := _is_deployed_client(folder, client):
        model = _deployed_model(folder)
    elif (client is None) == (prototypes is None) or (prototypes and out):
        raise UserError("Give either --client, to export its model, or --prototypes FILE.safetensors alone.")
    elif prototypes:
        invitation = Invitation.of(Result.load(folder))
        write_invitation(invitation, prototypes)
        print(
            f"{message_size(invitation.message).params:,} numbers for a new client, which needs {invitation.needs()}. "
            f"Written to {prototypes}."
        )
        return
    else:
        assert client is not None
        result = Result.load(folder)
        model = with_missing_texts(result.predictor(client), result.state.config)
    path = out or folder / f"client-{model.client if deployed else client}.safetensors"
    write_model(model, path)
    num_params = sum(value.numel() for value in model.params.values())
    print(f"{model.net.name} with {num_params:,} parameters. Written to {path}.")
    if not has_scores_of_net(model):
        print(
            "Careful: the method does not predict with the scores of the net alone, so probabilities from this file "
            "differ from those of the run. It has no temperature, and no rule for unknown inputs by scores."
        )


def join_command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of a finished run, or the file that `protofed export --prototypes` wrote."
        ),
    ],
    data: Annotated[
        Path,
        option(
            "--data",
            help="Data of the new client: x and y, optionally x_test and y_test (.npz), or a table (.csv, ...).",
        ),
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
    new_classes: Annotated[
        bool,
        option("--new-classes", help="Accept classes that the run does not know: this client alone learns them."),
    ] = False,
    client: Annotated[
        Optional[str], option("--client", help="Name of the new client. Default: that of --data.")
    ] = None,
    out: Annotated[Optional[Path], option("--out", help="File to write its model to, .safetensors or .onnx.")] = None,
    as_json: AsJson = False,
    trust_code: TrustCode = False,
) -> None:
    """Let a new client join a finished run: it receives the prototypes of its classes and fine-tunes its model.

    The command reports its accuracy, and that of training alone from the same layers for the same number of steps.
    """
    from protofed.experiment.config import Config
    from protofed.experiment.results import Result
    from protofed.models.export import must_be_exportable
    from protofed.models.invitation import Invitation, read_invitation
    from protofed.models.join import join
    from protofed.models.model_files import write_newcomer
    from protofed.models.newcomer_data import read_newcomer
    from protofed.nets import weights

    if out:
        must_be_exportable(out)
    for setting in sets or ():
        if not setting.startswith("net."):
            raise UserError(f"--set {setting}: only options of the new client's net can be set: --set net.key=value.")
    settings = [*([f"net.name={net}"] if net else []), *(sets or [])]
    invitation = read_invitation(folder) if folder.is_file() else Invitation.of(Result.load(folder))
    joined = join(
        invitation,
        *read_newcomer(data, invitation),
        net=Config.load(None, settings).nets[0] if settings else None,
        layers=weights.read_weights(start) if start else None,
        epochs=epochs,
        new_classes=new_classes,
        name=client or data.name,
    )
    print(json.dumps(joined.figures(), indent=2) if as_json else joined.text())
    if out:
        write_newcomer(joined, out)
        print(f"Written to {out}.", file=sys.stderr if as_json else sys.stdout)
