"""A frozen encoder: the data become its features, which are computed once and kept in a file."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from protofed.data.dataset import Dataset
from protofed.engines.threads import one_thread
from protofed.errors import ConfigError, UserError
from protofed.examples import Examples
from protofed.experiment.folder import write_atomically
from protofed.experiment.options import check, check_name
from protofed.nets import NETS, make_net, weights


def encode_dataset(data: Dataset, path: str) -> Dataset:
    """The dataset with features [n, dim] in the place of its inputs; a file of `export` or `pretrain` says how."""
    layers, about = weights.read_weights_and_metadata(path)
    train, test = (_shown(part, weights.inputs(about)) for part in (data.train, data.test))
    design = weights.design(about, path)
    name, problems = design.pop("name", None), list[str]()
    made = check("encoder", NETS[name], design, problems) if check_name("data.encoder", name, NETS, problems) else None
    if problems or made is None:
        raise ConfigError(problems)
    net = make_net(name, made, train.shape, data.classes).starting_from(
        {key: value for key, value in layers.items() if key.startswith("body.")}
    )
    missing = [name for name in net.shapes if name.startswith("body.") and name not in net.layers]
    if missing:
        raise UserError(
            f"data.encoder: {path} does not fit inputs of shape {train.shape}: {missing[0]} would be random. Use "
            "an encoder that was trained on inputs of that shape."
        )
    params = net.init(torch.Generator())
    key = hashlib.sha256(f"{net.source} {train.input}".encode())
    for array in (*params.values(), train.x, train.index, test.x, test.index):
        key.update(array.contiguous().numpy().data)
    file = _cache() / f"{data.name}-{key.hexdigest()[:24]}.npy"
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
        raise UserError(f"data.encoder: {path} gives features that are not finite numbers. Train it anew.")
    seen = Examples.of(features[: len(train)], train.labels.numpy()).by_own_statistics()  # an encoder's vary little
    seen = replace(seen, fill=None)
    unseen = Examples.of(features[len(train) :], test.labels.numpy()).normalised_like(seen)
    return replace(
        data,
        train=seen,
        test=unseen,
        remark=", ".join(filter(None, (data.remark, f"features of {Path(path).name}", weights.origin(about)))),
        normalise="constants",
    )


def _shown(own: Examples, trained: Examples | None) -> Examples:
    """Images as the encoder was trained on them, size aside: grey ones in its channels, normalised by its constants."""
    if trained is None or len(own.shape) != 3 or len(trained.shape) != 3:
        return own
    if own.scale == trained.scale:  # otherwise its constants are for other units
        own = own.normalised_like(trained)
    return replace(own, x=own.x.expand(-1, trained.shape[0], -1, -1)) if own.shape[0] == 1 else own


def _cache() -> Path:
    """Where features are kept."""
    return Path(os.environ.get("PROTOFED_CACHE") or "~/.cache/protofed/features").expanduser()
