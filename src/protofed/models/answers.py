"""Answers for people: the label, a probability per class, and the nearest prototype, as the rows of a CSV file."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from protofed.errors import UserError
from protofed.experiment.folder import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from protofed.experiment.model import Model


def answers(model: Model, x: Any, by: str = "head") -> dict[str, np.ndarray]:
    """The columns [n] of the answers for raw inputs: `label`, `probability_CLASS`, `nearest_prototype`, `distance`.

    `nearest_prototype` and `distance` are there if the model predicts by prototype, too, and `unknown` if this way of
    predicting has a rule for unknown inputs.
    """
    if model.net.grid:
        raise UserError("A model that labels pixels has no answer per row. Use --out with .npy, or --draw.")
    predicted = model.predict(x, by)
    probabilities = model.probabilities(predicted, by)
    columns = {"label": predicted["label"]}
    columns |= {f"probability_{label}": probabilities[:, number] for number, label in enumerate(model.labels)}
    if "prototype" in model.ways():
        nearest = predicted if by == "prototype" else model.predict(x, "prototype")
        columns |= {"nearest_prototype": nearest["label"], "distance": nearest["distance"]}
    if "unknown" in (predicted.dtype.names or ()):
        columns["unknown"] = predicted["unknown"]
    return columns


def write_answers(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """Write the columns to a CSV file, one row per input and in the order of the inputs."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        table.writerow([f"{value:.9f}" if isinstance(value, np.floating) else value for value in row])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())
