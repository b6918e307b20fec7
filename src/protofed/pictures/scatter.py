"""Embeddings in the plane: small points, the clients' class means as small marks, the server's prototypes as large."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from protofed.errors import UserError
from protofed.pictures.embedded import Embedded, each, everybody
from protofed.pictures.runs import FinishedRun, titles
from protofed.pictures.style import COLUMN, head, lettered, look, make_panels

_NAMED = 20
"""With more classes than this there is no legend."""

Flatten = Callable[[np.ndarray], np.ndarray]
"""Vectors [n, dim] -> [n, 2]."""


def by_tsne(z: np.ndarray) -> np.ndarray:
    """t-SNE, from a fixed seed."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if z.shape[1] > 50:
        z = PCA(min(50, len(z)), random_state=0).fit_transform(z)
    near = min(30.0, (len(z) - 1) / 3)
    flat: np.ndarray = TSNE(2, perplexity=near, init="pca", random_state=0).fit_transform(z)
    return flat


def by_pca(z: np.ndarray) -> np.ndarray:
    """The two directions along which the vectors vary most."""
    centred = z - z.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(directions[:2].sum(1, keepdims=True))  # either sign is right: always the same one
    flat: np.ndarray = centred @ (np.where(signs == 0, 1, signs) * directions[:2]).T
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


def flattened(shown: Sequence[Embedded], flatten: Flatten) -> list[Embedded]:
    """The same in the plane, all vectors of all panels by one map."""
    sets = [points for panel in shown for points in (panel.samples, panel.local, panel.shared)]
    z = np.concatenate([points.z for points in sets])
    if len(z) < 4:
        raise UserError(f"There are only {len(z)} embeddings to draw.")
    if not np.isfinite(z).all():
        raise UserError("Some embeddings are not finite: the run has diverged. Try a smaller train.lr.")
    parts = np.split(flatten(z.astype(np.float64)), np.cumsum([len(points.z) for points in sets])[:-1])
    flat = [points._replace(z=part) for points, part in zip(sets, parts, strict=True)]
    return [
        panel._replace(samples=flat[3 * at], local=flat[3 * at + 1], shared=flat[3 * at + 2])
        for at, panel in enumerate(shown)
    ]


@lettered
def _draw_scatter(shown: Sequence[Embedded], alike: bool = False) -> Figure:
    """The panels, two in a row, with one legend; `alike`: with the same axes."""
    made, axes = make_panels(len(shown), 2, COLUMN if len(shown) == 1 else COLUMN / 2 + 0.2)
    scale = 1.0 if len(shown) == 1 else 0.55
    for axis, panel in zip(axes, shown, strict=True):
        for points, size, edge, alpha in (
            (panel.samples, 4 * scale, None, 0.45),
            (panel.local, 9 * max(scale, 0.8), "black", 1.0),
            (panel.shared, 100 * scale, "black", 1.0),
        ):
            for label in np.unique(points.y):
                colour, mark = look(int(label))
                x, y = points.z[points.y == label].T
                axis.scatter(
                    x,
                    y,
                    s=size,
                    color=colour,
                    marker=mark if edge else "o",
                    alpha=alpha,
                    edgecolors=edge or "none",
                    linewidths=(0.3 if points is panel.local else 0.9) if edge else 0,
                    rasterized=edge is None,
                )
        axis.set(xticks=[], yticks=[])
        head(axis, panel.title, min(len(shown), 2))
    if alike:
        every = np.concatenate([points.z for panel in shown for points in (panel.samples, panel.local, panel.shared)])
        margin = 0.05 * np.ptp(every, 0)
        low, high = every.min(0) - margin, every.max(0) + margin
        for axis in axes:
            axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    made.tight_layout(w_pad=0.6)
    _legend_text(made, shown)
    return made


def _legend_text(made: Figure, shown: Sequence[Embedded]) -> None:
    """What the marks are, below."""
    every = [points.y for panel in shown for points in (panel.samples, panel.shared)]
    held = [int(label) for label in np.unique(np.concatenate(every))]
    handles = []
    if len(held) <= _NAMED:
        for label in held:
            colour, mark = look(label)
            name = str(shown[0].labels[label])[:14]
            handles.append(Line2D([], [], color=colour, marker=mark, linestyle="", markersize=4, label=name))
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    if handles:
        made.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            frameon=False,
            handletextpad=0.0,
            columnspacing=0.6,
            ncols=min(len(handles), max(1, int(50 / (longest + 4)))),
        )
    large = "; large: the server's prototypes" if any(len(panel.shared.y) for panel in shown) else ""
    made.text(0.5, 0.0, f"dots: test examples; small: a client's mean of a class{large}", ha="center", fontsize=5.8)


def tsne(runs: Sequence[FinishedRun]) -> Figure:
    """Each run by a t-SNE of its own: distances between panels mean nothing."""
    return _draw_scatter([flattened([panel], by_tsne)[0] for panel in map(everybody, runs, titles(runs))])


def pca(runs: Sequence[FinishedRun]) -> Figure:
    """Each run in its own two principal directions."""
    return _draw_scatter([flattened([panel], by_pca)[0] for panel in map(everybody, runs, titles(runs))])


def embeddings(runs: Sequence[FinishedRun], clients: Sequence[int]) -> Figure:
    """Some clients of each run side by side, by one map for the clients of a run."""
    panels = [
        flattened(each(run, title, clients or (0, 1)), by_pca) for run, title in zip(runs, titles(runs), strict=True)
    ]
    return _draw_scatter([panel for row in panels for panel in row], alike=len(runs) == 1)
