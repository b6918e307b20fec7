"""The sections [trust] and [attack] of an experiment file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

AttackKind = Literal["sign_flip", "scale", "little", "random", "swap", "label_flip", "backdoor"]
RuleForWeights = Literal["mean", "median", "trimmed_mean", "geometric_median", "krum", "multi_krum"]
RuleForPrototypes = Literal["mean", "median", "trimmed_mean", "geometric_median"]


@dataclass(frozen=True)
class TrustSection:
    """The [trust] section: which uploads are used, and how they are averaged."""

    quorum: Annotated[float, Ge(0), Le(1)] = 0.0
    """fraction of a round's clients whose uploads must be usable; with fewer, the round changes nothing; 0: none"""
    norm_cap: Annotated[float, Ge(0)] = 1e6
    """an upload is rejected if the norm of a part of it is above this multiple of the round's median; 0: no limit"""
    weights: RuleForWeights = "mean"
    """rule that combines the weights of models (docs/trust.md); mean: the method's own weighted mean"""
    prototypes: RuleForPrototypes = "mean"
    """rule that combines the prototypes of each class; mean: the method's own weighted mean"""
    clip: Annotated[float, Ge(0)] = 0.0
    """before averaging, move uploads to at most this multiple of the median distance from their median; 0: do not"""
    assumed: Annotated[float, Ge(0), Lt(0.5)] = 0.3
    """share of bad uploads that the rules are to withstand; how much trimmed_mean, krum and multi_krum leave out"""

    @property
    def special_rule(self) -> str:
        """The rule that compares single uploads; "mean" if there is none."""
        rules = (self.weights, self.prototypes, "clip" if self.clip else "mean")
        return next((rule for rule in rules if rule != "mean"), "mean")


@dataclass(frozen=True)
class AttackSection:
    """The [attack] section: clients that attack the federation, for experiments."""

    share: Annotated[float, Ge(0), Lt(1)] = 0.0
    """fraction of the clients that are attackers, drawn with run.seed; 0: none"""
    kind: AttackKind = "sign_flip"
    """what attackers do (docs/trust.md): to their uploads (sign_flip, scale, little, random, swap) or training data"""
    factor: Annotated[float, Ge(0)] = 0.0
    """strength of sign_flip, scale, random and little; 0: 10, 10, 1, and for little the value of its paper"""
    classes: tuple[Annotated[int, Ge(0)], Annotated[int, Ge(0)]] = (0, 1)
    """numbers of the two classes that swap exchanges; the first one is what backdoor makes of triggered images"""
    poisoned: Annotated[float, Gt(0), Le(1)] = 0.5
    """fraction of an attacker's training examples that get the trigger of backdoor"""
