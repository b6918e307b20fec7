"""The [privacy] section of an experiment file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

Neighbours = Literal["add-remove", "replace-one"]
"""Which data sets count as neighbours: one example more or less, or one example exchanged for any other."""


@dataclass(frozen=True)
class PrivacySection:
    """The [privacy] section: noise on what clients upload, and what it guarantees (docs/privacy.md)."""

    encoder: Literal["none", "frozen", "dp-sgd"] = "none"
    """who trains the body: none: training as usual, noise without a formal guarantee; frozen: nobody, it keeps its
    public initial weights; dp-sgd: clients, by DP-SGD"""
    noise: Annotated[float, Ge(0)] = 0.0
    """noise multiplier of class sums and counts: standard deviation of the noise / sensitivity; 0: no noise"""
    clip: Annotated[float, Gt(0)] = 1.0
    """largest L2 norm of an embedding in a class sum; longer embeddings are scaled down to it"""
    count_share: Annotated[float, Gt(0), Le(0.5)] = 0.1
    """share of the privacy budget that is spent on the counts; the rest is spent on the sums"""
    floor: Annotated[float, Ge(1)] = 5.0
    """classes with a noisy count below this public number are not sent"""
    step_noise: Annotated[float, Ge(0)] = 0.0
    """noise multiplier of each step of DP-SGD: standard deviation of the noise / step_clip"""
    step_clip: Annotated[float, Gt(0)] = 1.0
    """largest L2 norm of the gradient of one example in DP-SGD"""
    examples: Annotated[int, Ge(0)] = 0
    """public number of examples per client for DP-SGD: an example is in a step with probability train.batch /
    examples, and an epoch has examples / train.batch steps"""
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    """delta of the guarantee (epsilon, delta)"""
    neighbours: Neighbours = "add-remove"
    """what is hidden: that an example was added or removed, or that it was replaced by any other one (replace-one)"""
    secure_sum: bool = False
    """whether the server sees only the total of the uploads of a round (masks that cancel), not single ones"""
    threshold: Annotated[float, Gt(0.5), Le(1)] = 0.67
    """share of a round's clients that must upload for a secure sum; with fewer the total stays secret"""

    @property
    def hides_counts(self) -> bool:
        """Whether the server must not know how many examples of each class a single client has."""
        return self.is_on or self.secure_sum

    @property
    def caution_when_deployed(self) -> str:
        """What the operator of a deployed federation should know; "" if there is nothing."""
        if not self.is_on or self.neighbours != "add-remove":
            return ""
        return (
            'Careful: privacy.neighbours = "add-remove" hides whether an example is there, but clients enrol with the '
            'exact number of their examples. Set privacy.neighbours = "replace-one" (docs/privacy.md).'
        )

    @property
    def is_on(self) -> bool:
        """Whether noise is added to anything."""
        return self.noise > 0 or self.step_noise > 0
