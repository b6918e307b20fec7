"""Calibration: one temperature per client and way of predicting, fitted on the client's validation set.

Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017): scores are divided by the temperature with the
smallest mean negative log-likelihood. The predicted class stays the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from protofed.engines.scoring import labelled
from protofed.engines.threads import one_thread
from protofed.net import EVALUATION_BATCH

if TYPE_CHECKING:
    from protofed.examples import Examples
    from protofed.experiment.model import Model

_RANGE = (-5.0, 5.0)
"""The smallest and largest logarithm of a temperature."""


def fit_temperature(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """The temperature for scores [n, classes] of examples with these labels [n]; None if nothing can be fitted.

    >>> scores = np.log([[0.8, 0.2]] * 5)  # it is sure of class 0 with 80 %, and right in 4 of 5
    >>> round(fit_temperature(scores, np.array([0, 0, 0, 0, 1])), 3)
    1.0
    """
    from scipy.optimize import minimize_scalar

    own = scores[np.arange(len(labels)), labels]
    usable = np.isfinite(own)
    if not usable.any() or np.isnan(scores).any():
        return None

    def loss(log_temperature: float) -> float:
        scaled = scores[usable] / np.exp(log_temperature)
        top = scaled.max(1)
        total = np.log(np.exp(scaled - top[:, None]).sum(1)) + top
        return float(np.mean(total - own[usable] / np.exp(log_temperature)))

    return float(np.exp(minimize_scalar(loss, bounds=_RANGE, method="bounded").x))


@torch.no_grad()
def fit_temperatures(model: Model, validation: Examples) -> dict[str, float]:
    """The temperature of each way of predicting that the model has, from its client's validation set."""
    scores: dict[str, list[np.ndarray]] = {}
    labels: dict[str, list[np.ndarray]] = {}
    with one_thread():
        for x, y in validation.batches(EVALUATION_BATCH):
            for way, batch_scores in model.compute_scores(x).items():
                by_class, batch_labels = labelled(batch_scores, y)
                scores.setdefault(way, []).append(by_class.double().numpy())
                labels.setdefault(way, []).append(batch_labels.numpy())
    fitted = {way: fit_temperature(np.concatenate(scores[way]), np.concatenate(labels[way])) for way in scores}
    return {way: temperature for way, temperature in fitted.items() if temperature is not None}
