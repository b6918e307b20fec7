"""Blocks of a similarity map: the cosines between the classes of two superclasses (FedNH's Fig. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.experiment.stored import StoredRun
from protofed.pictures.embedded import class_positions
from protofed.pictures.similarity import SimilarityPanel, similarity_panels, write_cosines
from protofed.pictures.style import COLUMN, make_panels, set_wrapped_title, with_column_fonts


class SimilarityBlock(NamedTuple):
    """The cosines between the classes of two superclasses."""

    title: str
    rows: list[str | int]
    columns: list[str | int]
    cosines: np.ndarray  # [rows, columns]


def block_of(panel: SimilarityPanel, first: int, second: int) -> SimilarityBlock:
    """The block of two superclasses, given by their numbers."""
    rows, columns = (
        [at for at, number in enumerate(panel.superclass) if number == wanted] for wanted in (first, second)
    )
    return SimilarityBlock(
        panel.title,
        [panel.labels[at] for at in rows],
        [panel.labels[at] for at in columns],
        panel.cosines[np.ix_(rows, columns)],
    )


def choose_blocks(panel: SimilarityPanel, classes: Sequence[str] = ()) -> list[SimilarityBlock]:
    """The blocks of the superclasses of each two of these classes; without classes, the most and the least similar."""
    if len(set(panel.superclass)) < 2:
        raise UserError("This picture needs classes of at least two superclasses, such as those of cifar100 or pets.")
    if len(classes) % 2:
        raise UserError(f"--class: got {len(classes)} classes; give two for each block.")
    if classes:
        numbers = [panel.superclass[at] for at in class_positions(panel.labels, classes)]
        return [block_of(panel, *pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    every = [block_of(panel, *pair) for pair in combinations(sorted(set(panel.superclass)), 2)]
    every.sort(key=lambda block: float(block.cosines.mean()))
    return [
        every[-1]._replace(title=f"{panel.title}, most similar"),
        every[0]._replace(title=f"{panel.title}, least similar"),
    ]


def block_picture(runs: Sequence[StoredRun], clients: Sequence[int], classes: Sequence[str]) -> Figure:
    """Blocks of the maps that `similarity.similarity_picture` draws, with the names of the classes."""
    panels = similarity_panels(runs, clients)
    return _draw_blocks([block for panel in panels for block in choose_blocks(panel, classes)])


@with_column_fonts
def _draw_blocks(blocks: Sequence[SimilarityBlock]) -> Figure:
    """A map per block, all with the same colours."""
    picture, axes = make_panels(len(blocks), 2, COLUMN / 2 + 0.5)
    picture.set_layout_engine("constrained")
    every = np.concatenate([block.cosines.ravel() for block in blocks])
    low, high = every.min(), max(every.max(), every.min() + 1e-6)
    for axis, block in zip(axes, blocks, strict=True):
        image = axis.imshow(block.cosines, cmap="viridis", vmin=low, vmax=high, interpolation="nearest")
        axis.set_yticks(range(len(block.rows)), [str(label)[:16] for label in block.rows], fontsize=5.5)
        axis.set_xticks(range(len(block.columns)), [str(label)[:16] for label in block.columns], fontsize=5.5)
        axis.tick_params(axis="x", rotation=90)
        set_wrapped_title(axis, f"{block.title}, mean {block.cosines.mean():.2f}", min(len(blocks), 2))
        axis.title.set_fontsize(6.5)
        if block.cosines.size <= 50:
            write_cosines(axis, block.cosines, float(low + high) / 2, 5.0)
    picture.colorbar(image, ax=axes, label="cosine", shrink=0.75)
    return picture
