"""The frozen encoders that `data.encoder` can name: published weights, a file with weights or an ONNX graph, own code.

Nothing is unpickled. An encoder says how its inputs are normalised, and makes the function that computes features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from protofed.errors import ConfigError, UserError, did_you_mean
from protofed.examples import Examples
from protofed.experiment.encoder_constants import given_constants, given_or_raw, with_constants
from protofed.experiment.options import check, check_name, toml_or_text
from protofed.experiment.own_encoder import encoder_maker
from protofed.experiment.sections import DataSection
from protofed.nets import NETS, Design, make_net, weights
from protofed.plugins import Registry

Embed = Callable[[Tensor], Tensor]
"""Features [n, dim] of normalised inputs [n, ...]."""
_FILES = (".safetensors", ".pth", ".pt", ".bin", ".onnx")


class Encoder(Protocol):
    """A frozen encoder, read from its file."""

    channels: int  # of the images that it takes; 0: any number
    side: int  # of the images that it takes, in pixels; 0: any
    remark: str  # shown with every result

    def normalised(self, examples: Examples) -> Examples:
        """The examples with the constants that the encoder's inputs are normalised by."""
        ...

    def embedder(self, shape: tuple[int, ...], classes: int) -> tuple[Embed, bytes]:
        """The function that computes features of inputs of this shape, and a hash of all that it depends on."""
        ...


def is_file(encoder: str) -> bool:
    """Whether `data.encoder` is the path of a file with weights or a graph, and not the name of an encoder."""
    return Path(encoder).suffix in _FILES


def open_encoder(section: DataSection, shape: tuple[int, ...]) -> Encoder:
    """The encoder that [data] names. `shape`: of one input of the dataset."""
    has_weights_only = is_file(section.encoder) or section.encoder in weights.PUBLISHED
    if section.encoder_net and (section.encoder.endswith(".onnx") or not has_weights_only):
        raise UserError(
            f'data.encoder_net: got "{section.encoder_net}", but {section.encoder} has its own net. Leave the key out.'
        )
    if section.encoder.endswith(".onnx"):
        return OnnxEncoder(section)
    if section.encoder_output:
        raise UserError(
            f'data.encoder_output: got "{section.encoder_output}", but {section.encoder} is not an .onnx file. '
            "Leave the key out."
        )
    if is_file(section.encoder):
        return NetEncoder(section, shape)
    return ENCODERS.find(section.encoder, "encoder")[1](section, shape)


class NetEncoder:
    """The body of one of our nets, with weights from a file or published ones."""

    def __init__(self, section: DataSection, shape: tuple[int, ...]) -> None:
        self.title, self.side = section.encoder, 0
        layers, metadata = weights.read_weights_and_metadata(section.encoder)
        self.layers = {
            key: value for key, value in weights.with_our_names(layers).items() if not key.startswith("head.")
        }
        options = _options_of(section.encoder_net) if section.encoder_net else weights.net_options(metadata, self.title)
        self.name, self.design = _net_design(options, f"data.encoder: net of {self.title}")
        trained_on, given = weights.input_format(metadata), given_constants(section)
        if trained_on is not None and len(trained_on.shape) != 3:
            trained_on = None
        self.constants = trained_on if given is None else given
        if self.constants is None and section.encoder_net and len(shape) == 3:
            raise UserError(
                f"data.encoder_mean: {self.title} does not say how its inputs were normalised. Set data.encoder_mean "
                "and data.encoder_std, for values from 0 to 1: [0.485, 0.456, 0.406] and [0.229, 0.224, 0.225] for "
                "most nets that were trained on ImageNet."
            )
        first = self.layers.get("body.conv1.weight", self.layers.get("conv1.weight"))
        self.channels = 0 if first is None else first.shape[1]
        if trained_on is not None:
            self.channels = trained_on.shape[0]
        self.remark = weights.pretraining_remark(metadata)

    def normalised(self, examples: Examples) -> Examples:
        if self.constants is None or len(examples.shape) != 3:
            return examples
        return with_constants(examples, self.constants, self.title)

    def embedder(self, shape: tuple[int, ...], classes: int) -> tuple[Embed, bytes]:
        net = make_net(self.name, self.design, shape, classes).starting_from(self.layers)
        missing = [name for name in net.shapes if name.startswith("body.") and name not in net.initial_params]
        if missing:
            raise UserError(
                f"data.encoder: {self.title} does not fit inputs of shape {shape}: {missing[0]} would be random. Use "
                "an encoder that was trained on inputs of that shape."
            )
        body = {name: value for name, value in net.init(torch.Generator()).items() if name.startswith("body.")}
        digest = hashlib.sha256(net.source.encode())
        for value in body.values():
            digest.update(value.contiguous().numpy().data)
        return lambda x: net.embed(body, x), digest.digest()


class OnnxEncoder:
    """A graph of an .onnx file, computed by onnxruntime (extra `protofed[onnx]`)."""

    remark = ""

    def __init__(self, section: DataSection) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise UserError(
                f"data.encoder: {section.encoder} needs the package onnxruntime. Run pip install 'protofed[onnx]'."
            ) from None
        path = Path(section.encoder).expanduser()
        if not path.is_file():
            raise UserError(f"data.encoder: there is no file {path}.")
        self.content, self.title = path.read_bytes(), section.encoder
        choices = onnxruntime.SessionOptions()
        choices.intra_op_num_threads = choices.inter_op_num_threads = 1
        choices.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(self.content, choices, providers=["CPUExecutionProvider"])
        except Exception as problem:  # onnxruntime raises many types of errors
            reason = str(problem).partition("\n")[0]
            raise UserError(f"data.encoder: {path} cannot be read as an ONNX file: {reason}") from problem
        inputs, outputs = self.session.get_inputs(), [output.name for output in self.session.get_outputs()]
        if len(inputs) != 1:
            raise UserError(f"data.encoder: {path} has {len(inputs)} inputs; an encoder has one.")
        self.output = section.encoder_output or outputs[0]
        if self.output not in outputs:
            raise UserError(f'data.encoder_output: {path} has no "{self.output}". {did_you_mean(self.output, outputs)}')
        self.input = inputs[0].name
        sides = [size if isinstance(size, int) else 0 for size in inputs[0].shape]  # 0: of any size
        self.one_by_one = sides[0] == 1
        self.channels_last = len(sides) == 4 and sides[3] in (1, 3) and sides[1] not in (1, 3)
        self.channels, self.side = 0, 0
        if len(sides) == 4:
            self.channels = sides[3 if self.channels_last else 1]
            self.side = sides[2]
        self.section = section

    def normalised(self, examples: Examples) -> Examples:
        """Without constants the graph gets raw inputs, as those of `protofed export` expect them."""
        return given_or_raw(examples, self.section)

    def embedder(self, shape: tuple[int, ...], classes: int) -> tuple[Embed, bytes]:
        def embed(x: Tensor) -> Tensor:
            x = x.permute(0, 2, 3, 1) if self.channels_last else x
            batches = x.split(1) if self.one_by_one else [x]
            return torch.cat([self._output(batch) for batch in batches])

        return embed, hashlib.sha256(self.content + self.output.encode()).digest()

    def _output(self, x: Tensor) -> Tensor:
        try:
            (out,) = self.session.run([self.output], {self.input: x.contiguous().numpy()})
        except Exception as problem:  # onnxruntime raises many types of errors
            reason = str(problem).partition("\n")[0]
            raise UserError(
                f"data.encoder: {self.title} does not take inputs of shape {list(x.shape)}: {reason}"
            ) from problem
        return torch.from_numpy(out).float().flatten(1)


def _options_of(text: str) -> dict[str, Any]:
    """The options of a net in words.

    >>> _options_of("resnet18 stem=imagenet width=16")
    {'name': 'resnet18', 'stem': 'imagenet', 'width': 16}
    """
    name, *words = text.split()
    pairs = (word.partition("=") for word in words)
    return {"name": name, **{key: toml_or_text(value) for key, _, value in pairs}}


def _net_design(table: dict[str, Any], owner: str) -> tuple[str, Design]:
    """The name and the design of a net from its options."""
    problems = list[str]()
    name = table.pop("name", None)
    if not check_name(owner, name, NETS, problems):
        raise ConfigError(problems)
    design = check("encoder", NETS[name], table, problems)
    if design is None:
        raise ConfigError(problems)
    return name, design


ENCODERS: Registry[Callable[[DataSection, tuple[int, ...]], Encoder]] = Registry(
    "encoders", encoder_maker, dict.fromkeys(weights.PUBLISHED, NetEncoder)
)
"""The encoders that can be named, each as a function of [data] and the shape of an input that opens it."""
