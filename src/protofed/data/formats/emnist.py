"""EMNIST as published: IDX files or a MATLAB file, of any of its six splits; MNIST's IDX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from protofed.data.formats.published import Arrays, ConvertOptions, checked_class_numbers, need_file, read_content
from protofed.data.formats.svhn import read_matlab
from protofed.data.idx import read_idx, read_idx_file
from protofed.errors import UserError

_SPLITS = ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")


def mnist_idx(folder: Path, options: ConvertOptions) -> Arrays:
    """MNIST's four IDX files."""
    arrays = read_idx(folder)
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], checked_class_numbers(arrays[f"y_{part}"], 10, f"{folder}, {part}")
        if len(images) != len(labels):
            raise UserError(
                f"{folder}, {part}: it has {len(images):,} images but {len(labels):,} labels. Get the files again."
            )
    return {**arrays, "classes": np.array([str(digit) for digit in range(10)])}


def emnist(source: Path, options: ConvertOptions) -> Arrays:
    """A file emnist-SPLIT.mat, or a folder with the four IDX files emnist-SPLIT-train-images-idx3-ubyte(.gz), ...

    Images are published transposed and are turned here. Writers, which only the .mat files have, become clients.
    """
    if source.is_file():
        return _from_matlab(source)
    splits = [split for split in _SPLITS if any(source.glob(f"emnist-{split}-train-images-idx3-ubyte*"))]
    if len(splits) != 1:
        found = ", ".join(splits) or "none"
        raise UserError(
            f"{source} must have the files of exactly one split of EMNIST (emnist-balanced-train-images-idx3-ubyte.gz, "
            f"...); it has {found}. Give a folder with the files of one split, or a file emnist-SPLIT.mat."
        )
    split = splits[0]
    arrays: dict[str, np.ndarray] = {"name": np.array(f"emnist {split}")}
    mapping = _text_mapping(need_file(source, f"emnist-{split}-mapping.txt"))
    for part, end in (("train", ""), ("test", "_test")):
        stem = f"emnist-{split}-{part}"
        paths = [
            need_file(source, f"{stem}-{kind}-idx{dims}-ubyte", f"{stem}-{kind}-idx{dims}-ubyte.gz")
            for kind, dims in (("images", 3), ("labels", 1))
        ]
        x, y = (read_idx_file(path) for path in paths)
        arrays |= _part(x.reshape(len(x), -1), y, mapping, str(paths[0]), end)
    return {**arrays, "classes": np.array(list(mapping.values()))}


def _from_matlab(path: Path) -> Arrays:
    """The structure `dataset` with train and test (images, labels, writers) and mapping."""
    try:
        dataset = read_matlab(path)["dataset"][0, 0]
        codes = dataset["mapping"]
        mapping = {int(row[0]): _name([int(code) for code in row[1:]]) for row in codes}
        arrays: dict[str, np.ndarray] = {"name": np.array(path.stem.replace("-", " ", 1))}
        for part, end in (("train", ""), ("test", "_test")):
            fields = dataset[part][0, 0]
            arrays |= _part(fields["images"][()], fields["labels"].reshape(-1), mapping, f"{path}, {part}", end)
            arrays[f"client{end}"] = fields["writers"].reshape(-1).astype(np.int64)
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise UserError(
            f"{path} is not a MATLAB file of EMNIST: {problem!r}. It must have the structure `dataset` with train, "
            "test and mapping. Get the file again."
        ) from problem
    return {**arrays, "classes": np.array(list(mapping.values()))}


def _part(
    images: np.ndarray, labels: np.ndarray, mapping: dict[int, str], owner: str, end: str
) -> dict[str, np.ndarray]:
    """Images [n, 784] of one part, turned, and labels as positions in the mapping."""
    if images.ndim != 2 or images.shape != (len(labels), 784):
        raise UserError(f"{owner}: images {list(images.shape)} for {len(labels):,} labels; must be [n, 784] and n.")
    places = {label: place for place, label in enumerate(mapping)}  # the split `letters` counts from 1
    numbers = np.array([places.get(int(label), -1) for label in labels], np.int64)
    turned = images.reshape(-1, 1, 28, 28).transpose(0, 1, 3, 2).astype(np.uint8)
    return {f"x{end}": np.ascontiguousarray(turned), f"y{end}": checked_class_numbers(numbers, len(mapping), owner)}


def _text_mapping(path: Path) -> dict[int, str]:
    """The lines of a mapping file: a label and the codes of its characters."""
    try:
        rows = [[int(word) for word in line.split()] for line in read_content(path).decode("ascii").splitlines()]
        return {row[0]: _name(row[1:]) for row in rows if row}
    except ValueError as problem:
        raise UserError(f"{path} is not a mapping of EMNIST: {problem}. Get the file again.") from problem


def _name(codes: list[Any]) -> str:
    """The character of a class; of a class of upper and lower case letters, the upper one.

    >>> _name([65, 97])
    'A'
    """
    return chr(codes[0])
