"""Pictures of pixels: masks, predictions and entropy maps of test images, and overlays of predictions on images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from protofed.errors import UserError
from protofed.examples import IGNORED, Examples
from protofed.experiment.groups import group_by_setting
from protofed.experiment.stored import StoredRun
from protofed.measures.entropy import EntropyMaps, entropy_maps
from protofed.measures.question import state_with_data
from protofed.pictures.style import COLUMN, with_column_fonts

_IMAGES = 4
"""Test images in a picture."""
_LABELS = 0.2
"""Share of the picture's width for the names of the rows."""
_OPACITY = 0.55
"""Of the colours of an overlay."""
_IGNORED_COLOUR = (224, 224, 192)


class MapRows(NamedTuple):
    """What one model makes of the images."""

    title: str
    labels: np.ndarray  # [n, height, width]: the predicted classes
    entropies: EntropyMaps


def class_colours(classes: int) -> np.ndarray:
    """The colours [classes, 3] of Pascal VOC, as bytes: black for class 0, and different ones for up to 255 classes.

    >>> class_colours(3).tolist()
    [[0, 0, 0], [128, 0, 0], [0, 128, 0]]
    """
    colours = np.zeros((classes, 3), np.int64)
    for label in range(classes):
        for bit in range(8):
            for channel in range(3):
                colours[label, channel] |= (label >> (3 * bit + channel) & 1) << (7 - bit)
    return colours.astype(np.uint8)


def coloured(labels: np.ndarray, classes: int) -> np.ndarray:
    """Masks [..., height, width] as colours [..., height, width, 3], with a light colour for ignored pixels."""
    table = np.tile(np.array(_IGNORED_COLOUR, np.uint8), (IGNORED + 1, 1))
    table[:classes] = class_colours(classes)
    return np.asarray(table[labels])


def as_bytes(x: np.ndarray) -> np.ndarray:
    """Raw images [n, channels, height, width] as bytes [n, height, width, 3]. Other values are scaled to 0 to 255."""
    images = np.moveaxis(x, 1, -1)[..., :3]
    images = np.repeat(images, 3, -1) if images.shape[-1] != 3 else images
    if images.dtype != np.uint8:
        low, high = images.min(initial=0), images.max(initial=1)
        images = (255 * (images - low) / max(high - low, 1e-12)).astype(np.uint8)
    return images


def overlaid(x: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Images as bytes [n, height, width, 3], mixed with the colours of the predicted classes; the background stays."""
    images, colours = as_bytes(x).astype(np.float32), coloured(labels, classes)
    is_object = (labels != 0)[..., None]
    return np.where(is_object, (1 - _OPACITY) * images + _OPACITY * colours, images).round().astype(np.uint8)


def write_overlays(x: np.ndarray, labels: np.ndarray, classes: int, folder: Path) -> None:
    """Write per image NUMBER-mask.png, whose pixels are class numbers with a palette, and NUMBER-overlay.png."""
    from PIL import Image

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} already exists and is not empty. Give another --draw.")
    folder.mkdir(parents=True, exist_ok=True)
    palette = coloured(np.arange(IGNORED + 1), classes).ravel().tolist()
    for number, (overlay, mask) in enumerate(zip(overlaid(x, labels, classes), labels, strict=True)):
        picture = Image.fromarray(mask.astype(np.uint8), mode="P")
        picture.putpalette(palette)
        picture.save(folder / f"{number:04d}-mask.png")
        Image.fromarray(overlay).save(folder / f"{number:04d}-overlay.png")


@with_column_fonts
def map_picture(runs: Sequence[StoredRun], clients: Sequence[int] = ()) -> Figure:
    """Test images and their masks; per run the prediction and both entropies (prototype-guided FL, Fig. 6 and S4).

    The model is that of client 0, which is the server's if clients share one, or those of `clients`.
    """
    rows: list[MapRows] = []
    for run, title in zip(runs, _short_titles(runs), strict=True):
        state = state_with_data(run.result())
        members = state.members
        if not members.nets[0].grid:
            raise UserError(f"{run.folder}: its net gives one label per input; maps need a label per pixel.")
        for client in clients or (0,):
            model = state.model(client)
            model.must_be_finite()
            test = _chosen(members.balanced[0])
            x, masks = test.take(torch.arange(len(test)))
            labels = model.compute_scores(x)["head"].argmax(-1).reshape(masks.shape)
            name = f"{title}, {members.client_name(client)}" if len(clients) > 1 else title
            rows.append(MapRows(name, labels.numpy(), entropy_maps(model.net, model.params, x)))
    return _drawn(test, masks.numpy(), rows, members.labels)


def _short_titles(runs: Sequence[StoredRun]) -> list[str]:
    """The name of each run's group, which is short enough for the side of the picture."""
    names = {id(run): name for name, group in group_by_setting(runs).items() for run in group}
    return [names[id(run)] for run in runs]


def _chosen(test: Examples) -> Examples:
    """A few images of different labels, always the same."""
    labels = test.labels.numpy()
    first = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)]
    evenly = [first[at * len(first) // _IMAGES] for at in range(_IMAGES)] if len(first) > _IMAGES else first
    return test.subset(np.array(evenly))


def _drawn(test: Examples, masks: np.ndarray, rows: Sequence[MapRows], names: Sequence[str | int]) -> Figure:
    """The picture: a column per image; the images, their masks, and three rows per model. Entropies share scales."""
    number, classes = len(test), len(names)
    lines = 2 + 3 * len(rows)
    height, width = masks.shape[1:]
    row_height = COLUMN * (1 - _LABELS) / number * height / width
    picture, axes = plt.subplots(lines, number, figsize=(COLUMN, row_height * lines), squeeze=False)
    content: list[tuple[str, np.ndarray, tuple[float, float] | None]] = [
        ("image", as_bytes(test.x[test.index].numpy()), None),
        ("mask", coloured(masks, classes), None),
    ]
    softmax = (0.0, float(np.log(classes)))
    features = (
        min(float(row.entropies.features.min()) for row in rows),
        max(float(row.entropies.features.max()) for row in rows),
    )
    for row in rows:
        content.append((row.title, coloured(row.labels, classes), None))
        content.append((_with_scale("softmax entropy", softmax), row.entropies.softmax.numpy(), softmax))
        content.append((_with_scale("feature entropy", features), row.entropies.features.numpy(), features))
    for line, (title, images, scale) in zip(axes, content, strict=True):
        limits = {"vmin": scale[0], "vmax": scale[1]} if scale and scale[1] > scale[0] else {}
        for axis, image in zip(line, images, strict=True):
            axis.imshow(image, interpolation="nearest", **limits)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(title if scale else fill(title, 16), rotation=0, ha="right", va="center", fontsize=6)
    picture.subplots_adjust(left=_LABELS, right=1, top=1, bottom=0, wspace=0.04, hspace=0.04)
    shown = np.unique(np.concatenate([masks.ravel(), *(row.labels.ravel() for row in rows)]))
    colours = coloured(shown, classes) / 255
    picture.legend(
        [Patch(facecolor=colour, edgecolor="black", linewidth=0.4) for colour in colours],
        ["no label" if label == IGNORED else str(names[label]) for label in shown],
        loc="upper center",
        bbox_to_anchor=(0.5 + _LABELS / 2, -0.05 / lines),
        ncols=min(4, len(shown)),
        frameon=False,
        fontsize=6,
    )
    return picture


def _with_scale(title: str, scale: tuple[float, float]) -> str:
    """The name of a row with the values of its darkest and its lightest colour."""
    return f"{title}\n{scale[0]:.1f} dark, {scale[1]:.1f} light"
