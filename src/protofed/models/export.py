"""A client's model as a file for other software: safetensors, or ONNX if the extra `protofed[onnx]` is installed."""

from __future__ import annotations

import json
import logging
import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save
from torch import Tensor, nn

from protofed import __version__
from protofed.errors import UserError
from protofed.experiment.folder import must_be_new, write_atomically
from protofed.nets.own import JointNet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from protofed.examples import Examples
    from protofed.experiment.model import Model


def write_model(model: Model, path: Path) -> None:
    """Write the model to a .safetensors or .onnx file, depending on the ending of the name.

    Temperatures and rules that were fitted to other scores than those of the net are left out.
    """
    must_be_exportable(path)
    model.must_be_finite()
    model.must_be_one_net()
    model = model if has_scores_of_net(model) else _without_fitted_to_scores(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".onnx":
        write_atomically(path, _as_onnx(model))
    else:
        write_atomically(path, as_safetensors(model))


def must_be_exportable(path: Path) -> None:
    """It is an error if the file exists already, or if its name ends neither in .safetensors nor in .onnx."""
    must_be_new(path)
    if path.suffix not in (".safetensors", ".onnx"):
        raise UserError(f"--out: got {path.name}; its name must end in .safetensors or .onnx.")


def has_scores_of_net(model: Model) -> bool:
    """Whether the model's scores by head are those of its net alone. FedNH's are scaled cosines instead."""
    x = torch.randn(2, *model.data.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        scores, logits = model.compute_scores(x).get("head"), model.net(model.params, x)[1]
    if scores is None:
        return False
    lowest = -1e30  # of classes that are never predicted, some scores are -inf
    return torch.allclose(scores.clamp(min=lowest), logits.clamp(min=lowest), rtol=1e-3, atol=1e-3)


def _without_fitted_to_scores(model: Model) -> Model:
    """The model without temperatures, and without a rule for unknown inputs that depends on scores."""
    is_by_distance = model.unknown is not None and model.unknown.rule == "prototype"
    return replace(model, temperatures={}, unknown=model.unknown if is_by_distance else None)


def as_safetensors(
    model: Model, more_metadata: Mapping[str, str] | None = None, more_tensors: Mapping[str, Tensor] | None = None
) -> bytes:
    """The state dict of the module that `Result.model(i)` returns, with metadata about its net, labels and inputs.

    The same model always gives the same bytes.
    """
    state = {**model.net.loaded(model.params).state_dict(), **(more_tensors or {})}
    metadata = {**model_metadata(model), **(more_metadata or {})}
    return with_sorted_metadata(save({name: value.contiguous() for name, value in state.items()}, metadata))


def model_metadata(model: Model) -> dict[str, str]:
    """What a file with a model says: its net, classes, inputs and rule for unknown inputs; of tables, the recipe."""
    metadata = {
        "net": model.net.name,
        "source": model.net.source,
        "labels": json.dumps([model.labels[label] for label in model.net.outputs] or model.labels),
        "input": json.dumps(model.data.input),
        "protofed": __version__,
    }
    if model.recipe:
        metadata["recipe"] = json.dumps(model.recipe.json())
    if model.unknown:
        metadata["unknown"] = json.dumps(model.unknown.of_outputs(model.net.outputs).as_json())
    if model.temperatures:
        metadata["temperatures"] = json.dumps(dict(model.temperatures))
    return metadata


def with_sorted_metadata(content: bytes) -> bytes:
    """The same safetensors content with sorted metadata. The library writes them in a different order every time."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def _as_onnx(model: Model) -> bytes:
    """A graph from raw inputs [n, ...] to `embedding` [n, dim] and `logits` [n, classes]; of pixels, both are maps."""
    try:
        import onnx.helper
        import onnxscript  # noqa: F401
    except ImportError as problem:
        package = (problem.name or "onnx").partition(".")[0]
        raise UserError(
            f"ONNX needs the package {package}. Run pip install 'protofed[onnx]', or export to .safetensors."
        ) from problem
    inputs = torch.zeros(2, *model.data.shape)
    with warnings.catch_warnings(), _only_errors("torch.onnx"):  # deprecations inside torch, torchvision missing
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            FromRaw(model).eval(),
            (inputs,),
            input_names=["input"],
            output_names=["embedding", "logits"],
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("n")},),
            verbose=False,
        )
    assert program is not None
    content = program.model_proto
    onnx.helper.set_model_props(content, model_metadata(model))
    return bytes(content.SerializeToString())


@contextmanager
def _only_errors(name: str) -> Iterator[None]:
    """Within this block, the logger of that name logs only errors."""
    logger = logging.getLogger(name)
    old_level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(old_level)


class FromRaw(nn.Module):
    """A module that takes raw inputs, normalises them, and returns embeddings and logits."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.parts = model.net.parts(model.params)
        self.data: Examples = model.data
        self.is_joint = isinstance(model.net, JointNet)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.data.normalised_values(x)  # an order in memory is lost in ONNX, and with it the order of the pixels
        out = self.parts["body"](x)
        if self.is_joint:
            return out[0], out[1]
        return out[0] if isinstance(out, tuple) else out, self.parts["head"](out)
