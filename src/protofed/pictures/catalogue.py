"""The pictures by name; this is the only registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from protofed.errors import UserError
from protofed.experiment.stored import StoredRun, load_runs
from protofed.experiment.stored_members import members_with_data
from protofed.measures.intervals import SettingRow, read_sweep
from protofed.measures.question import state_with_data
from protofed.pictures import blocks, clients, curves, maps, scatter, similarity, spiral
from protofed.pictures.bound_curves import bound_picture
from protofed.pictures.holdings import draw_holdings
from protofed.pictures.sweep_plot import draw_sweep
from protofed.plugins import label


class DrawOptions(NamedTuple):
    """Options of pictures. Each picture uses those that apply to it."""

    window: int = 1  # rounds of the moving average
    clients: tuple[int, ...] = ()
    by: tuple[str, ...] = curves.WAYS
    classes: tuple[str, ...] = ()


class Picture(NamedTuple):
    """A kind of picture: what it shows, how it is drawn, and how folders are read for it."""

    about: str
    draw: Callable[[Sequence[Any], DrawOptions], Figure]
    uses: tuple[str, ...] = ()  # the fields of `DrawOptions` that it uses
    load: Callable[[Iterable[Any]], list[Any]] = load_runs


def _load_sweeps(folders: Iterable[Any]) -> list[list[SettingRow]]:
    """The settings of sweeps, from their folders or from `Sweep` objects."""
    return [read_sweep(Path(getattr(folder, "folder", folder))) for folder in folders]


def _partition_picture(runs: Sequence[StoredRun], options: DrawOptions) -> Figure:
    """The partition of one run."""
    if len(runs) > 1:
        raise UserError(f"--what partition draws one run; got {len(runs)} folders.")
    (run,) = runs
    members = state_with_data(run.in_memory).members if run.in_memory else members_with_data(run.config, run.folder)
    return draw_holdings(members, f"{run.data}, {label(run.config.partition_name)}")


def _sweep_picture(sweeps: Sequence[list[SettingRow]], options: DrawOptions) -> Figure:
    """The figures of one sweep."""
    if len(sweeps) > 1:
        raise UserError(f"--what sweep draws one sweep; got {len(sweeps)} folders.")
    return draw_sweep(sweeps[0])


PICTURES: dict[str, Picture] = {
    "curves": Picture(
        "accuracy or mIoU over rounds", lambda runs, o: curves.curves(runs, o.by, o.window), ("by", "window")
    ),
    "losses": Picture("the terms of the loss over rounds", lambda runs, o: curves.losses(runs, o.window), ("window",)),
    "cost": Picture(
        "accuracy against megabytes sent", lambda runs, o: curves.cost(runs, o.by, o.window), ("by", "window")
    ),
    "clients": Picture("the accuracy of each client", lambda runs, o: clients.clients(runs, o.by), ("by",)),
    "partition": Picture("the training examples per client and class", _partition_picture),
    "tsne": Picture("test embeddings and prototypes, by t-SNE", lambda runs, o: scatter.tsne(runs)),
    "pca": Picture("test embeddings and prototypes, by principal components", lambda runs, o: scatter.pca(runs)),
    "similarity": Picture(
        "cosines between the server's prototypes, or between the rows of a head",
        lambda runs, o: similarity.similarity_picture(runs, o.clients),
        ("clients",),
    ),
    "blocks": Picture(
        "cosines between the classes of two superclasses",
        lambda runs, o: blocks.block_picture(runs, o.clients, o.classes),
        ("clients", "classes"),
    ),
    "embeddings": Picture(
        "embeddings of single clients",
        lambda runs, o: scatter.embeddings(runs, o.clients, o.classes),
        ("clients", "classes"),
    ),
    "maps": Picture(
        "masks, predictions and entropies of test images",
        lambda runs, o: maps.map_picture(runs, o.clients),
        ("clients",),
    ),
    "attention": Picture("the weight of each client per round (protomargin)", lambda runs, o: clients.attention(runs)),
    "margins": Picture("distances between prototypes over rounds", lambda runs, o: curves.margin_curves(runs)),
    "bounds": Picture("the loss next to the bound of the method's paper", lambda runs, o: bound_picture(runs)),
    "sweep": Picture("accuracy along the values of a grid (DIR is a sweep's folder)", _sweep_picture, (), _load_sweeps),
    "inputs": Picture("training and test examples of two columns", lambda runs, o: spiral.input_picture(runs)),
    "spiral": Picture(
        "embeddings of two dimensions", lambda runs, o: spiral.spiral_picture(runs, o.clients), ("clients",)
    ),
}
