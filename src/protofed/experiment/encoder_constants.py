"""The constants that an encoder's inputs are normalised by: those of the experiment, or none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from protofed.errors import ConfigError, UserError
from protofed.examples import Examples
from protofed.experiment.sections import DataSection


def given_or_raw(examples: Examples, section: DataSection) -> Examples:
    """The examples with the constants of [data]; without such keys, with none: inputs are then the stored values."""
    given = given_constants(section)
    if given is None:
        return replace(examples, scale=1.0, mean=0.0, std=1.0, fill=None)
    return with_constants(examples, given, section.encoder)


def given_constants(section: DataSection) -> Examples | None:
    """The constants of `data.encoder_mean` and `data.encoder_std`, for values from 0 to 1; None if they are not set."""
    mean, std = section.encoder_mean, section.encoder_std
    if not mean and not std:
        return None
    problems = []
    if len(mean) != len(std) or len(mean) not in (1, 3):
        problems.append(
            f"data.encoder_mean, data.encoder_std: got {len(mean)} and {len(std)} numbers; must be one each, or three "
            "for the channels of colour images."
        )
    if not all(math.isfinite(value) and value > 0 for value in std):
        problems.append(f"data.encoder_std: got {list(std)}; must be above 0.")
    if problems:
        raise ConfigError(problems)
    constants: dict[str, Any] = {"mean": mean, "std": std} if len(mean) == 3 else {"mean": mean[0], "std": std[0]}
    return Examples.empty((len(mean), 0, 0), scale=255.0, **constants)


def with_constants(examples: Examples, constants: Examples, title: str, key: str = "data.encoder") -> Examples:
    """The examples with the constants of an encoder, which `key` names. Both must be in the same units.

    Images of any scale are in the same units if their values are from 0 to 1 after they are divided by the scale.
    """
    if examples.scale == constants.scale:
        return examples.normalised_like(constants)
    low, high = (float(value) / examples.scale for value in torch.aminmax(examples.x)) if len(examples.x) else (0, 0)
    if constants.scale == 1 or not 0 <= low <= high <= 1:
        raise UserError(
            f"{key}: the constants of {title} do not fit the values of the images, from {low:g} to {high:g}. "
            "Give bytes, or numbers from 0 to 1, and set data.encoder_mean and data.encoder_std for values from 0 to 1."
        )
    return replace(examples.normalised_like(constants), scale=examples.scale)
