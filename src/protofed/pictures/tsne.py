"""t-SNE, with its progress on a terminal or in a notebook: thousands of points take a minute."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import numpy as np

from protofed.experiment.progress import ProgressLine, wants_progress

_TSNE_STEPS = 1000
"""Iterations of scikit-learn's t-SNE."""


class StepReader(io.StringIO):
    """Reads what scikit-learn prints during t-SNE, and shows the number of the iteration."""

    def __init__(self, line: ProgressLine, points: int) -> None:
        super().__init__()
        self.line, self.points = line, points

    def write(self, text: str) -> int:
        if found := re.search(r"Iteration (\d+)", text):
            step = int(found[1])
            self.line.show(step, _TSNE_STEPS, f"t-SNE of {self.points:,} points, step {step:,} of {_TSNE_STEPS:,}")
        return len(text)


def project_by_tsne(z: np.ndarray) -> np.ndarray:
    """t-SNE with a fixed seed, after PCA to at most 50 dimensions: [n, dim] -> [n, 2]."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if z.shape[1] > 50:
        z = PCA(min(50, len(z)), random_state=0).fit_transform(z)
    perplexity = min(30.0, (len(z) - 1) / 3)
    shown = wants_progress(None)
    model = TSNE(2, perplexity=perplexity, init="pca", random_state=0, max_iter=_TSNE_STEPS, verbose=2 if shown else 0)
    if not shown:
        return np.asarray(model.fit_transform(z))
    line = ProgressLine()
    with redirect_stdout(StepReader(line, len(z))):
        flat = np.asarray(model.fit_transform(z))
    line.end()
    return flat
