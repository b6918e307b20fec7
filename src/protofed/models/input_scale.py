"""A caution if new inputs have another scale than those that a model was trained with, such as 0 to 1 and 0 to 255."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protofed.data.table.recipe import numbers_of

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.data.table.recipe import Recipe
    from protofed.examples import Examples

_FAR = 10.0
"""The factor between two spreads, and the number of spreads between two means, beyond which scales are different."""
_EXAMPLES_COMPARED = 512
"""The number of training examples, and of inputs, that are compared at most."""
_FEW_NUMBERS = 100
"""A smaller spread says something only of at least this many numbers: that of a single one is 0."""


def scale_caution(trained_on: Examples, raw: Tensor) -> str:
    """A caution if raw inputs [n, ...] are on another scale than the examples that a model was trained on.

    Of many inputs, only some are looked at.
    "" if they are not, or if nothing is known of the examples: they are not here, and inputs are not normalised.
    """
    usual = _usual_values(trained_on)
    if usual is None or not raw.numel():
        return ""
    number = min(len(raw), _EXAMPLES_COMPARED)
    raw = raw[torch.arange(number) * len(raw) // number]
    (usual_mean, usual_spread), (mean, spread) = usual, _mean_and_spread(trained_on.normalised_values(raw))
    least = usual_spread / _FAR if raw.numel() >= _FEW_NUMBERS else 0.0
    is_spread_alike = least <= spread <= usual_spread * _FAR
    if is_spread_alike and abs(mean - usual_mean) <= _FAR * usual_spread:
        return ""
    low, high = (float(value) for value in torch.aminmax(torch.nan_to_num(raw.double())))
    return (
        f"Careful: the inputs, with values from {low:g} to {high:g}, seem to have another scale than the training "
        f"examples. Normalised, their mean is {mean:.2g} and their standard deviation {spread:.2g}, where "
        f"{usual_mean:.2g} and {usual_spread:.2g} are usual. Give them in the units of the training data."
    )


def table_cautions(recipe: Recipe, frame: Any) -> list[str]:
    """A caution per column of numbers whose values are far from those that the client trained with."""
    cautions = []
    for step in recipe.steps:
        if step.kind != "number":
            continue
        values = numbers_of(frame[step.name], step.name)
        values = values[~np.isnan(values)]
        is_rare = bool(np.isclose(step.std**2, step.mean * (1 - step.mean)))  # of 0 and 1: both are usual values
        if is_rare and np.isin(values, (0, 1)).all():
            continue
        if len(values) and abs(np.median(values) - step.mean) > _FAR * step.std:
            cautions.append(
                f'Careful: the column "{step.name}", with values from {values.min():g} to {values.max():g}, seems to '
                f"have another scale than the training rows, whose mean is {step.mean:.3g} and standard deviation "
                f"{step.std:.2g}. Give it in the same unit."
            )
    return cautions


def _usual_values(data: Examples) -> tuple[float, float] | None:
    """Mean and spread of normalised training examples; if they are not here, what normalising aims at."""
    if len(data):
        return _mean_and_spread(data.take(torch.arange(min(len(data), _EXAMPLES_COMPARED)))[0])
    return None if (data.scale, data.mean, data.std) == (1.0, 0.0, 1.0) else (0.0, 1.0)


def _mean_and_spread(values: Tensor) -> tuple[float, float]:
    numbers = torch.nan_to_num(values.double())
    return float(numbers.mean()), float(numbers.std(correction=0))
