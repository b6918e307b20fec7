"""Image datasets, each from one npz file. docs/data.md says where they come from and what the files contain.

Most files have the same form, which `ImageFile` reads. The functions read the others.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from protofed.data.dataset import Dataset, check_arrays, require_file, split_off_test_set
from protofed.data.idx import read_idx
from protofed.data.npz_files import read_npz
from protofed.data.partitions.base import stratified_share
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.examples import Constant, Examples

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The mean and standard deviation of ImageNet's channels, as published."""


@dataclass(frozen=True)
class ImageFile:
    """An npz file with x_train, y_train, x_test and y_test. Images are bytes [n, side, side] or [n, side, side, 3].

    It may also have `classes` with the names of the classes, and `fine_to_coarse` or `species` with their superclasses.
    """

    name: str
    side: int
    published: str  # where the data come from
    mean: Constant
    std: Constant
    channels: int = 3
    classes: int = 10
    file: str = ""  # the file's name if it is not <name>.npz
    remark: str = ""

    def read(self, folder: Path) -> Dataset:
        """Read the dataset from the file in this folder."""
        path = require_file(self.name, folder / (self.file or f"{self.name}.npz"), self.published)
        return self.from_arrays(read_npz(path), str(path))

    def from_arrays(self, arrays: dict[str, np.ndarray], path: str) -> Dataset:
        """The dataset made of the arrays that were read from this path."""
        missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
        if missing:
            has = ", ".join(sorted(arrays)) or "none"
            raise UserError(f"{path} has no array {missing[0]}; it has {has}. docs/data.md describes the file.")
        shape = (self.side, self.side) if self.channels == 1 else (self.side, self.side, self.channels)
        parts = []
        for part in ("train", "test"):
            x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
            check_arrays(f"{self.name}: the {part} part in {path}", x, y, shape, self.classes)
            parts.append(Examples.of(_channels_first(x), y, 255.0, self.mean, self.std))
        train, test = parts
        labels = tuple(arrays["classes"].tolist()) if "classes" in arrays else tuple(range(self.classes))
        superclass = next(
            (arrays[key] for key in ("fine_to_coarse", "species") if key in arrays), np.zeros(0, np.int64)
        )
        return Dataset(self.name, train, test, labels, remark=self.remark, superclass=tuple(superclass.tolist()))


def _channels_first(x: np.ndarray) -> np.ndarray:
    """[n, height, width] or [n, height, width, channels] -> [n, channels, height, width]."""
    return x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1)


_MNIST = ImageFile("mnist", 28, "yann.lecun.com/exdb/mnist", 0.1307, 0.3081, channels=1)
USPS = ImageFile("usps", 16, "www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets", 0.5, 0.5, channels=1)
SVHN = ImageFile("svhn", 32, "ufldl.stanford.edu/housenumbers", 0.5, 0.5, remark="subset, crops re-made")
MNIST_M = ImageFile("mnist_m", 32, "yaroslav.ganin.net", 0.5, 0.5, remark="subset")
SYNTHDIGITS = ImageFile(
    "synthdigits",
    32,
    "yaroslav.ganin.net (the original; this file is re-made from free fonts)",
    0.5,
    0.5,
    file="synthdigits_remade.npz",
    remark="re-made",
)
CIFAR10 = ImageFile(
    "cifar10",
    32,
    "www.cs.toronto.edu/~kriz/cifar.html",
    (0.4914, 0.4822, 0.4465),
    (0.2023, 0.1994, 0.201),
    remark="subset",
)
CIFAR100 = ImageFile(
    "cifar100",
    32,
    "www.cs.toronto.edu/~kriz/cifar.html",
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
    classes=100,
    remark="subset",
)
PETS = ImageFile(
    "pets",
    64,
    "www.robots.ox.ac.uk/~vgg/data/pets",
    IMAGENET_MEAN,
    IMAGENET_STD,
    classes=20,
    remark="20 breeds, a subset",
)
_MNIST_IDX = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
"""The names of MNIST's four published files, which `read_idx` reads if there is no mnist.npz."""
COMPLETE_SIZES = {"cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257, "mnist_m": 59_001}
"""The number of training examples that was published. A file with fewer is a subset."""


def subset_or_complete(images: ImageFile, folder: Path) -> Dataset:
    """Read a dataset, and drop its remark "subset" if the file has all training examples that were published."""
    data = images.read(folder)
    return replace(data, remark="") if len(data.train) >= COMPLETE_SIZES[images.name] else data


def mnist(folder: Path) -> Dataset:
    """From mnist.npz, or from the four published IDX files."""
    if (folder / "mnist.npz").exists():
        return _MNIST.read(folder)
    return _MNIST.from_arrays(read_idx(folder), str(folder))


def has_mnist_idx(folder: Path) -> bool:
    """Whether the four published IDX files are where `read_idx` looks for them."""
    paths = [parent / name for parent in (folder, folder / "mnist") for name in _MNIST_IDX]
    found = {path.name for path in paths if path.exists() or path.with_name(f"{path.name}.gz").exists()}
    return len(found) == len(_MNIST_IDX)


def femnist(folder: Path) -> Dataset:
    """Digits of 12 clients. The test set is a fifth of each class of each client."""
    path = require_file("femnist", folder / "femnist_digits.npz", "github.com/TalwalkarLab/leaf")
    arrays = read_npz(path, "x", "y", "client")
    check_arrays(str(path), arrays["x"], arrays["y"], (28, 28), 10)
    return split_off_test_set(
        "femnist",
        _channels_first(arrays["x"]),
        arrays["y"],
        arrays["client"],
        tuple(map(str, range(12))),
        tuple(range(10)),
        {"scale": 255.0, "mean": 0.1307, "std": 0.3081},
        "digits of 12 clients",
    )


def office_caltech10(folder: Path) -> Dataset:
    """Four domains. No test set was published: it is a fifth of each class of each domain."""
    path = require_file(
        "office_caltech10", folder / "office_caltech10.npz", "people.eecs.berkeley.edu/~jhoffman/domainadapt"
    )
    arrays = read_npz(path, "x", "y", "domain", "domains", "classes")
    check_arrays(str(path), arrays["x"], arrays["y"], (64, 64, 3), 10)
    return split_off_test_set(
        "office_caltech10",
        _channels_first(arrays["x"]),
        arrays["y"],
        arrays["domain"],
        tuple(arrays["domains"].tolist()),
        tuple(arrays["classes"].tolist()),
        {"scale": 255.0, "mean": IMAGENET_MEAN, "std": IMAGENET_STD},
        "64x64, own split",
    )


def digit5(folder: Path) -> Dataset:
    """Five domains at 32x32x3. Of mnist only a part is used, about the size of the other domains."""
    readers: dict[str, Callable[[Path], Dataset]] = {
        "mnist": mnist,
        "usps": USPS.read,
        "svhn": SVHN.read,
        "mnist_m": MNIST_M.read,
        "synthdigits": SYNTHDIGITS.read,
    }
    domains = [read(folder) for read in readers.values()]

    def joined(part: str, mnist_size: int) -> tuple[Examples, np.ndarray]:
        """The training or test examples of all domains, and the number of the domain of each."""
        xs, ys = [], []
        for data in domains:
            examples: Examples = getattr(data, part)
            share = mnist_size / len(examples) if data.name == "mnist" else 1.0
            chosen = torch.from_numpy(
                stratified_share(examples.labels.numpy(), share, random_state("digit5", data.name, part))
            )
            xs.append(in_colour(examples.x[chosen]))
            ys.append(examples.y[chosen].numpy())
        group = np.repeat(np.arange(len(ys)), [len(y) for y in ys])
        return Examples.of(np.concatenate(xs), np.concatenate(ys), 255.0, 0.5, 0.5), group

    (train, train_group), (test, test_group) = joined("train", 5_000), joined("test", 1_500)
    remark = "subsets of five domains, one re-made"
    return Dataset("digit5", train, test, tuple(range(10)), tuple(readers), train_group, test_group, remark)


def in_colour(x: torch.Tensor, side: int = 32) -> np.ndarray:
    """Bytes [n, 1 or 3, height, width] -> [n, 3, side, side], bilinear. Images that shrink are smoothed first."""
    return torch.cat([resized(part, side) for part in x.split(1024)]).expand(-1, 3, -1, -1).numpy()


def resized(x: torch.Tensor, side: int) -> torch.Tensor:
    """Images [n, channels, height, width] -> [n, channels, side, side], bilinear; bytes are rounded.

    Images that shrink are smoothed first.
    """
    if x.shape[2:] == (side, side):
        return x
    shrinks = max(x.shape[2:]) > side
    values = F.interpolate(x.float(), (side, side), mode="bilinear", align_corners=False, antialias=shrinks)
    return values.round().clamp(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else values


def tiny_imagenet(folder: Path) -> Dataset:
    """25 of the 200 classes. The file has the images as JPEGs: all bytes in one array, and their offsets in another."""
    from PIL import Image

    path = require_file("tiny_imagenet", folder / "tiny_imagenet25.npz", "cs231n.stanford.edu/tiny-imagenet-200.zip")
    arrays = read_npz(path)
    parts = []
    for part in ("train", "test"):
        content, offsets = arrays[f"jpeg_{part}"].tobytes(), arrays[f"off_{part}"]
        pictures = [
            np.asarray(Image.open(io.BytesIO(content[start:end])).convert("RGB")) for start, end in pairwise(offsets)
        ]
        parts.append(
            Examples.of(_channels_first(np.stack(pictures)), arrays[f"y_{part}"], 255.0, IMAGENET_MEAN, IMAGENET_STD)
        )
    labels = tuple(name.partition(",")[0] for name in arrays["names"].tolist())
    train, test = parts
    return Dataset("tiny_imagenet", train, test, labels, remark="subset of 25 classes")
