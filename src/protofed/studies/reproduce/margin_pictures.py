"""Prototype-guided FL's Fig. 2, 3, 4 and S2, drawn from finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from protofed.experiment.folder import Folder
from protofed.pictures.bands import BandPanel, draw_bands
from protofed.pictures.style import COLOURS, open_axes, use_log_ticks
from protofed.studies.plan import SweepRun
from protofed.studies.reproduce.measured import client_weights, measured_rounds

_TESTED = {"accuracy_global": "accuracy", "loss_global": "training loss"}
_MEASURED = {
    "gradients": "gradient dissimilarity",
    "margin": "margin of the aggregate model",
    "mmd": "MMD to a central model",
}


def draw_accuracy_loss_gradients(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. 2: accuracy, training loss and gradient dissimilarity of the server's model over rounds."""
    return _curves(jobs, ("accuracy_global", "loss_global", "gradients"))


def draw_margins_and_mmd(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. 3 and 4: the margin and MMD of the server's model over rounds."""
    return _curves(jobs, ("margin", "mmd"))


def _curves(jobs: Sequence[SweepRun], keys: Sequence[str]) -> Figure:
    """A panel per key: the mean of each method over shares of slow clients and seeds, with a band of one deviation."""
    panels = []
    for key in keys:
        by_method = {name: [_curve(run, key) for run in runs] for name, runs in _runs_by_method(jobs).items()}
        rounds = sorted(set.intersection(*(set(curve) for curves in by_method.values() for curve in curves)))
        curves = {
            name: np.array([[curve[number] for number in rounds] for curve in curves])
            for name, curves in by_method.items()
        }
        title = (_TESTED | _MEASURED)[key]
        panels.append(BandPanel(title, rounds, curves, log_y=key == "gradients"))
    return draw_bands(panels, columns=len(panels))


def _curve(run: SweepRun, key: str) -> dict[int, float]:
    """The values of a run by round."""
    rows = Folder(run.out).rounds() if key in _TESTED else measured_rounds(run.out)
    return {row["round"]: row[key] for row in rows if row.get(key) is not None}


def _runs_by_method(jobs: Sequence[SweepRun]) -> Mapping[str, list[SweepRun]]:
    """The runs by method, which precedes ", slow S" in a run's setting. Central runs are left out."""
    runs: dict[str, list[SweepRun]] = {}
    for job in jobs:
        method, slow, _ = job.setting.rpartition(", slow ")
        if slow:
            runs.setdefault(method, []).append(job)
    return runs


def draw_client_weights(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. S2: the distribution of clients' weights, of all rounds but the first."""
    picture, axis = plt.subplots(figsize=(5, 3))
    for (name, runs), colour in zip(_runs_by_method(jobs).items(), COLOURS, strict=False):
        weights = [weight for run in runs for by_client in client_weights(run.out) for weight in by_client.values()]
        axis.hist(weights, np.linspace(0, 1, 101).tolist(), density=True, histtype="step", color=colour, label=name)
    axis.set(xlabel="weight of a client", ylabel="density", yscale="log")
    use_log_ticks(axis.yaxis)
    axis.legend(frameon=False, fontsize=8)
    open_axes(axis)
    picture.tight_layout()
    return picture
