"""Who holds what, drawn: a bubble for each client and class, and the clients' sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from protofed.pictures.style import COLOURS, COLUMN, in_powers, lettered, open_axes, write_picture

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.experiment.members import Members

_BLUE = COLOURS[0]
_MOST_CLIENTS = 60
"""With more clients than this, bubbles run together: sizes and numbers of classes are drawn instead."""


def _counts(members: Members) -> np.ndarray:
    """Training examples of each class at each client [clients, classes]."""
    return np.stack([train.labels.bincount(minlength=members.classes).numpy() for train in members.train])


@lettered
def draw_holdings(members: Members, title: str) -> Figure:
    """Who holds what."""
    held = _counts(members)
    made = _bubbles(members, held) if len(held) <= _MOST_CLIENTS else _spreads(held)
    made.tight_layout()
    made.suptitle(f"{title}\n{len(held)} clients, {held.sum():,} training examples", y=1.0, va="bottom")
    return made


def write_holdings(members: Members, title: str, out: Path) -> None:
    """Write the picture; the ending of the name says in which format."""
    write_picture(draw_holdings(members, title), out)


def _bubbles(members: Members, held: np.ndarray) -> Figure:
    """Client x class, the area being the number of examples; sizes on top."""
    clients, classes = held.shape
    wide, high = 0.6 + 0.14 * clients, 0.6 + 0.13 * min(classes, 40)
    made, (top, main) = plt.subplots(
        2, 1, sharex=True, height_ratios=[1, max(2 * high, 2)], figsize=(max(wide, COLUMN), max(high, 1.3) + 0.7)
    )
    top.bar(range(clients), held.sum(1), color=_BLUE)
    top.set_ylabel("examples")
    client, label = np.nonzero(held)
    most = held.max() or 1
    main.scatter(client, label, s=45 * held[client, label] / most, color=_BLUE, alpha=0.8, linewidths=0)
    main.set_xlabel(f"client (largest bubble: {most:,} examples)")
    main.set_ylabel("class")
    main.set_ylim(-0.7, classes - 0.3)
    if classes <= 25:
        main.set_yticks(range(classes), [str(name)[:18] for name in members.labels])
    if any(members.groups) and clients <= 30:
        main.set_xticks(range(clients), members.groups, rotation=60, ha="right")
    else:
        main.set_xticks(range(0, clients, -(-clients // 18)))
    for axes in (top, main):
        open_axes(axes)
    return made


def _spreads(held: np.ndarray) -> Figure:
    """The clients' sizes in order, and how many clients have how many classes."""
    made, (left, right) = plt.subplots(1, 2, figsize=(COLUMN, 1.6))
    left.plot(np.sort(held.sum(1))[::-1], color=_BLUE)
    left.set(xlabel="client, the largest first", ylabel="training examples", yscale="log")
    kinds, number = np.unique((held > 0).sum(1), return_counts=True)
    right.bar(kinds, number, color=_BLUE)
    right.set(xlabel="classes of a client", ylabel="clients", xticks=kinds)
    for axes in (left, right):
        open_axes(axes)
    in_powers(left.yaxis)
    return made
