"""A frozen encoder: its features replace the inputs of a dataset. They are computed once and cached in a file."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from protofed.data.dataset import Dataset
from protofed.data.images import resized
from protofed.engines.threads import one_thread
from protofed.errors import ConfigError, UserError
from protofed.examples import Examples
from protofed.experiment.encoder_files import Embed, Encoder, open_encoder
from protofed.experiment.folder import write_atomically
from protofed.experiment.options import toml_value
from protofed.experiment.sections import DataSection
from protofed.experiment.wording import duration
from protofed.net import EVALUATION_BATCH
from protofed.plugins import label

Say = Callable[[str], None]
"""Shows a line of text to the user."""
_PIXELS = 2**18
"""Pixels per batch: as many as stay in a processor's cache. 64 images of 64x64."""
_SECONDS = 10.0
"""Progress is shown every this many seconds."""


def encode_dataset(data: Dataset, section: DataSection, say: Say = lambda text: None) -> Dataset:
    """The dataset with the features [n, dim] of [data]'s encoder instead of its inputs; itself if there is none."""
    if not section.encoder:
        _must_be_unset(section)
        return data
    if data.train.mask is not None:
        raise UserError(
            f'data.encoder: got "{section.encoder}", but {data.name} has a label for every pixel, and an encoder gives '
            "one vector per image. Leave the key out."
        )
    encoder = open_encoder(section, data.train.shape)
    parts = [_inputs(part, encoder, section) for part in (data.train, data.test)]
    embed, digest = encoder.embedder(parts[0].shape, data.classes)
    key = hashlib.sha256(digest)
    for part in parts:
        key.update(f"{part.examples.input} {part.shape}".encode())
        for array in (part.examples.x, part.examples.index):
            key.update(array.contiguous().numpy().data)
    file = _feature_folder() / f"{data.name}-{key.hexdigest()[:24]}.npy"
    title = f"features of {Path(label(section.encoder)).name}"
    if parts[0].side:
        title += f" at {parts[0].side}x{parts[0].side}"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):  # several runs of a sweep need the same features: one computes them
            if not file.exists():
                with one_thread():
                    features = compute_features(parts, embed, title, say)
                content = io.BytesIO()
                np.save(content, features, allow_pickle=False)
                write_atomically(file, content.getvalue())
    features = np.load(file, allow_pickle=False)
    if not np.isfinite(features).all():
        raise UserError(f"data.encoder: {section.encoder} gives features that are not finite numbers. Train it again.")
    train, test = np.split(features, [len(data.train)])
    return replace(
        data,
        train=Examples.of(train, data.train.labels.numpy()),
        test=Examples.of(test, data.test.labels.numpy()),
        remark=", ".join(filter(None, (data.remark, title, encoder.remark))),
        normalise="constants",
    )


@dataclass(frozen=True)
class EncoderInputs:
    """Examples with the constants of an encoder, resized and repeated over channels batch by batch."""

    examples: Examples
    channels: int  # that grey images get; 0: images keep theirs
    side: int  # that images are resized to, in pixels; 0: they keep their size

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        own = self.examples.shape
        if len(own) != 3:
            return own
        return (self.channels or own[0], *((self.side, self.side) if self.side else own[1:]))

    def __len__(self) -> int:
        return len(self.examples)

    def batches(self) -> Iterator[Tensor]:
        """Normalised inputs in order."""
        is_image = len(self.shape) == 3
        size = max(1, _PIXELS // (self.shape[1] * self.shape[2])) if is_image else EVALUATION_BATCH
        for rows in filter(len, self.examples.index.split(size)):
            raw = self.examples.x[rows]
            raw = resized(raw, self.side) if self.side else raw
            yield self.examples.normalised(raw.expand(-1, self.channels, -1, -1) if self.channels else raw)


def compute_features(parts: Sequence[EncoderInputs], embed: Embed, title: str, say: Say) -> np.ndarray:
    """The features [n, dim] of all parts, in order. Work that takes long is shown with an estimate of the time left."""
    total, done, features = sum(map(len, parts)), 0, []
    begin = shown = perf_counter()
    with torch.no_grad():
        for batch in (batch for part in parts for batch in part.batches()):
            features.append(embed(batch).numpy())
            done, now = done + len(batch), perf_counter()
            if now - shown >= _SECONDS and done < total:
                shown, left = now, (now - begin) / done * (total - done)
                say(f"{title}: {done:,} of {total:,}  time {duration(now - begin)}  left {duration(left)}")
    return np.concatenate(features)


def _inputs(examples: Examples, encoder: Encoder, section: DataSection) -> EncoderInputs:
    """The examples in the form that the encoder takes."""
    if len(examples.shape) != 3:
        keys = ("encoder_size", "encoder_mean", "encoder_std")
        if problems := [
            f"data.{key}: got {toml_value(getattr(section, key))}, but inputs of shape {examples.shape} are no images. "
            "Leave the key out."
            for key in keys
            if getattr(section, key)
        ]:
            raise ConfigError(problems)
        return EncoderInputs(encoder.normalised(examples), 0, 0)
    side = section.encoder_size or encoder.side
    channels = encoder.channels if examples.shape[0] == 1 else 0
    return EncoderInputs(encoder.normalised(examples), channels, 0 if examples.shape[1:] == (side, side) else side)


def _must_be_unset(section: DataSection) -> None:
    """Raise an error if an option of the encoder is set, but there is no encoder."""
    keys = [key for key in fields(section) if key.name.startswith("encoder_") and getattr(section, key.name)]
    if keys:
        raise ConfigError(
            [
                f"data.{key.name}: got {toml_value(getattr(section, key.name))}, but data.encoder is not set. "
                "Set it, or leave the key out."
                for key in keys
            ]
        )


def _feature_folder() -> Path:
    """The folder in which features are cached."""
    return Path(os.environ.get("PROTOFED_CACHE") or "~/.cache/protofed/features").expanduser()
