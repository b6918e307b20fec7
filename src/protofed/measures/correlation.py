"""The linear correlation of two lists of figures, such as margins and accuracies (Michieli & Ozay 2021, 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Correlation(NamedTuple):
    """Pearson's coefficient, and the probability of one at least this far from 0 if the figures were independent."""

    rho: float
    p_value: float
    number: int  # of pairs


def pearson(a: Sequence[float], b: Sequence[float]) -> Correlation:
    """Pearson's correlation of pairs of figures; NaN for fewer than three pairs, or if one list is constant.

    >>> round(pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).rho, 9)
    1.0
    """
    from scipy import stats

    if len(a) != len(b):
        raise ValueError(f"a correlation needs pairs, got {len(a)} and {len(b)} figures")
    if len(a) < 3 or len(set(a)) == 1 or len(set(b)) == 1:
        return Correlation(float("nan"), float("nan"), len(a))
    found = stats.pearsonr(a, b)
    return Correlation(float(found.statistic), float(found.pvalue), len(a))
