"""The rule by which the values of several clients become one.

By default this is the weighted mean. Inside `averaging_by`, a robust rule (`trust/robust.py`) replaces it wherever
methods average over clients: in `Prototypes.pool`, `prototypes.mean_over_clients` and `messages.average`.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

__all__ = ["AverageRule", "averaging_by", "current_rule", "refuse_rule_for_weights"]


class AverageRule(Protocol):
    """What replaces the weighted means over clients."""

    @property
    def changes_weights(self) -> bool:
        """Whether weights of models are combined by another rule than the mean."""
        ...

    @property
    def changes_prototypes(self) -> bool:
        """Whether prototypes are combined by another rule than the mean."""
        ...

    def of_prototypes(self, values: Tensor, weights: Tensor) -> Tensor:
        """Prototypes [classes, dim] from those of clients [clients, classes, dim].

        `weights` [clients, classes]: those of the weighted mean; 0 where a client does not have the class. If they do
        not sum to 1, the result is scaled as that of the mean would be.
        """
        ...

    def of_models(self, vectors: Tensor, weights: Tensor) -> Tensor:
        """The weights of one model [n] from those of clients [clients, n]. `weights` [clients]: as above."""
        ...


_RULE: ContextVar[AverageRule | None] = ContextVar("rule", default=None)


@contextmanager
def averaging_by(rule: AverageRule | None) -> Iterator[None]:
    """Inside this block, averages over clients are by this rule; None: the weighted mean."""
    token = _RULE.set(rule)
    try:
        yield
    finally:
        _RULE.reset(token)


def current_rule() -> AverageRule | None:
    """The rule that replaces the weighted mean, or None."""
    return _RULE.get()


def refuse_rule_for_weights(why: str) -> None:
    """Raise an error if a rule for weights is set; methods call it if their weights are not averaged.

    `why`: a sentence about the method.
    """
    rule = _RULE.get()
    if rule and rule.changes_weights:
        raise UserError(f'trust.weights: {why} Use trust.weights = "mean" and trust.clip = 0, or another method.')
