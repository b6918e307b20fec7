"""The partition of an experiment: training examples per client and class, and the sizes of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from protofed.pictures.style import COLOURS, COLUMN, open_axes, use_log_ticks, with_column_fonts, write_picture

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.experiment.members import Members

_BLUE = COLOURS[0]
_MAX_BUBBLE_CLIENTS = 60
"""With more clients than this, bubbles would overlap; sizes and numbers of classes are drawn instead."""


def _class_counts(members: Members) -> np.ndarray:
    """Training examples per client and class [clients, classes]."""
    return np.stack([train.labels.bincount(minlength=len(members.example_labels)).numpy() for train in members.train])


@with_column_fonts
def draw_holdings(members: Members, title: str) -> Figure:
    """The training examples of each client."""
    counts = _class_counts(members)
    picture = _bubbles(members, counts) if len(counts) <= _MAX_BUBBLE_CLIENTS else _distributions(counts)
    picture.tight_layout()
    picture.suptitle(f"{title}\n{len(counts)} clients, {counts.sum():,} training examples", y=1.0, va="bottom")
    return picture


def write_holdings(members: Members, title: str, out: Path) -> None:
    """Write the picture in the format that the file name's ending says."""
    write_picture(draw_holdings(members, title), out)


def _bubbles(members: Members, counts: np.ndarray) -> Figure:
    """A bubble per client and class, with an area proportional to the number of examples; client sizes on top."""
    clients, classes = counts.shape
    width, height = 0.6 + 0.14 * clients, 0.6 + 0.13 * min(classes, 40)
    picture, (top, main) = plt.subplots(
        2, 1, sharex=True, height_ratios=[1, max(2 * height, 2)], figsize=(max(width, COLUMN), max(height, 1.3) + 0.7)
    )
    top.bar(range(clients), counts.sum(1), color=_BLUE)
    top.set_ylabel("examples")
    client, label = np.nonzero(counts)
    largest = counts.max() or 1
    main.scatter(client, label, s=45 * counts[client, label] / largest, color=_BLUE, alpha=0.8, linewidths=0)
    main.set_xlabel(f"client (largest bubble: {largest:,} examples)")
    main.set_ylabel("class")
    main.set_ylim(-0.7, classes - 0.3)
    if classes <= 25:
        main.set_yticks(range(classes), [str(name)[:18].rstrip("_ ") for name in members.example_labels])
    names = members.names or members.groups
    if any(names) and clients <= 30:
        main.set_xticks(range(clients), names, rotation=60, ha="right")
    else:
        main.set_xticks(range(0, clients, -(-clients // 18)))
    for axes in (top, main):
        open_axes(axes)
    return picture


def _distributions(counts: np.ndarray) -> Figure:
    """The sizes of clients in decreasing order, and a histogram of their numbers of classes."""
    picture, (left, right) = plt.subplots(1, 2, figsize=(COLUMN, 1.6))
    left.plot(np.sort(counts.sum(1))[::-1], color=_BLUE)
    left.set(xlabel="client, the largest first", ylabel="training examples", yscale="log")
    num_classes, num_clients = np.unique((counts > 0).sum(1), return_counts=True)
    right.bar(num_classes, num_clients, color=_BLUE)
    right.set(xlabel="classes per client", ylabel="clients", xticks=num_classes)
    for axes in (left, right):
        open_axes(axes)
    use_log_ticks(left.yaxis)
    return picture
