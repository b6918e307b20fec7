"""An encoder trained centrally on the images of one or several datasets, for `data.encoder` to use frozen.

An epoch is a round of a single client that holds everything, so that `local.train` is all the training there is. By
that the momentum starts anew with every epoch, and the learning rate falls from epoch to epoch, along a cosine.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from protofed.core import Client, Params, Phase
from protofed.data.dataset import Dataset
from protofed.data.images import MEAN, STD, in_colour
from protofed.data.sources import SOURCES
from protofed.engines.scoring import tally
from protofed.engines.threads import threads
from protofed.errors import UserError, did_you_mean
from protofed.examples import Examples
from protofed.experiment.folder import must_be_new, uninterrupted, write_atomically
from protofed.experiment.members import build_nets, dataset_title, load_net_weights
from protofed.experiment.model import Model
from protofed.experiment.options import options
from protofed.experiment.wording import duration, many
from protofed.methods.local import Local
from protofed.models.export import as_safetensors
from protofed.training import train_client

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.experiment.config import Config
    from protofed.net import Net

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Pretrained:
    """A model that knows the classes of all datasets, and how well it knows those of each."""

    model: Model
    accuracy: dict[str, float]  # on each dataset's test set, among that dataset's own classes
    majority: dict[str, float]  # what always answering its commonest class gives there
    about: str  # where the model comes from, as JSON

    def write(self, path: Path) -> int:
        """The file, whole or not at all, and how many bytes it has."""
        content = as_safetensors(self.model, {"pretraining": self.about})
        path.parent.mkdir(parents=True, exist_ok=True)
        with uninterrupted():
            write_atomically(path, content)
        return len(content)

    def told(self) -> str:
        """How good it is, and whether that is anything."""
        each = [
            f"{name} {100 * share:.1f} % (always its commonest class: {100 * self.majority[name]:.1f} %)"
            for name, share in self.accuracy.items()
        ]
        text = f"On the test sets, each among its own classes: {', '.join(each)}."
        if idle := [name for name, share in self.accuracy.items() if share <= self.majority[name]]:
            text += f" Nothing is learned of {', '.join(idle)}: look at the loss, --lr and --epochs."
        return text


def must_be_encoder(path: Path) -> None:
    """Refuse a file that is there already, of another kind, or that could not be written after hours of training."""
    must_be_new(path)
    if path.suffix != ".safetensors":
        raise UserError(f"--out: got {path.name}; its name must end in .safetensors.")
    folder = next(above for above in path.absolute().parents if above.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UserError(f"--out: nothing can be written to {folder}. Give another folder.")


def load(names: Sequence[str], root: str, size: int) -> list[Dataset]:
    """The datasets, with images that fit each other."""
    for name in names:
        if name not in SOURCES:
            raise UserError(f'There is no dataset "{name}". {did_you_mean(name, SOURCES)}')
        if names.count(name) > 1:
            raise UserError(f"--data {name}: it is given {names.count(name)} times. Give it once.")
    return [as_colour_images(SOURCES[name](root), size) for name in names]


def as_colour_images(data: Dataset, size: int) -> Dataset:
    """The dataset with its images at size x size in colour, to be normalised by ImageNet's constants."""
    if len(data.train.shape) != 3 or data.train.shape[0] not in (1, 3):
        raise UserError(
            f"--data {data.name}: its inputs of shape {data.train.shape} are no images [1 or 3 channels, high, wide]. "
            "Give a dataset of images."
        )
    for part, what in ((data.train, "trained"), (data.test, "tested")):
        if not len(part):
            raise UserError(f"--data {data.name} has nothing to be {what} on. Give five examples of a class or more.")

    def changed(part: Examples) -> Examples:
        x = part.x[part.index]
        if x.dtype != torch.uint8 or part.scale != 255:
            x = x.float() / part.scale
            if not (x.min() >= 0 and x.max() <= 1):
                raise UserError(
                    f"--data {data.name}: its values go from {x.min():g} to {x.max():g}. Give bytes, or numbers from 0 "
                    "to 1."
                )
            x = (255 * x).round().to(torch.uint8)
        return Examples.of(in_colour(x, size), part.labels.numpy(), 255.0, MEAN, STD)

    return replace(data, train=changed(data.train), test=changed(data.test))


def side_by_side(datasets: Sequence[Dataset]) -> Examples:
    """All training examples; the classes of a dataset come after those of the datasets before it."""
    first = firsts(datasets)
    y = np.concatenate([data.train.y.numpy() + start for data, start in zip(datasets, first, strict=True)])
    x = np.concatenate([data.train.x.numpy() for data in datasets])
    return Examples.of(x, y, 255.0, MEAN, STD)


def firsts(datasets: Sequence[Dataset]) -> list[int]:
    """Where the classes of each dataset begin."""
    return [sum(data.classes for data in datasets[:place]) for place in range(len(datasets))]


def train_encoder(config: Config, datasets: Sequence[Dataset], count: int, tell: Tell) -> Pretrained:
    """Train the experiment's net, as its [train] says, on datasets that are `alike`, with so many threads."""
    examples = side_by_side(datasets)
    labels = tuple(f"{data.name} {label}" for data in datasets for label in data.labels)
    (net,), notes = load_net_weights(config, build_nets(config, [examples.shape], len(labels)))
    _, high, wide = examples.shape
    titles = [dataset_title(data.name, data.remark) for data in datasets]
    tell(
        f"{net.name} on {', '.join(titles)}: {len(examples):,} training images at {high}x{wide}x3, "
        f"{len(labels)} classes, {many(config.train.epochs, 'epoch')}, {many(count, 'thread')}"
    )
    for note in notes:
        tell(note)
    with threads(count):
        params = train_epochs(config, net, examples, tell)
        accuracy = {
            data.name: share_right(net, params, data, first)
            for data, first in zip(datasets, firsts(datasets), strict=True)
        }
    majority = {data.name: data.test.y.bincount().max().item() / len(data.test) for data in datasets}
    about = {
        "data": [data.name for data in datasets],
        "titles": titles,
        "images": len(examples),
        "size": high,
        "seed": config.run.seed,
        "threads": count,
        "train": options(config.train),
        "accuracy": accuracy,
        "majority": majority,
    }
    model = Model(None, net, params, lambda x: {"head": net(params, x)[1]}, examples, labels)
    return Pretrained(model, accuracy, majority, json.dumps(about))


def train_epochs(config: Config, net: Net, examples: Examples, tell: Tell) -> Params:
    """The parameters after all epochs."""
    training, seed = config.train, config.run.seed
    params, begun = Client(net, seed, 0, 0, 1, examples).fresh_params(), perf_counter()
    for epoch in range(training.epochs):
        now = replace(training, lr=training.lr * _cosine(epoch, training.epochs))
        client = Client(net, seed, epoch, 0, 1, examples)
        outcome = train_client(Local(), client, examples, params, (), (), (Phase(1),), now)
        loss = float(sum(outcome.terms.values())) / max(1.0, outcome.examples_seen)
        if not math.isfinite(loss) or not all(torch.isfinite(value).all() for value in outcome.params.values()):
            raise UserError(
                f"Training has diverged in epoch {epoch + 1}: its numbers are not finite. Try a smaller --lr."
            )
        params, spent = outcome.params, perf_counter() - begun
        left = spent / (epoch + 1) * (training.epochs - epoch - 1)
        tell(
            f"epoch {epoch + 1}/{training.epochs}  loss {loss:.3f}  lr {now.rate(epoch):.4g}  "
            f"time {duration(spent)}  left {duration(left)}"
        )
    return params


def _cosine(epoch: int, epochs: int) -> float:
    """The share of the learning rate that is left in an epoch: 1 in the first, near 0 in the last.

    >>> [round(_cosine(epoch, 4), 3) for epoch in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def share_right(net: Net, params: Params, data: Dataset, first: int) -> float:
    """The accuracy on the dataset's test set, among its own classes, which begin at `first`."""
    own = slice(first, first + data.classes)
    return tally(lambda x: {"head": net(params, x)[1][:, own]}, data.test)["head"] / len(data.test)
