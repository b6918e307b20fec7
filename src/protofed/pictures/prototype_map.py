"""Embeddings and prototypes in the plane, with the server's prototypes after each traced round.

All rounds share one projection (principal components), so that a movement in the picture is a movement in embedding
space. t-SNE has no fixed axes, so that points would also move without any reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.experiment.stored import StoredRun
from protofed.pictures.embedded import Embedded, Points, embed_all_clients

_SAMPLES = 600
"""Largest number of test embeddings in the map."""
_FRAMES = 60
"""Largest number of rounds that the slider has; of more traced rounds, some are left out evenly."""


Frame = tuple[int, Points, np.ndarray]
"""A round, the server's prototypes after it, and their support."""


def prototype_map(run: StoredRun) -> dict[str, Any]:
    """Points in the plane: test examples, clients' class means, and the server's prototypes per round."""
    embedded = embed_all_clients(run, "", _SAMPLES)
    frames = _frames(run) if len(embedded.shared.z) else []
    if not frames and len(embedded.shared.z):
        frames = [(len(run.rounds), embedded.shared, np.full(len(embedded.shared.y), np.nan))]
    return _in_plane(frames, [embedded.samples.z, embedded.local.z, embedded.shared.z], embedded)


def traced_map(run: StoredRun) -> dict[str, Any]:
    """The same of a run that is not finished: the traced prototypes alone."""
    frames = _frames(run)
    if not frames:
        raise UserError("the run has no trace of prototypes. Run with --set run.trace_every=1.")
    return _in_plane(frames, [points.z for _, points, _ in frames], None)


def _in_plane(frames: Sequence[Frame], spanning: Sequence[np.ndarray], embedded: Embedded | None) -> dict[str, Any]:
    """All points in the plane of the first two principal components of the vectors `spanning`."""
    basis = np.concatenate(spanning).astype(np.float64)
    if len(basis) < 3 or not np.isfinite(basis).all():
        raise UserError("there are too few embeddings, or some are not finite because the run has diverged.")
    centre, axes, explained = _principal_axes(basis)

    def flat(z: np.ndarray) -> list[list[float]]:
        return [[float(f"{value:.4g}") for value in point] for point in (z - centre) @ axes.T]

    return {
        "explained": round(explained, 3),
        "samples": _point_list(flat(embedded.samples.z), embedded.samples) if embedded else [],
        "local": _point_list(flat(embedded.local.z), embedded.local) if embedded else [],
        "frames": [
            {
                "round": number,
                "prototypes": [
                    [*at, int(label), None if np.isnan(support) else round(float(support), 1)]
                    for at, label, support in zip(flat(points.z), points.y, supports, strict=True)
                ],
            }
            for number, points, supports in frames
        ],
    }


def _frames(run: StoredRun) -> list[Frame]:
    """The traced rounds: the server's prototypes as its method compares them with embeddings, and their support."""
    trace = Folder(run.folder).trace()
    chosen = np.unique(np.linspace(0, len(trace) - 1, min(len(trace), _FRAMES)).round().astype(int))
    frames: list[Frame] = []
    for number, prototypes in (trace[position] for position in chosen if trace):
        compared = run.config.method.compared_embeddings(prototypes.mean)
        shown = prototypes if compared is None else prototypes._replace(mean=compared)
        frames.append((number, Points.from_prototypes(shown, -1), prototypes.support[prototypes.support > 0].numpy()))
    return frames


def _principal_axes(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The mean [dim], the first two principal axes [2, dim], and their share of the variance."""
    centre = z.mean(0)
    _, values, axes = np.linalg.svd(z - centre, full_matrices=False)
    axes = axes[:2] * np.where(axes[:2].sum(1, keepdims=True) < 0, -1, 1)  # the sign of an axis is arbitrary
    if len(axes) < 2:
        axes = np.concatenate([axes, np.zeros((2 - len(axes), z.shape[1]))])
    return centre, axes, float((values[:2] ** 2).sum() / max((values**2).sum(), 1e-30))


def _point_list(flat: list[list[float]], points: Points) -> list[list[float]]:
    """Per point: x, y, class, client."""
    return [[*at, int(label), int(client)] for at, label, client in zip(flat, points.y, points.client, strict=True)]
