"""Image datasets, each from one npz file; docs/data.md says where they come from and what is in the files."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from protofed.data.dataset import Dataset, check_shapes, found, group_numbers, read_npz
from protofed.data.idx import read_idx
from protofed.data.partitions.base import stratified_share
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.examples import Constant, Examples

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, as published."""


@dataclass(frozen=True)
class Images:
    """A file with x_train, y_train, x_test, y_test: bytes [n, side, side] or [n, side, side, 3]."""

    name: str
    side: int
    published: str
    mean: Constant
    std: Constant
    channels: int = 3
    classes: int = 10
    file: str = ""  # <name>.npz if it is not called otherwise
    remark: str = ""

    def __call__(self, where: Path) -> Dataset:
        path = found(self.name, where / (self.file or f"{self.name}.npz"), self.published)
        return self.of(read_npz(path), str(path))

    def of(self, arrays: dict[str, np.ndarray], path: str) -> Dataset:
        """The dataset from the arrays of the file."""
        missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
        if missing:
            raise UserError(f"{path} has no {missing[0]}. Get the file again.")
        shape = (self.side, self.side) if self.channels == 1 else (self.side, self.side, self.channels)
        parts = []
        for part in ("train", "test"):
            x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
            check_shapes(f"{self.name}: the {part} part in {path}", x, y, shape, self.classes)
            parts.append(Examples.of(_channels_first(x), y, 255.0, self.mean, self.std))
        train, test = parts
        labels = tuple(arrays["classes"].tolist()) if "classes" in arrays else tuple(range(self.classes))
        over = next((arrays[key] for key in ("fine_to_coarse", "species") if key in arrays), np.zeros(0, np.int64))
        return Dataset(self.name, train, test, labels, remark=self.remark, superclass=tuple(over.tolist()))


def _channels_first(x: np.ndarray) -> np.ndarray:
    """[n, high, wide] or [n, high, wide, channels] -> [n, channels, high, wide]."""
    return x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1)


_MNIST = Images("mnist", 28, "yann.lecun.com/exdb/mnist", 0.1307, 0.3081, channels=1)
USPS = Images("usps", 16, "www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets", 0.5, 0.5, channels=1)
SVHN = Images("svhn", 32, "ufldl.stanford.edu/housenumbers", 0.5, 0.5, remark="subset, crops re-made")
MNIST_M = Images("mnist_m", 32, "yaroslav.ganin.net", 0.5, 0.5, remark="subset")
SYNTHDIGITS = Images(
    "synthdigits",
    32,
    "yaroslav.ganin.net (the original; this file is re-made from free fonts)",
    0.5,
    0.5,
    file="synthdigits_remade.npz",
    remark="re-made",
)
CIFAR10 = Images(
    "cifar10",
    32,
    "www.cs.toronto.edu/~kriz/cifar.html",
    (0.4914, 0.4822, 0.4465),
    (0.247, 0.2435, 0.2616),
    remark="subset",
)
CIFAR100 = Images(
    "cifar100",
    32,
    "www.cs.toronto.edu/~kriz/cifar.html",
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
    classes=100,
    remark="subset",
)
PETS = Images(
    "pets",
    64,
    "www.robots.ox.ac.uk/~vgg/data/pets",
    MEAN,
    STD,
    classes=20,
    remark="subset of 20 breeds",
)
FULL = {"cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257, "mnist_m": 59_001}
"""How many training examples the published dataset has: with as many, it is no subset."""


def whole_or_subset(images: Images, where: Path) -> Dataset:
    """The dataset, called a subset unless the file has all that was published."""
    data = images(where)
    return replace(data, remark="") if len(data.train) >= FULL[images.name] else data


def mnist(where: Path) -> Dataset:
    """From mnist.npz, or from the four published files."""
    if (where / "mnist.npz").exists():
        return _MNIST(where)
    return _MNIST.of(read_idx(where), str(where))


def femnist(where: Path) -> Dataset:
    """A fifth of each class of each client is the test set."""
    path = found("femnist", where / "femnist_digits.npz", "github.com/TalwalkarLab/leaf")
    arrays = read_npz(path, "x", "y", "client")
    check_shapes(str(path), arrays["x"], arrays["y"], (28, 28), 10)
    return group_numbers(
        "femnist",
        _channels_first(arrays["x"]),
        arrays["y"],
        arrays["client"],
        tuple(map(str, range(12))),
        tuple(range(10)),
        {"scale": 255.0, "mean": 0.1307, "std": 0.3081},
        "digits of 12 clients",
    )


def office_caltech10(where: Path) -> Dataset:
    """A fifth of each class of each domain is the test set: none was published."""
    path = found("office_caltech10", where / "office_caltech10.npz", "people.eecs.berkeley.edu/~jhoffman/domainadapt")
    arrays = read_npz(path, "x", "y", "domain", "domains", "classes")
    check_shapes(str(path), arrays["x"], arrays["y"], (64, 64, 3), 10)
    return group_numbers(
        "office_caltech10",
        _channels_first(arrays["x"]),
        arrays["y"],
        arrays["domain"],
        tuple(arrays["domains"].tolist()),
        tuple(arrays["classes"].tolist()),
        {"scale": 255.0, "mean": MEAN, "std": STD},
        "64x64, own split",
    )


def digit5(where: Path) -> Dataset:
    """Five domains at 32x32x3; of mnist as many images as the others have."""
    domains: dict[str, Callable[[Path], Dataset]] = {
        "mnist": mnist,
        "usps": USPS,
        "svhn": SVHN,
        "mnist_m": MNIST_M,
        "synthdigits": SYNTHDIGITS,
    }
    loaded = [load(where) for load in domains.values()]

    def joined(part: str, most: int) -> tuple[Examples, np.ndarray]:
        """All domains' training or test examples, and for each which domain it is of."""
        xs, ys = [], []
        for data in loaded:
            own: Examples = getattr(data, part)
            share = most / len(own) if data.name == "mnist" else 1.0
            chosen = torch.from_numpy(
                stratified_share(own.labels.numpy(), share, random_state("digit5", data.name, part))
            )
            xs.append(in_colour(own.x[chosen]))
            ys.append(own.y[chosen].numpy())
        group = np.repeat(np.arange(len(ys)), [len(y) for y in ys])
        return Examples.of(np.concatenate(xs), np.concatenate(ys), 255.0, 0.5, 0.5), group

    (train, train_group), (test, test_group) = joined("train", 5_000), joined("test", 1_500)
    remark = "subsets of five domains, one re-made"
    return Dataset("digit5", train, test, tuple(range(10)), tuple(domains), train_group, test_group, remark)


def in_colour(x: torch.Tensor, side: int = 32) -> np.ndarray:
    """Bytes [n, 1 or 3, any, any] -> [n, 3, side, side], bilinear; what shrinks is smoothed first."""
    shrinks = max(x.shape[2:]) > side

    def resized(part: torch.Tensor) -> torch.Tensor:
        made = F.interpolate(part.float(), (side, side), mode="bilinear", align_corners=False, antialias=shrinks)
        return made.round().clamp(0, 255).to(torch.uint8)

    if x.shape[2:] != (side, side):
        x = torch.cat([resized(part) for part in x.split(1024)])
    return x.expand(-1, 3, -1, -1).numpy()


def tiny_imagenet(where: Path) -> Dataset:
    """25 of the 200 classes, from JPEGs."""
    from PIL import Image

    path = found("tiny_imagenet", where / "tiny_imagenet25.npz", "cs231n.stanford.edu/tiny-imagenet-200.zip")
    arrays = read_npz(path)
    parts = []
    for part in ("train", "test"):
        content, ends = arrays[f"jpeg_{part}"].tobytes(), arrays[f"off_{part}"]
        pictures = [
            np.asarray(Image.open(io.BytesIO(content[start:end])).convert("RGB")) for start, end in pairwise(ends)
        ]
        parts.append(Examples.of(_channels_first(np.stack(pictures)), arrays[f"y_{part}"], 255.0, MEAN, STD))
    labels = tuple(name.partition(",")[0] for name in arrays["names"].tolist())
    train, test = parts
    return Dataset("tiny_imagenet", train, test, labels, remark="subset of 25 classes")
