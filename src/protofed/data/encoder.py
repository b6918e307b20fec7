"""A frozen encoder: the data become its features, which are computed once and kept in a file."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from protofed import weights
from protofed.data.dataset import Dataset
from protofed.data.examples import Examples
from protofed.errors import ConfigError, UserError
from protofed.folder import write
from protofed.nets import NETS, make
from protofed.options import check, known
from protofed.threads import one_thread


def encoded(data: Dataset, path: str) -> Dataset:
    """The dataset with features [n, dim] in the place of its inputs; a file of `protofed export` says how."""
    layers, about = weights.read_with_metadata(path)
    design = weights.design(about, path)
    name, problems = design.pop("name", None), list[str]()
    made = check("encoder", NETS[name], design, problems) if known("data.encoder", name, NETS, problems) else None
    if problems or made is None:
        raise ConfigError(problems)
    net = make(name, made, data.train.shape, data.classes).starting_from(
        {key: value for key, value in layers.items() if key.startswith("body.")}
    )
    missing = [name for name in net.shapes if name.startswith("body.") and name not in net.layers]
    if missing:
        raise UserError(
            f"data.encoder: {path} does not fit inputs of shape {data.train.shape}: {missing[0]} would be random. Use "
            "an encoder that was trained on inputs of that shape."
        )
    params = net.init(torch.Generator())
    key = hashlib.sha256(f"{net.source} {data.train.input}".encode())
    for array in (*params.values(), data.train.x, data.train.index, data.test.x, data.test.index):
        key.update(array.contiguous().numpy().data)
    file = cache() / f"{data.name}-{key.hexdigest()[:24]}.npy"
    if file.exists():
        features = np.load(file, allow_pickle=False)
    else:
        with one_thread():
            features = np.concatenate([net.features(params, part)[0].numpy() for part in (data.train, data.test)])
        content = io.BytesIO()
        np.save(content, features, allow_pickle=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, content.getvalue())
    train, test = features[: len(data.train)], features[len(data.train) :]
    return replace(
        data,
        train=Examples.of(train, data.train.labels.numpy()),
        test=Examples.of(test, data.test.labels.numpy()),
        remark=", ".join(filter(None, (data.remark, f"features of {Path(path).name}"))),
        normalise="constants",
    )


def cache() -> Path:
    """Where features are kept."""
    return Path(os.environ.get("PROTOFED_CACHE") or "~/.cache/protofed/features").expanduser()
