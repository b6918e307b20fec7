"""Small federations and messages made by hand, for the tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from protofed.core import Prototypes
from protofed.experiment.config import Config
from protofed.experiment.final_figures import result_summary
from protofed.experiment.members import Members
from protofed.experiment.runner import Runner
from protofed.methods import METHODS
from protofed.testing.toy_federation import TOY_CLASSES as CLASSES
from protofed.testing.toy_federation import TOY_INPUTS as INPUTS
from protofed.testing.toy_federation import UNEQUAL_LABELS as LABELS
from protofed.testing.toy_federation import complete_state as everything
from protofed.testing.toy_federation import finished_runner as played_on
from protofed.testing.toy_federation import pool_of
from protofed.testing.toy_federation import toy_config as config
from protofed.testing.toy_federation import toy_examples as examples
from protofed.testing.toy_federation import toy_layers as dense
from protofed.testing.toy_federation import toy_members as federation
from protofed.testing.toy_federation import toy_net as net
from protofed.testing.toy_federation import toy_runner as runner_of

__all__ = ["CLASSES", "INPUTS", "LABELS", "bank", "config", "dense", "everything", "examples", "federation", "figures"]
__all__ += ["net", "played", "played_on", "pool_of", "runner_of"]

REPRESENTATIVE = ("fedavg", "fednh", "fedproto", "mpfedcl", "protomargin")
"""Methods that differ in what they send and keep. Long tests of the others are among the slow ones."""


def methods_by_speed() -> list[Any]:
    """The names of all methods, as parameters of a test that takes long: most of them are slow tests."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if name in REPRESENTATIVE else slow) for name in sorted(METHODS)]


def played(experiment: Config, members: Members) -> Runner:
    """A run that has been run."""
    runner = runner_of(experiment, members)
    runner.go()
    return runner


def figures(runner: Runner) -> dict[str, Any]:
    """What result.json would have."""
    return result_summary(runner.config, runner.members, runner.rounds, runner.evaluations, runner.personal(), {})


def bank(rows: dict[int, list[float]], counts: dict[int, int] | None = None, classes: int = CLASSES) -> Prototypes:
    """Prototypes with these means, each with 1 example behind it unless told otherwise."""
    dim = len(next(iter(rows.values())))
    made = Prototypes.empty(classes, dim)
    for label, values in rows.items():
        made.mean[label, 0] = torch.tensor(values)
        made.support[label, 0] = (counts or {}).get(label, 1)
    return made
