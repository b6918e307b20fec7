"""Reads IDX, the file format in which MNIST and EMNIST are published."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from protofed.errors import UserError


def read_idx(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of MNIST's four published IDX files, gzipped or not, in this folder or its subfolder mnist/."""
    names = {
        "x_train": "train-images-idx3-ubyte",
        "y_train": "train-labels-idx1-ubyte",
        "x_test": "t10k-images-idx3-ubyte",
        "y_test": "t10k-labels-idx1-ubyte",
    }
    arrays = {}
    for key, name in names.items():
        candidates = [parent / file for parent in (folder, folder / "mnist") for file in (name, f"{name}.gz")]
        path = next((candidate for candidate in candidates if candidate.exists()), None)
        if path is None:
            raise UserError(
                f"mnist: there is neither mnist.npz nor {name}(.gz) in {folder}. Get the four files as published by "
                "LeCun et al. (yann.lecun.com/exdb/mnist) and set data.root or $PROTOFED_DATA to the folder that has "
                "them, or use data.name=digits."
            )
        arrays[key] = read_idx_file(path)
    return arrays


def read_idx_file(path: Path) -> np.ndarray:
    """The bytes of an IDX file, gzipped or not, in their shape."""
    try:
        content = path.read_bytes()
        raw = bytearray(gzip.decompress(content) if path.suffix == ".gz" else content)  # torch needs writable data
        shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
    except (OSError, ValueError, IndexError, EOFError, zlib.error) as problem:
        raise UserError(f"{path} is not a complete IDX file: {problem}. Get the file again.") from problem
