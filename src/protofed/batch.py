"""A batch of inputs with labels and weights. If every pixel has a label, the labels are rows, one per pixel.

A net that labels pixels returns embeddings and logits in rows, too: a map [n, channels, height, width] becomes
[n * height * width, channels]. Losses, prototypes and measures therefore treat a pixel as they treat an example.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protofed.examples import IGNORED

__all__ = ["Batch", "Grid", "labels_and_weights", "nearest_rows", "rows_of_maps"]

Grid = tuple[int, int]
"""The height and width of a map in pixels."""


class Batch(NamedTuple):
    """Normalised inputs, their labels, and the weight of each label in the loss."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n], or [n * height * width] if every pixel has a label; always in [0, classes)
    weight: Tensor  # like y; 0: padding or an ignored pixel

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Batch:
        """A batch in which every label counts the same. Of masks y [n, height, width], ignored pixels count nothing."""
        return cls(x, *labels_and_weights(y, x.new_ones(len(y))))


def labels_and_weights(y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and their weights [..., rows], from labels or masks y and the weights [..., n] of the examples.

    Labels [..., n] are returned as they are. Of masks [..., n, height, width], an ignored pixel gets the label 0 and
    the weight 0, and every other pixel the weight of its example.

    >>> labels_and_weights(torch.tensor([[[2, 255]], [[1, 1]]]), torch.tensor([1.0, 0.0]))
    (tensor([2, 0, 1, 1]), tensor([1., 0., 0., 0.]))
    """
    if y.dim() == weight.dim():
        return y, weight
    is_labelled = y != IGNORED
    pixel_weight = is_labelled * weight[..., None, None]
    return torch.where(is_labelled, y, 0).flatten(-3), pixel_weight.flatten(-3)


def rows_of_maps(maps: Tensor) -> Tensor:
    """Maps [n, channels, height, width] as rows [n * height * width, channels]."""
    return maps.permute(0, 2, 3, 1).flatten(0, 2)


def nearest_rows(rows: Tensor, grid: Grid, wanted: Grid) -> Tensor:
    """Rows of maps with the size `grid`, brought to the size `wanted`: each new pixel takes the nearest old one.

    >>> nearest_rows(torch.arange(16), (4, 4), (2, 2)).tolist(), nearest_rows(torch.arange(2), (1, 2), (1, 4)).tolist()
    ([5, 7, 13, 15], [0, 0, 1, 1])
    """
    if grid == wanted:
        return rows
    (height, width), (new_height, new_width) = grid, wanted
    down = [(2 * row + 1) * height // (2 * new_height) for row in range(new_height)]  # of the centre of each new pixel
    across = [(2 * column + 1) * width // (2 * new_width) for column in range(new_width)]
    nearest = torch.tensor([row * width + column for row in down for column in across], device=rows.device)
    by_map: Tensor = rows.unflatten(0, (-1, height * width))
    return by_map.index_select(1, nearest).flatten(0, 1)
