"""Files with one model that `protofed predict` reads: what `join` writes, and what `export` writes (by head alone).

A newcomer's file has the state dict of its module, as an exported one, and in tensors whose names begin with
"protofed/" what its method predicts with: the server's message, and what the client keeps.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from protofed import __version__
from protofed.data.table.recipe import Recipe
from protofed.engines.scoring import client_scores
from protofed.errors import ConfigError, UserError
from protofed.examples import Examples
from protofed.experiment.config import Config
from protofed.experiment.folder import write_atomically
from protofed.experiment.model import Model
from protofed.experiment.unknown import UnknownRule
from protofed.messages import flatten, group_by_first_name, unflatten
from protofed.models.damaged_files import read_safetensors, understood_metadata
from protofed.models.export import as_safetensors, must_be_exportable, write_model
from protofed.nets import NETS, make_net
from protofed.params import Params
from protofed.trust.known_code import UnknownCodeError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from protofed.core import Net, Scores
    from protofed.models.join import Newcomer

_PREFIX = "protofed/"
_NEWCOMER = "newcomer"


def write_newcomer(newcomer: Newcomer, path: Path) -> None:
    """Write a newcomer's model to a file: .safetensors, which `predict` reads, or .onnx."""
    must_be_exportable(path)
    if path.suffix == ".onnx":
        write_model(newcomer.model, path)
        return
    model, state = newcomer.model, newcomer.state
    model.must_be_finite()
    weights = model.net.loaded(model.params).state_dict()
    same: dict[str, str] = {}  # tensors that are equal to one of the weights are written once
    tensors: dict[str, Tensor] = {}
    for name, value in flatten({"params": state.params, "down": state.down, "kept": state.kept}).items():
        equal = weights.get(name.rpartition("/")[2])
        if equal is not None and equal.dtype == value.dtype and torch.equal(equal, value):
            same[name] = name.rpartition("/")[2]
        else:
            tensors[_PREFIX + name] = value.clone()
    experiment = state.config.table()
    about = {
        "experiment": {key: experiment[key] for key in ("method", "train", "net")},
        "labels": list(model.labels),
        "same": same,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, as_safetensors(model, {_NEWCOMER: json.dumps(about)}, tensors))


def read_model(path: Path) -> Model:
    """The model in a file that `join` or `export` wrote."""
    advice = "Give a run folder, or a .safetensors file that `protofed join` or `protofed export` wrote."
    tensors, metadata = read_safetensors(path, advice)
    if not {"source", "labels", "input"} <= metadata.keys():
        raise UserError(f"{path} does not say what its model is: it is another file. {advice}")
    with understood_metadata(path, advice):
        return _model_from(metadata, tensors, path)


def _model_from(metadata: dict[str, str], tensors: dict[str, Tensor], path: Path) -> Model:
    """The model from the metadata and the tensors of its file."""
    about = json.loads(metadata.get(_NEWCOMER, "{}"))
    labels = tuple(about.get("labels") or json.loads(metadata["labels"]))
    data = Examples.empty(**json.loads(metadata["input"]))
    net = _net_of(path, metadata, data.shape, len(labels))
    weights: Params = {name: value for name, value in tensors.items() if not name.startswith(_PREFIX)}
    net.check(weights)
    recipe = Recipe.of_json(json.loads(metadata["recipe"])) if "recipe" in metadata else None
    temperatures = json.loads(metadata.get("temperatures", "{}"))
    unknown = UnknownRule.from_json(json.loads(metadata["unknown"]), len(labels)) if "unknown" in metadata else None
    if not about:

        def by_head(x: Tensor) -> Scores:
            return {"head": net(weights, x)[1]}

        return Model(None, net, weights, by_head, data, labels, unknown, recipe, temperatures)
    state = {name.removeprefix(_PREFIX): value for name, value in tensors.items() if name.startswith(_PREFIX)}
    parts = group_by_first_name(state | {name: weights[equal] for name, equal in about["same"].items()})
    method = Config.of(about["experiment"], named_by=path).method
    types, params = method.types(), parts.get("params", {})
    down, kept = (unflatten(types[key], parts.get(key, {})) for key in ("down", "kept"))
    compute_scores = client_scores(method, net, params, down, kept)
    return Model(None, net, weights, compute_scores, data, labels, unknown, recipe, temperatures)


def _net_of(path: Path, metadata: dict[str, str], shape: tuple[int, ...], classes: int) -> Net:
    """The net of a model, built again from its options; an error if the file does not have what it takes.

    The file has the options of a design, but of a module only its text.
    """
    name = metadata.get("net", "?")
    try:
        source: dict[str, Any] = json.loads(metadata["source"])
    except ValueError as problem:
        raise UserError(
            f"{path}: its net, {name}, is a module from outside protofed, which is not in the file, so the file cannot "
            "predict without it. Load its tensors into your module, or use the run folder."
        ) from problem
    try:
        choice = Config.of({"net": source}, named_by=path).nets[0]
    except UnknownCodeError:
        raise
    except ConfigError as invalid:
        advice = "If the net is your own, use the run folder, or load its tensors into your module."
        if source.get("name") in NETS:
            advice = "Use the version that wrote it."
        raise UserError(
            f"{path}: its net, {name}, cannot be built again: {' '.join(invalid.problems).rstrip('.')}. The file was "
            f"written by protofed {metadata.get('protofed', '?')}, this is {__version__}. {advice}"
        ) from invalid
    return make_net(choice.name, choice.design, shape, classes)
