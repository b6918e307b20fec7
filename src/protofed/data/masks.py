"""Images in which every pixel has a class. docs/data.md says what the files contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from protofed.data.dataset import Dataset, require_file
from protofed.data.images import PETS
from protofed.data.labels import class_names
from protofed.data.npz_files import read_npz
from protofed.errors import UserError
from protofed.examples import IGNORED, Examples

BACKGROUND = "background"
"""The name of class 0 of masks."""


def pets_masks(folder: Path, macro: bool = False) -> Dataset:
    """Photographs of 20 breeds with masks: the background is class 0, breeds are 1 to 20, and borders are ignored.

    `macro`: the classes of pixels are background, cat and dog. Images are divided among clients by breed in both cases.
    """
    path = require_file("pets_masks", folder / "pets.npz", PETS.published)
    arrays = read_npz(path, "x_train", "y_train", "m_train", "x_test", "y_test", "m_test", "classes", "species")
    images = PETS.from_arrays(arrays, str(path))
    classes: tuple[str, ...] = (BACKGROUND, *map(str, images.labels))
    numbers = np.arange(len(classes))
    if macro:
        classes, numbers = (BACKGROUND, "cat", "dog"), np.concatenate([[0], 1 + arrays["species"].astype(np.int64)])
    train, test = (
        with_masks(part, _renumbered(arrays[key], numbers, str(path)), str(path))
        for part, key in ((images.train, "m_train"), (images.test, "m_test"))
    )
    name = "pets_masks_macro" if macro else "pets_masks"
    return replace(images, name=name, labels=classes, image_labels=images.labels, superclass=(), train=train, test=test)


def with_masks(examples: Examples, masks: np.ndarray, owner: str) -> Examples:
    """The images with a mask each; an error if the masks do not have their size. `owner` begins the error message."""
    expected = (len(examples.x), *examples.shape[1:])
    if len(examples.shape) != 3 or masks.shape != expected:
        images = tuple(examples.x.shape)
        shapes = f"{owner}: masks of shape {list(masks.shape)} do not fit images of shape {list(images)}"
        if masks.shape == images:
            raise UserError(f"{shapes}: images must have an axis for channels. Use x[:, None].")
        if len(images) == 4 and images[3] in (1, 3, 4) and masks.shape == images[:3]:
            raise UserError(f"{shapes}: images must have their channels first. Use x.transpose(0, 3, 1, 2).")
        raise UserError(f"{shapes}; must be {list(expected)}.")
    return Examples.of(
        examples.x.numpy(),
        examples.y.numpy(),
        examples.scale,
        examples.mean,
        examples.std,
        examples.fill,
        check_masks(masks, owner),
    )


def check_masks(masks: np.ndarray, owner: str) -> np.ndarray:
    """Masks as bytes; an error unless they are whole numbers from 0 to 255."""
    allowed = f"a class from 0 to {IGNORED - 1}, or {IGNORED} for a pixel without a label"
    if masks.dtype.kind not in "biu":
        raise UserError(f"{owner}: got masks of type {masks.dtype}; a pixel must be a whole number: {allowed}.")
    for value in (masks.min(initial=0), masks.max(initial=0)):
        if not 0 <= value <= IGNORED:
            raise UserError(f"{owner}: got masks with the value {value}; a pixel must be {allowed}.")
    return masks.astype(np.uint8)


def main_classes(masks: np.ndarray) -> np.ndarray:
    """The most frequent class of each mask [n, height, width] other than 0, the background; 0 if there is no other.

    >>> main_classes(np.array([[[0, 0], [2, 255]], [[0, 0], [0, 0]]]))
    array([2, 0])
    """
    counts = np.zeros((len(masks), IGNORED + 1), np.int64)
    for count, mask in zip(counts, check_masks(masks, "mask"), strict=True):
        count += np.bincount(mask.ravel(), minlength=IGNORED + 1)
    objects = counts[:, 1:IGNORED]
    return np.where(objects.any(1), objects.argmax(1) + 1, 0)


def mask_classes(
    masks: Sequence[np.ndarray], classes: int | Sequence[str | int] | None, owner: str
) -> tuple[str | int, ...]:
    """The names of the classes of pixels: those given as `classes` (or that many numbers), else all up to the highest.

    `owner` begins the error messages.
    """
    values = np.unique(np.concatenate([np.unique(mask) for mask in masks])).astype(np.int64)
    values = values[values != IGNORED]
    if not len(values):
        raise UserError(
            f"{owner}: no pixel of its masks has a label: all values are {IGNORED}. Label some pixels, with classes "
            "from 0."
        )
    names = class_names([values], classes)
    if values.max() >= len(names):
        raise UserError(
            f"{owner}: its masks have the class {values.max()}, but there are {len(names)} classes. Use 0 to "
            f"{len(names) - 1}, or {IGNORED} for a pixel without a label."
        )
    return names


def _renumbered(masks: np.ndarray, numbers: np.ndarray, owner: str) -> np.ndarray:
    """Masks with the new number of each class. Ignored pixels stay."""
    if unknown := set(np.unique(masks).tolist()) - {*range(len(numbers)), IGNORED}:
        raise UserError(f"{owner}: its masks have the unknown class {min(unknown)}. docs/data.md describes the file.")
    table = np.full(IGNORED + 1, IGNORED, np.uint8)
    table[: len(numbers)] = numbers
    return np.asarray(table[masks])
