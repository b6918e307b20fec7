"""A frozen encoder: its features replace the inputs of a dataset. They are computed once and cached in a file."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protofed.data.dataset import Dataset
from protofed.engines.threads import one_thread
from protofed.errors import ConfigError, UserError
from protofed.examples import Examples
from protofed.experiment.folder import write_atomically
from protofed.experiment.options import check, check_name
from protofed.nets import NETS, Design, make_net, weights


def encode_dataset(data: Dataset, path: str) -> Dataset:
    """The dataset with features [n, dim] instead of its inputs. `path`: a file of `protofed export` or `pretrain`."""
    layers, metadata = weights.read_weights_and_metadata(path)
    train, test = (_as_encoder_input(part, weights.input_format(metadata)) for part in (data.train, data.test))
    name, design = _encoder_design(metadata, path)
    net = make_net(name, design, train.shape, data.classes).starting_from(
        {key: value for key, value in layers.items() if key.startswith("body.")}
    )
    missing = [name for name in net.shapes if name.startswith("body.") and name not in net.initial_params]
    if missing:
        raise UserError(
            f"data.encoder: {path} does not fit inputs of shape {train.shape}: {missing[0]} would be random. Use "
            "an encoder that was trained on inputs of that shape."
        )
    params = net.init(torch.Generator())
    key = hashlib.sha256(f"{net.source} {train.input}".encode())
    for array in (*params.values(), train.x, train.index, test.x, test.index):
        key.update(array.contiguous().numpy().data)
    file = _feature_folder() / f"{data.name}-{key.hexdigest()[:24]}.npy"
    if file.exists():
        features = np.load(file, allow_pickle=False)
    else:
        with one_thread():
            features = np.concatenate([net.features(params, part)[0].numpy() for part in (train, test)])
        content = io.BytesIO()
        np.save(content, features, allow_pickle=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content.getvalue())
    if not np.isfinite(features).all():
        raise UserError(f"data.encoder: {path} gives features that are not finite numbers. Train it again.")
    train_features = Examples.of(features[: len(train)], train.labels.numpy())
    train_features = replace(train_features.by_own_statistics(), fill=None)  # their spread may be small
    test_features = Examples.of(features[len(train) :], test.labels.numpy()).normalised_like(train_features)
    remarks = (data.remark, f"features of {Path(path).name}", weights.pretraining_remark(metadata))
    return replace(
        data,
        train=train_features,
        test=test_features,
        remark=", ".join(filter(None, remarks)),
        normalise="constants",
    )


def _encoder_design(metadata: dict[str, Any], path: str) -> tuple[str, Design]:
    """The name and the options of the net in an encoder file."""
    table, problems = weights.net_options(metadata, path), list[str]()
    name = table.pop("name", None)
    if not check_name(f"data.encoder: net of {path}", name, NETS, problems):
        raise ConfigError(problems)
    design = check("encoder", NETS[name], table, problems)
    if design is None:
        raise ConfigError(problems)
    return name, design


def _as_encoder_input(examples: Examples, trained_on: Examples | None) -> Examples:
    """Images in the form that the encoder was trained on, except for their size.

    They are normalised by the encoder's constants, and grey images get its number of channels.
    """
    if trained_on is None or len(examples.shape) != 3 or len(trained_on.shape) != 3:
        return examples
    if examples.scale == trained_on.scale:  # otherwise the encoder's constants are for other units
        examples = examples.normalised_like(trained_on)
    if examples.shape[0] == 1:
        examples = replace(examples, x=examples.x.expand(-1, trained_on.shape[0], -1, -1))
    return examples


def _feature_folder() -> Path:
    """The folder in which features are cached."""
    return Path(os.environ.get("PROTOFED_CACHE") or "~/.cache/protofed/features").expanduser()
