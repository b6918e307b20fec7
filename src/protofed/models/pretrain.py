"""Pre-training: an encoder is trained centrally on the images of one or several datasets, for use in `data.encoder`.

Every epoch is one round of a single client that has all images, so that `training.train_client` does the training. For
this reason the momentum restarts in every epoch. The learning rate falls from epoch to epoch along a cosine, unless
[train] has another schedule.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from protofed.core import Client, Params, Phase
from protofed.data.dataset import Dataset
from protofed.data.images import IMAGENET_MEAN, IMAGENET_STD, in_colour
from protofed.data.sources import SOURCES
from protofed.engines.scoring import tally
from protofed.engines.threads import threads
from protofed.errors import ConfigError, UserError
from protofed.examples import Examples
from protofed.experiment.accuracy import majority_accuracy
from protofed.experiment.folder import must_be_new, uninterrupted, write_atomically
from protofed.experiment.member_nets import build_nets, load_net_weights
from protofed.experiment.model import Model
from protofed.experiment.options import options
from protofed.experiment.wording import dataset_title, duration, quantity
from protofed.methods.local import Local
from protofed.models.export import as_safetensors
from protofed.training import train_client

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.experiment.config import Config
    from protofed.experiment.encoder import Say
    from protofed.net import Net
    from protofed.training import TrainSection


@dataclass(frozen=True)
class Pretrained:
    """A model for the classes of all datasets together, and its accuracies."""

    model: Model
    accuracy: dict[str, float]  # on each dataset's test set, among that dataset's own classes
    majority: dict[str, float]  # the majority-class baseline of each test set
    about: str  # how the model was trained, as JSON

    def write(self, path: Path) -> int:
        """Write the file completely or not at all; the number of its bytes."""
        content = as_safetensors(self.model, {"pretraining": self.about})
        path.parent.mkdir(parents=True, exist_ok=True)
        with uninterrupted():
            write_atomically(path, content)
        return len(content)

    def text(self) -> str:
        """The accuracies in sentences, with a warning about datasets that are not better than their baseline."""
        accuracies = [
            f"{name} {100 * share:.1f} % (majority-class baseline {100 * self.majority[name]:.1f} %)"
            for name, share in self.accuracy.items()
        ]
        text = f"Test accuracy, among each dataset's own classes: {', '.join(accuracies)}."
        if unlearned := [name for name, share in self.accuracy.items() if share <= self.majority[name]]:
            text += f" Not better than the baseline: {', '.join(unlearned)}. Check the loss, --lr and --epochs."
        return text


def must_be_encoder(path: Path) -> None:
    """It is an error if the file exists already, is no .safetensors, or is in a folder that cannot be written to.

    This is checked before hours of training.
    """
    must_be_new(path)
    if path.suffix != ".safetensors":
        raise UserError(f"--out: got {path.name}; its name must end in .safetensors.")
    folder = next(above for above in path.absolute().parents if above.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UserError(f"--out: cannot write to {folder}. Give another folder.")


def load_datasets(names: Sequence[str], root: str, size: int) -> list[Dataset]:
    """The datasets of these names, with colour images of size x size."""
    sources = [SOURCES.find(name, "dataset")[1] for name in names]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--data {name}: given {names.count(name)} times. Give it once.")
    return [as_colour_images(source(root), size) for source in sources]


def as_colour_images(data: Dataset, size: int) -> Dataset:
    """The dataset with colour images of size x size, which are normalised by ImageNet's constants."""
    if len(data.train.shape) != 3 or data.train.shape[0] not in (1, 3):
        raise UserError(
            f"--data {data.name}: inputs of shape {data.train.shape} are not images [1 or 3 channels, height, width]. "
            "Give a dataset of images."
        )
    for part, purpose in ((data.train, "training"), (data.test, "test")):
        if not len(part):
            raise UserError(f"--data {data.name} has no {purpose} examples. Give at least five examples of a class.")

    def converted(part: Examples) -> Examples:
        x = part.x[part.index]
        if x.dtype != torch.uint8 or part.scale != 255:
            x = x.float() / part.scale
            if not (x.min() >= 0 and x.max() <= 1):
                raise UserError(
                    f"--data {data.name}: the values range from {x.min():g} to {x.max():g}. Give bytes, or numbers "
                    "from 0 to 1."
                )
            x = (255 * x).round().to(torch.uint8)
        return Examples.of(in_colour(x, size), part.labels.numpy(), 255.0, IMAGENET_MEAN, IMAGENET_STD)

    return replace(data, train=converted(data.train), test=converted(data.test))


def combine_training_sets(datasets: Sequence[Dataset]) -> Examples:
    """The training examples of all datasets. The classes of each dataset come after those of the previous one."""
    firsts = first_classes(datasets)
    y = np.concatenate([data.train.y.numpy() + first for data, first in zip(datasets, firsts, strict=True)])
    x = np.concatenate([data.train.x.numpy() for data in datasets])
    return Examples.of(x, y, 255.0, IMAGENET_MEAN, IMAGENET_STD)


def first_classes(datasets: Sequence[Dataset]) -> list[int]:
    """The number of the first class of each dataset, when the classes of all datasets are numbered in order."""
    return [sum(data.classes for data in datasets[:position]) for position in range(len(datasets))]


def train_encoder(config: Config, datasets: Sequence[Dataset], num_threads: int, say: Say) -> Pretrained:
    """Train the experiment's net with its [train] options on datasets that `load_datasets` returned."""
    examples = combine_training_sets(datasets)
    labels = tuple(f"{data.name} {label}" for data in datasets for label in data.labels)
    (net,), notes = load_net_weights(config, build_nets(config, [examples.shape], len(labels)))
    _, height, width = examples.shape
    titles = [dataset_title(data.name, data.remark) for data in datasets]
    say(
        f"{net.name} on {', '.join(titles)}: {len(examples):,} training images at {height}x{width}x3, "
        f"{len(labels)} classes, {quantity(_epochs(config.train), 'epoch')}, {quantity(num_threads, 'thread')}"
    )
    for note in notes:
        say(note)
    with threads(num_threads):
        params = train_epochs(config, net, examples, say)
        accuracy = {
            data.name: accuracy_among_own_classes(net, params, data, first)
            for data, first in zip(datasets, first_classes(datasets), strict=True)
        }
    majority = {
        data.name: majority_accuracy(*(part.class_counts(data.classes) for part in (data.train, data.test))) or 0.0
        for data in datasets
    }
    about = {
        "data": [data.name for data in datasets],
        "titles": titles,
        "images": len(examples),
        "size": height,
        "seed": config.run.seed,
        "threads": num_threads,
        "train": options(config.train),
        "accuracy": accuracy,
        "majority": majority,
    }
    model = Model(None, net, params, lambda x: {"head": net(params, x)[1]}, examples, labels)
    return Pretrained(model, accuracy, majority, json.dumps(about))


def _epochs(training: TrainSection) -> int:
    """The number of epochs; an error if it is not a whole number, or if steps are given instead."""
    if training.steps or training.epochs % 1:
        raise UserError(
            f"Pre-training takes a whole number of epochs, but got train.epochs = {training.epochs:g} and "
            f"train.steps = {training.steps}. Use --epochs."
        )
    return int(training.epochs)


def _with_cosine(training: TrainSection) -> TrainSection:
    """The [train] section with a cosine over all epochs in place of the default schedule."""
    if training.schedule != "exponential" or training.decay < 1 or not training.epochs:
        return training
    with_cosine = replace(training, schedule="cosine", decay_rounds=_epochs(training))
    if problems := with_cosine.contradictions():
        raise ConfigError(problems)
    return with_cosine


def train_epochs(config: Config, net: Net, examples: Examples, say: Say) -> Params:
    """The parameters after all epochs. Every epoch is reported in a line."""
    training, seed, epochs = _with_cosine(config.train), config.run.seed, _epochs(config.train)
    params, begin = Client(net, seed, 0, 0, 1, examples).fresh_params(), perf_counter()
    for epoch in range(epochs):
        client = Client(net, seed, epoch, 0, 1, examples)
        outcome = train_client(Local(), client, examples, params, (), (), (Phase(1),), training)
        loss = float(sum(outcome.terms.values())) / max(1.0, outcome.examples_seen)
        if not math.isfinite(loss) or not all(torch.isfinite(value).all() for value in outcome.params.values()):
            raise UserError(
                f"Training diverged in epoch {epoch + 1}: the loss or a weight is not finite. Try a smaller --lr."
            )
        params, seconds = outcome.params, perf_counter() - begin
        seconds_left = seconds / (epoch + 1) * (epochs - epoch - 1)
        say(
            f"epoch {epoch + 1}/{epochs}  loss {loss:.3f}  lr {training.rate(epoch):.4g}  "
            f"time {duration(seconds)}  left {duration(seconds_left)}"
        )
    return params


def accuracy_among_own_classes(net: Net, params: Params, data: Dataset, first: int) -> float:
    """The accuracy on the test set of a dataset, when only its own classes, which begin at `first`, are predicted."""
    own_classes = slice(first, first + data.classes)
    return tally(lambda x: {"head": net(params, x)[1][:, own_classes]}, data.test)["head"] / len(data.test)
