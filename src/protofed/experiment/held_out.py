"""Test and validation sets that clients take from their own training examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from protofed.data.partitions.base import Holding, stratified_share
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.plugins import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofed.experiment.config import Config
    from protofed.experiment.sections import EvalSection


def require_disjoint(holdings: Sequence[Holding], config: Config) -> None:
    """Raise an error if a client would be tested or validated on training examples of another client."""
    takes_test = config.eval.test != "dataset" and not all(part.own for part in holdings)
    if not takes_test and not config.eval.validation:
        return
    positions = np.concatenate([part.train for part in holdings]) if holdings else np.zeros(0, int)
    if len(np.unique(positions)) < len(positions):
        key, value = ("test", f'"{config.eval.test}"') if takes_test else ("validation", config.eval.validation)
        raise UserError(
            f"eval.{key}: got {value}, but partition {label(config.partition_name)} gives some examples to several "
            "clients: examples that one client holds out would be training examples of another. Leave the key out, or "
            "use another partition."
        )


def hold_out(part: Holding, labels: np.ndarray, evaluation: EvalSection, seed: int, client: int) -> Holding:
    """A client's part, with a test set and a validation set taken from its training examples if [eval] says so."""
    if evaluation.test != "dataset" and not part.own:
        held_out = stratified_share(labels[part.train], 0.2, random_state(seed, "own test", client))
        part = part._replace(train=part.train[~held_out], test=part.train[held_out], own=True)
    if evaluation.validation and not len(part.validation):
        held_out = stratified_share(labels[part.train], evaluation.validation, random_state(seed, "validation", client))
        part = part._replace(train=part.train[~held_out], validation=part.train[held_out])
    return part
