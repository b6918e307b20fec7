"""Datasets by name. Each is one array in memory; looked up in `data.root`, $PROTOFED_DATA or ~/.cache/protofed."""

from __future__ import annotations

import gzip
import os
import zipfile
import zlib
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protofed.data.examples import Examples
from protofed.data.partition import a_fifth
from protofed.draws import random_state
from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Dataset:
    """Training examples for the clients, and a balanced test set that no client trains on."""

    name: str
    train: Examples
    test: Examples
    classes: int


def folder(root: str) -> Path:
    """Where data files are looked for."""
    return Path(root or os.environ.get("PROTOFED_DATA") or "~/.cache/protofed").expanduser()


def digits(root: str) -> Dataset:
    """8x8 handwritten digits of scikit-learn (1,797 images; 4 of 5 to train). Always there."""
    # The file that sklearn.datasets.load_digits reads: importing that takes longer than the first round.
    (package,) = util.find_spec("sklearn").submodule_search_locations  # type: ignore
    table = np.loadtxt(Path(package) / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.int64)
    images, y = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.uint8), table[:, -1]
    test = a_fifth(y, random_state("digits", "split"))  # the same for every seed: it stands in for a published split
    train, exam = (Examples.of(images[part], y[part], scale=16.0, mean=0.3047, std=0.3757) for part in (~test, test))
    return Dataset("digits", train, exam, classes=10)


def mnist(root: str) -> Dataset:
    """28x28 handwritten digits (60,000 / 10,000), from mnist.npz or the published IDX files."""
    where = folder(root)
    keys = ("x_train", "y_train", "x_test", "y_test")
    arrays = read_npz(where / "mnist.npz", *keys) if (where / "mnist.npz").exists() else read_idx(where)

    def part(name: str) -> Examples:
        x, y = arrays[f"x_{name}"], arrays[f"y_{name}"]
        if x.shape[1:] != (28, 28) or y.shape != (len(x),):
            raise UserError(
                f"mnist: the {name} part in {where} has images {list(x.shape)} and labels {list(y.shape)}, "
                "not [n, 28, 28] and [n]. Get the file again."
            )
        if not np.issubdtype(y.dtype, np.integer) or y.min(initial=0) < 0 or y.max(initial=0) > 9:
            raise UserError(
                f"mnist: the {name} labels in {where} are not whole numbers from 0 to 9. Get the file again."
            )
        return Examples.of(x[:, None], y, scale=255.0, mean=0.1307, std=0.3081)

    return Dataset("mnist", part("train"), part("test"), classes=10)


def read_npz(path: Path, *keys: str) -> dict[str, np.ndarray]:
    """The arrays of a file that go by these names."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:  # numpy alone leaves it open
            return {key: stored[key] for key in keys}
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as problem:
        said = str(problem).strip("'\"") if isinstance(problem, KeyError) else problem
        raise UserError(
            f"{path} cannot be read as an npz with {', '.join(keys)}: {said}. Get the file again."
        ) from problem


def read_idx(where: Path) -> dict[str, np.ndarray]:
    """The four published IDX files of MNIST, gzipped or not."""
    names = {
        "x_train": "train-images-idx3-ubyte", "y_train": "train-labels-idx1-ubyte",
        "x_test": "t10k-images-idx3-ubyte", "y_test": "t10k-labels-idx1-ubyte",
    }  # fmt: skip
    arrays = {}
    for key, name in names.items():
        places = [folder / file for folder in (where, where / "mnist") for file in (name, f"{name}.gz")]
        path = next((place for place in places if place.exists()), None)
        if path is None:
            raise UserError(
                f"mnist is not in {where}: it wants mnist.npz, or {name}(.gz) and its three companions as published by "
                "LeCun et al. (yann.lecun.com/exdb/mnist). Set data.root or $PROTOFED_DATA to the folder that has "
                "them, or use data.name=digits."
            )
        try:
            content = path.read_bytes()
            raw = bytearray(gzip.decompress(content) if path.suffix == ".gz" else content)  # torch wants to own it
            shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
            arrays[key] = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
        except (OSError, ValueError, IndexError, EOFError, zlib.error) as problem:
            raise UserError(f"{path} is not a complete IDX file: {problem}. Get the file again.") from problem
    return arrays


SOURCES: dict[str, Callable[[str], Dataset]] = {"digits": digits, "mnist": mnist}
