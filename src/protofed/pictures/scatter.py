"""Embeddings in the plane: test examples as dots, clients' class means as small marks, server prototypes as large."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from protofed.errors import UserError
from protofed.experiment.groups import titles
from protofed.experiment.stored import StoredRun
from protofed.pictures.embedded import Embedded, embed_all_clients, embed_clients
from protofed.pictures.style import COLOURS, COLUMN, class_style, make_panels, set_wrapped_title, with_column_fonts
from protofed.pictures.tsne import project_by_tsne

_MAX_LEGEND_CLASSES = 20
"""With more classes than this, the legend does not name them."""

Projection = Callable[[np.ndarray], np.ndarray]
"""Vectors [n, dim] -> [n, 2]."""


def project_by_pca(z: np.ndarray) -> np.ndarray:
    """The first two principal components [n, 2] of vectors [n, dim].

    The sign of a component is arbitrary. It is chosen so that the entries of its direction have a positive sum, which
    gives the same picture each time.
    """
    from sklearn.decomposition import PCA

    components = min(2, *z.shape)
    pca = PCA(components, svd_solver="full").fit(z)
    signs = np.where(pca.components_.sum(1) < 0, -1, 1)
    return np.pad(pca.transform(z) * signs, ((0, 0), (0, 2 - components)))


def project_panels(panels: Sequence[Embedded], projection: Projection) -> list[Embedded]:
    """The panels in the plane. One projection is fitted to the vectors of all panels together."""
    sets = [points for panel in panels for points in (panel.samples, panel.local, panel.shared)]
    z = np.concatenate([points.z for points in sets])
    if len(z) < 4:
        raise UserError(f"At least 4 embeddings are needed for a picture; got {len(z)}.")
    if not np.isfinite(z).all():
        raise UserError("Some embeddings are not finite: the run has diverged. Try a smaller train.lr.")
    parts = np.split(projection(z.astype(np.float64)), np.cumsum([len(points.z) for points in sets])[:-1])
    flat = [points._replace(z=part) for points, part in zip(sets, parts, strict=True)]
    return [
        panel._replace(samples=flat[3 * number], local=flat[3 * number + 1], shared=flat[3 * number + 2])
        for number, panel in enumerate(panels)
    ]


def _shown_classes(panels: Sequence[Embedded]) -> list[int]:
    """The numbers of the classes in these panels."""
    every = [points.y for panel in panels for points in (panel.samples, panel.local, panel.shared)]
    return [int(label) for label in np.unique(np.concatenate(every))]


def class_styles(classes: Sequence[int]) -> dict[int, tuple[str, str]]:
    """The colour and the mark of each class: by its number or, if few classes would share a colour, by its position."""
    few_share = len({label % len(COLOURS) for label in classes}) < len(classes) <= len(COLOURS)
    return {label: class_style(position if few_share else label) for position, label in enumerate(classes)}


@with_column_fonts
def _draw_scatter(panels: Sequence[Embedded], same_axes: bool = False) -> Figure:
    """The panels, two per row, with one legend. `same_axes`: all panels have the same limits."""
    picture, axes = make_panels(len(panels), 2, COLUMN if len(panels) == 1 else COLUMN / 2 + 0.2)
    scale, styles = 1.0 if len(panels) == 1 else 0.55, class_styles(_shown_classes(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for points, size, edge, alpha in (
            (panel.samples, (4 if len(panel.samples.y) > 100 else 16) * scale, None, 0.45),
            (panel.local, 9 * max(scale, 0.8), "black", 1.0),
            (panel.shared, 100 * scale, "black", 1.0),
        ):
            for label in np.unique(points.y):
                colour, mark = styles[int(label)]
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
        set_wrapped_title(axis, panel.title, min(len(panels), 2))
    if same_axes:
        every = np.concatenate([points.z for panel in panels for points in (panel.samples, panel.local, panel.shared)])
        margin = 0.05 * np.ptp(every, 0)
        low, high = every.min(0) - margin, every.max(0) + margin
        for axis in axes:
            axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    picture.tight_layout(w_pad=0.6)
    _add_legend(picture, panels)
    return picture


def _add_legend(picture: Figure, panels: Sequence[Embedded]) -> None:
    """Below the panels: the names of the classes, and what the sizes of the marks mean."""
    styles, handles = class_styles(_shown_classes(panels)), []
    if len(styles) <= _MAX_LEGEND_CLASSES:
        for label, (colour, mark) in styles.items():
            name = str(panels[0].labels[label])[:14]
            handles.append(Line2D([], [], color=colour, marker=mark, linestyle="", markersize=4, label=name))
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    if handles:
        picture.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            frameon=False,
            handletextpad=0.0,
            columnspacing=0.6,
            ncols=min(len(handles), max(1, int(50 / (longest + 4)))),
        )
    large = "; large: server prototypes" if any(len(panel.shared.y) for panel in panels) else ""
    picture.text(0.5, 0.0, f"dots: {panels[0].dots}; small: clients' class means{large}", ha="center", fontsize=5.8)


def tsne(runs: Sequence[StoredRun]) -> Figure:
    """A panel per run, each by its own t-SNE: positions cannot be compared between panels."""
    panels = map(embed_all_clients, runs, titles(runs))
    return _draw_scatter([project_panels([panel], project_by_tsne)[0] for panel in panels])


def pca(runs: Sequence[StoredRun]) -> Figure:
    """A panel per run, each by its own two principal components."""
    panels = map(embed_all_clients, runs, titles(runs))
    return _draw_scatter([project_panels([panel], project_by_pca)[0] for panel in panels])


def embeddings(
    runs: Sequence[StoredRun],
    clients: Sequence[int],
    classes: Sequence[str] = (),
    projection: Projection = project_by_pca,
) -> Figure:
    """Some clients of each run side by side. The clients of a run share one projection."""
    panels = []
    for run, title in zip(runs, titles(runs), strict=True):
        shown = clients or range(min(2, run.summary["clients"]))
        panels += project_panels(embed_clients(run, title, shown, classes), projection)
    return _draw_scatter(panels, same_axes=len(runs) == 1)
