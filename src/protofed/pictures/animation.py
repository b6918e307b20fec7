"""The server's prototypes moving over the rounds of a run, as a GIF or MP4 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import AbstractMovieWriter, FFMpegWriter, PillowWriter
from matplotlib.axes import Axes

from protofed.errors import UserError
from protofed.experiment.folder import Folder, must_be_new
from protofed.experiment.stored import StoredRun
from protofed.pictures.prototype_map import prototype_map, traced_map
from protofed.pictures.style import class_style, with_column_fonts

_SIZE = 4.0
"""Inches per side."""
_DOTS = 110
"""Dots per inch."""


def _writer(out: Path, per_second: float) -> AbstractMovieWriter:
    """What writes the file."""
    if out.suffix == ".gif":
        return PillowWriter(fps=per_second)  # type: ignore[arg-type]
    if out.suffix != ".mp4":
        raise UserError(f"--animate: got {out.name}; its name must end in .gif or .mp4.")
    if not FFMpegWriter.isAvailable():
        raise UserError(f"--animate: {out.name} needs ffmpeg, which is not installed. Install it, or write a .gif.")
    return FFMpegWriter(fps=per_second)  # type: ignore[arg-type]


def _scatter(axis: Axes, points: list[list[float]], **style: Any) -> None:
    """Points [x, y, class, ...] in the colours of their classes."""
    if points:
        x, y, labels, *_ = zip(*points, strict=True)
        axis.scatter(x, y, color=[class_style(int(label))[0] for label in labels], **style)


@with_column_fonts
def animate(run: StoredRun, out: Path, force: bool = False, per_second: float = 6) -> int:
    """Write an animation of the traced rounds, and return their number."""
    if not force:
        must_be_new(out, replaceable=True)
    writer = _writer(out, per_second)
    if len(Folder(run.folder).traced_rounds()) < 2:
        raise UserError(
            f"{run.folder} has no trace of its prototypes over rounds. Run with --set run.trace_every=1, and use a "
            "method with prototypes, such as fedproto."
        )
    content = traced_map(run) if run.unfinished else prototype_map(run)
    if not content["frames"]:
        raise UserError(f"{run.folder}: embeddings cannot be compared with the prototypes of {run.method}.")
    labels = (Folder(run.folder).partition() or {}).get("labels", [])
    picture, axis = plt.subplots(figsize=(_SIZE, _SIZE), dpi=_DOTS)
    every = [*content["samples"], *(point for frame in content["frames"] for point in frame["prototypes"])]
    corners = np.array([point[:2] for point in every], float)
    margin = 0.06 * np.ptp(corners, 0).max()
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with writer.saving(picture, str(out), _DOTS):
            for frame in content["frames"]:
                axis.clear()
                _scatter(axis, content["samples"], s=5, alpha=0.3, linewidths=0)
                _scatter(axis, frame["prototypes"], s=80, marker="^", edgecolors="black")
                for x, y, label, _ in frame["prototypes"]:
                    axis.annotate(str(labels[label]), (x, y), (0, 7), textcoords="offset points", ha="center")
                axis.set(
                    xlim=(corners[:, 0].min() - margin, corners[:, 0].max() + margin),
                    ylim=(corners[:, 1].min() - margin, corners[:, 1].max() + margin),
                    xticks=[],
                    yticks=[],
                    title=f"{run.method} on {run.data}: prototypes after round {frame['round']}",
                )
                writer.grab_frame()
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    finally:
        plt.close(picture)
    return len(content["frames"])
