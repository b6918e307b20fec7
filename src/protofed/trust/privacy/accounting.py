"""What releases cost: epsilon for a delta, composed over steps and rounds.

Noisy class sums alone are Gaussian mechanisms, for which epsilon has a closed form (Balle and Wang 2018). Steps of
DP-SGD are subsampled: they are composed by the privacy loss distributions of dp-accounting (`protofed[privacy]`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from protofed.errors import UserError
from protofed.trust.privacy.section import Neighbours, PrivacySection

_MOST_NOISE = 1e6
"""Larger numbers, of epsilon or of noise multipliers, are not searched."""

_LEAST_NOISE = 0.1
"""With less noise per unit of sensitivity a step protects nothing, and its distribution does not fit into memory."""


class RoundCost(NamedTuple):
    """What one client releases in one round."""

    sums: float = 0.0  # noise multiplier of class sums and counts; 0: they are not released
    steps: int = 0  # steps of DP-SGD
    rate: float = 0.0  # the probability that an example is in a step
    step_noise: float = 0.0

    def scaled(self, factor: float) -> RoundCost:
        """The same releases with `factor` times the noise."""
        return self._replace(sums=self.sums * factor, step_noise=self.step_noise * factor)


def sensitivity(neighbours: Neighbours, count_share: float) -> float:
    """The L2 sensitivity of a client's class sums and counts, each divided by its noise at noise multiplier 1.

    The squared distance that one example moves is 1 - share in the sums and share in the counts. Replacing an example
    moves the sum of one class by up to twice its norm, or moves two classes, sums and counts, by one example each.

    >>> sensitivity("add-remove", 0.1), round(sensitivity("replace-one", 0.19), 6), sensitivity("replace-one", 0.5) ** 2
    (1.0, 1.8, 2.0000000000000004)
    """
    return 1.0 if neighbours == "add-remove" else max(2 * math.sqrt(1 - count_share), math.sqrt(2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta at which Gaussian noise has this epsilon; `mu`: sensitivity / standard deviation."""
    from scipy.special import log_ndtr

    first = math.exp(log_ndtr(mu / 2 - epsilon / mu))
    return max(0.0, first - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at which Gaussian noise has this delta. T releases are one with sqrt(T) times the mu.

    >>> round(gaussian_epsilon(50**0.5 / 4, 1e-5), 3)
    8.596
    """
    if mu == 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    return _solved(lambda epsilon: gaussian_delta(mu, epsilon) <= delta, 1e-12)


def total_epsilon(cost: RoundCost, rounds: int, privacy: PrivacySection) -> float:
    """Epsilon of this number of rounds of one client; infinite if it is so large that it means nothing."""
    if rounds == 0 or not (cost.sums or cost.steps):
        return 0.0
    moved = sensitivity(privacy.neighbours, privacy.count_share)
    if cost.steps and (cost.step_noise < _LEAST_NOISE or 0 < cost.sums < _LEAST_NOISE * moved):
        return math.inf
    if not cost.steps:
        return gaussian_epsilon(math.sqrt(rounds) * moved / cost.sums, privacy.delta)
    return pld_epsilon(cost, rounds, privacy.delta, privacy.neighbours, moved)


@cache
def pld_epsilon(cost: RoundCost, rounds: int, delta: float, neighbours: Neighbours, moved: float = 1.0) -> float:
    """Epsilon by privacy loss distributions. `moved`: the sensitivity of the class sums and counts."""
    try:
        import dp_accounting
        from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
    except ImportError:
        raise UserError(
            "The privacy of DP-SGD is computed by the package dp-accounting, which is not installed. "
            "Install it: pip install 'protofed[privacy]'"
        ) from None
    replaces = neighbours == "replace-one"
    relation = dp_accounting.NeighboringRelation
    accountant = PLDAccountant(relation.REPLACE_ONE if replaces else relation.ADD_OR_REMOVE_ONE)
    if cost.steps:
        step = dp_accounting.PoissonSampledDpEvent(cost.rate, dp_accounting.GaussianDpEvent(cost.step_noise))
        accountant.compose(step, cost.steps * rounds)
    if cost.sums:  # for replace-one, dp-accounting takes a Gaussian mechanism to move by 2 instead of 1
        accountant.compose(dp_accounting.GaussianDpEvent(cost.sums * (2 if replaces else 1) / moved), rounds)
    return float(accountant.get_epsilon(delta))


def noise_factor(cost: RoundCost, rounds: int, privacy: PrivacySection, target: float) -> float:
    """The factor for all noise of a cost with which the total epsilon is at most the target."""
    if not target > 0:
        raise UserError(f"The target epsilon must be above 0, got {target:g}.")
    factor = _solved(lambda tried: total_epsilon(cost.scaled(tried), rounds, privacy) <= target, 1e-3)
    if factor > _MOST_NOISE:
        raise UserError(f"No noise gives epsilon {target:g} at delta {privacy.delta:g}. Use a larger epsilon.")
    return factor


def _solved(is_enough: Callable[[float], bool], precision: float) -> float:
    """The smallest number that is enough, up to the relative precision and from above. If x is, so is all above x."""
    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
        if high > 2 * _MOST_NOISE:
            return math.inf
    if low == 0.0:
        while high > 1e-9 and is_enough(high / 2):
            high /= 2
        low = high / 2
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
