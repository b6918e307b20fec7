"""Pascal VOC 2012 with masks, from its published folder, as in prototype-guided FL (Michieli & Ozay 2021, S1.3)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protofed.data.dataset import Dataset, listed_file
from protofed.data.images import IMAGENET_MEAN, IMAGENET_STD
from protofed.data.masks import BACKGROUND
from protofed.errors import UserError
from protofed.examples import IGNORED, Examples

_VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_MACRO_CLASSES = {
    "person": ("person",),
    "vehicles": ("aeroplane", "bicycle", "boat", "bus", "car", "motorbike", "train"),
    "household": ("bottle", "chair", "diningtable", "pottedplant", "sofa", "tvmonitor"),
    "animals": ("bird", "cat", "cow", "dog", "horse", "sheep"),
}
"""S1.3: the groups of classes."""
_LISTS = {"train": "train", "test": "val"}
"""The published lists in ImageSets/Segmentation; no masks of the test set are public."""
_VOC_SIDE = 128
"""Images and masks are resized to this number of pixels squared."""


def voc(folder: Path, macro: bool = False) -> Dataset:
    """The images of VOC 2012 that show a single class, with their masks; the images of the list val are the test set.

    The label of an image is its class. `macro`: the classes of pixels are background and four groups of classes.
    """
    root = _voc_root(folder)
    parts = {part: _read_list(root, list_name) for part, list_name in _LISTS.items()}
    classes: tuple[str, ...] = (BACKGROUND, *_VOC_CLASSES)
    table = np.full(IGNORED + 1, IGNORED, np.uint8)
    table[: len(classes)] = np.arange(len(classes))
    if macro:
        classes = (BACKGROUND, *_MACRO_CLASSES)
        for number, group in enumerate(_MACRO_CLASSES.values(), 1):
            table[[1 + _VOC_CLASSES.index(name) for name in group]] = number
    train, test = (
        Examples.of(x, y, 255.0, IMAGENET_MEAN, IMAGENET_STD, mask=table[masks]) for x, y, masks in parts.values()
    )
    name, remark = ("voc_macro" if macro else "voc"), f"single-class images at {_VOC_SIDE}x{_VOC_SIDE}"
    return Dataset(name, train, test, classes, remark=remark, image_labels=_VOC_CLASSES)


def _voc_root(folder: Path) -> Path:
    """The folder VOC2012: `folder` itself, or inside of it, or in VOCdevkit."""
    for root in (folder, folder / "VOC2012", folder / "VOCdevkit" / "VOC2012"):
        if (root / "SegmentationClass").is_dir():
            return root
    raise UserError(
        f"voc: there is no folder VOC2012 with SegmentationClass, JPEGImages and ImageSets in {folder}. The data are "
        "published at host.robots.ox.ac.uk/pascal/VOC. Set data.root to the folder that has it."
    )


def _read_list(root: Path, list_name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images [n, 3, side, side], labels [n] and masks [n, side, side] of a published list, of single-class images."""
    from PIL import Image

    file = root / "ImageSets" / "Segmentation" / f"{list_name}.txt"
    if not file.is_file():
        raise UserError(f"voc: there is no file {file}. Get the published archive again.")
    images, labels, masks = [], [], []
    for name in file.read_text(encoding="utf-8").split():
        mask_file, photograph_file = (
            listed_file(root / inner, f"{name}{ending}", str(file))
            for inner, ending in (("SegmentationClass", ".png"), ("JPEGImages", ".jpg"))
        )
        try:
            with Image.open(mask_file) as picture:
                classes = set(np.unique(np.asarray(picture)).tolist()) - {0, IGNORED}
                mask = np.asarray(picture.resize((_VOC_SIDE, _VOC_SIDE), Image.Resampling.NEAREST))
            if len(classes) != 1 or mask.ndim != 2:
                continue
            with Image.open(photograph_file) as photograph:
                small = photograph.convert("RGB").resize((_VOC_SIDE, _VOC_SIDE), Image.Resampling.BILINEAR)
        except OSError as problem:
            raise UserError(f"voc: the image {name} of {file.name} cannot be read: {problem}.") from problem
        images.append(np.moveaxis(np.asarray(small), 2, 0))
        labels.append(classes.pop() - 1)
        masks.append(mask)
    if not images:
        raise UserError(f"voc: {file} lists no image with a single class.")
    return np.stack(images), np.array(labels, np.int64), np.stack(masks).astype(np.uint8)
