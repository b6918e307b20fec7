"""The pictures by name; this is the only registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.measures.intervals import SettingRow, read_sweep
from protofed.pictures import clients, curves, scatter, similarity, spiral
from protofed.pictures import holdings as partition
from protofed.pictures import sweep_plot as sweep
from protofed.pictures.runs import FinishedRun


class Wishes(NamedTuple):
    """What may be asked of a picture; each takes what it has a use for."""

    window: int = 1
    clients: tuple[int, ...] = ()
    by: tuple[str, ...] = curves.WAYS


class Picture(NamedTuple):
    about: str
    draw: Callable[[Sequence[Any], Wishes], Figure]
    load: Callable[[Path], Any] = FinishedRun.load


def _partition_picture(runs: Sequence[FinishedRun], wishes: Wishes) -> Figure:
    """Of one run."""
    if len(runs) > 1:
        raise UserError(f"A partition is drawn of one run; got {len(runs)}.")
    return partition.draw_holdings(runs[0].members(), f"{runs[0].data}, {runs[0].config.partition_name}")


def _sweep_picture(sweeps: Sequence[list[SettingRow]], wishes: Wishes) -> Figure:
    """Of one sweep."""
    if len(sweeps) > 1:
        raise UserError(f"A sweep is drawn by itself; got {len(sweeps)} folders.")
    return sweep.draw_sweep(sweeps[0])


PICTURES: dict[str, Picture] = {
    "curves": Picture("accuracy over rounds", lambda runs, w: curves.curves(runs, w.by, w.window)),
    "losses": Picture("the terms of the loss over rounds", lambda runs, w: curves.losses(runs, w.window)),
    "cost": Picture("accuracy against megabytes sent", lambda runs, w: curves.cost(runs, w.by, w.window)),
    "clients": Picture("the accuracy of each client", lambda runs, w: clients.clients(runs, w.by)),
    "partition": Picture("who holds what", _partition_picture),
    "tsne": Picture("test embeddings and prototypes, by t-SNE", lambda runs, w: scatter.tsne(runs)),
    "pca": Picture("the same by principal components", lambda runs, w: scatter.pca(runs)),
    "similarity": Picture(
        "cosines between the server's prototypes", lambda runs, w: similarity.similarity_picture(runs)
    ),
    "embeddings": Picture("some clients side by side", lambda runs, w: scatter.embeddings(runs, w.clients)),
    "attention": Picture("how much each client counts (protomargin)", lambda runs, w: clients.attention(runs)),
    "margins": Picture("how far prototypes are apart, over rounds", lambda runs, w: curves.margin_curves(runs)),
    "sweep": Picture("accuracy under varying values (DIR is a sweep's)", _sweep_picture, read_sweep),
    "spiral": Picture("embeddings of two dimensions", lambda runs, w: spiral.spiral_picture(runs, w.clients)),
}
