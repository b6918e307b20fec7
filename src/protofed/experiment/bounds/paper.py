"""What the bounds of a paper are made of, and what all rows have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from protofed.core import AnyMethod
from protofed.experiment.bounds.probe import ClientProbe

BoundRow = dict[str, Any]
"""A client's round, or the round of all clients together (`client` None).

`change` is the measured change of the loss over the round, `printed` the right-hand side as the paper has it, `bound`
the corrected one, `training_*` and `server_*` its two parts, the rest the estimated constants and the limits that the
paper would allow. None: it does not apply, or it is not finite.
"""
OneMethod = TypeVar("OneMethod", bound=AnyMethod)
_LOSS_ROUNDING = 1e-6
"""The loss is a sum in single precision."""


@dataclass(frozen=True)
class PaperBounds(Generic[OneMethod]):
    """The bounds of a paper for the clients of its method."""

    theorem: str
    corollary: str
    premises: Callable[[OneMethod, int], list[str]]  # those that its options and its largest number of steps break
    rows: Callable[[OneMethod, Sequence[ClientProbe]], list[BoundRow]]
    limits: dict[str, str] = field(default_factory=dict)  # columns that have a limit, "largest_" + column: their names
    remark: str = ""


def holds(change: float, bound: float | None, loss: float) -> bool | None:
    """Whether a change is at most its bound, up to the rounding of a loss of this size.

    None without a bound, and if one of the two is not finite, because the run has diverged.
    """
    if bound is None or not math.isfinite(change + bound):
        return None
    return change <= bound + _LOSS_ROUNDING * (1 + abs(loss))
