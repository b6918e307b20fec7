"""Inputs that are unlike a client's classes: rules that score them, and limits above which an input is unknown.

The limit of a client comes from examples that it did not train on: its validation examples, otherwise half of its test
examples. The rate of false alarms and the AUC are measured on the other examples of its test set, and on examples of
other classes from the balanced test set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from protofed.data.partitions.base import stratified_share
from protofed.draws import random_state
from protofed.engines.scoring import with_input_shape
from protofed.net import EVALUATION_BATCH

if TYPE_CHECKING:
    from protofed.core import Scores
    from protofed.examples import Examples
    from protofed.experiment.members import Members
    from protofed.experiment.model import Model
    from protofed.experiment.sections import EvalSection

Rule = Literal["softmax", "energy", "prototype", "none"]
RULES = tuple(rule for rule in get_args(Rule) if rule != "none")
_MOST_ROWS = 200
"""At most this many examples of a client, of either kind, are used for a limit or a measurement."""
_SLACK = 1e-4
"""The score of an input differs by this share, at most, between batches."""


@dataclass(frozen=True)
class UnknownRule:
    """A client's rule: an input with a score above `limit` is reported as unknown, unlike the client's classes.

    `softmax`: 1 minus the largest probability of one of the client's classes, by head.
    `energy`: minus the logarithm of the sum of exp(logit) over the client's classes.
    `prototype`: the distance to the mean embedding of a class at this client, in units of the mean distance of the
    client's training examples of the class; the smallest over the client's classes.
    """

    rule: str
    classes: Tensor  # [classes]: whether the client trains on the class
    limit: float = math.inf
    means: Tensor | None = None  # prototype: [classes, dim], the mean embeddings; 0 for other classes
    spreads: Tensor | None = None  # prototype: [classes], the mean distances to them; 0 for other classes

    def scores(self, by_way: Scores, embed: Callable[[], Tensor]) -> Tensor:
        """The score [n] of each input, higher for stranger ones. `embed` computes the embeddings [n, dim]."""
        if self.rule == "prototype":
            assert self.means is not None
            assert self.spreads is not None
            distances = torch.cdist(embed().double(), self.means[self.classes].double())
            return (distances / self.spreads[self.classes].double().clamp(min=1e-12)).amin(1)
        logits = by_way["head"].double()
        if self.rule == "energy":
            return -logits[:, self.classes].logsumexp(1)
        probabilities = logits.softmax(1)
        best = probabilities.masked_fill(~self.classes, -1.0).argmax(1, keepdim=True)
        return probabilities.scatter(1, best, 0.0).sum(1)  # 1 minus the probability, also where that is almost 1

    def exceeded(self, scores: Tensor) -> Tensor:
        """Whether each score [n] is above the limit. A score that is not a number is."""
        return ~(scores <= self.limit + _SLACK * abs(self.limit))

    def of_outputs(self, outputs: Sequence[int]) -> UnknownRule:
        """The rule for a net with outputs for these classes only, numbered by output; (): one output per class."""
        if not outputs:
            return self
        order = list(outputs)
        means = None if self.means is None else self.means[order]
        spreads = None if self.spreads is None else self.spreads[order]
        return replace(self, classes=self.classes[order], means=means, spreads=spreads)

    def as_json(self) -> dict[str, Any]:
        """The rule for unknown.json and for files with a model."""
        arrays = {"means": self.means, "spreads": self.spreads}
        return {
            "rule": self.rule,
            "classes": self.classes.nonzero().flatten().tolist(),
            "limit": self.limit,
            **{key: value.tolist() for key, value in arrays.items() if value is not None},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], classes: int) -> UnknownRule:
        """The rule that `as_json` described, for a net with this number of classes."""
        is_own = torch.zeros(classes, dtype=torch.bool)
        is_own[stored["classes"]] = True
        arrays = {key: torch.tensor(stored[key]) for key in ("means", "spreads") if key in stored}
        return cls(stored["rule"], is_own, stored["limit"], **arrays)


class UnknownFigures(NamedTuple):
    """What was measured of a client's rule on examples that its limit does not depend on; None without examples."""

    held_out: int  # examples behind the limit
    own: int  # examples of the client's classes
    own_flagged: int  # of these, reported as unknown
    foreign: int  # examples of other classes
    foreign_flagged: int
    auc: float | None


class Calibration(NamedTuple):
    """A client's rule with its limit, and what was measured of it."""

    rule: UnknownRule
    figures: UnknownFigures

    def as_json(self) -> dict[str, Any]:
        """The entry of a client in unknown.json."""
        return {**self.rule.as_json(), **self.figures._asdict()}


def limit_for(scores: Tensor, false_alarms: float) -> float | None:
    """The limit that a further score of the same kind exceeds with at most this probability; None without scores [n].

    If there are fewer than 1 / false_alarms - 1 scores, it is the largest: the probability is then 1 / (n + 1).

    >>> limit_for(torch.arange(1.0, 40.0), 0.05)  # the second largest of 39: exceeded in 2 of 40 cases
    38.0
    >>> limit_for(torch.tensor([3.0, 1.0]), 0.05)
    3.0
    """
    if not len(scores) or not torch.isfinite(scores).all():
        return None
    rank = math.ceil((len(scores) + 1) * (1 - false_alarms) - 1e-9)
    return float(scores.sort().values[min(rank, len(scores)) - 1])


def separation(own: Tensor, foreign: Tensor) -> float | None:
    """The AUC: the probability that a foreign score is above an own one; ties count half. None without either.

    >>> separation(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.5]))
    0.875
    """
    if not len(own) or not len(foreign) or not torch.isfinite(torch.cat([own, foreign])).all():
        return None
    ranked = own.sort().values
    below, up_to = (torch.searchsorted(ranked, foreign, right=right).double() for right in (False, True))
    return float(((below + up_to) / 2).mean() / len(own))


def client_calibration(model: Model, evaluation: EvalSection, members: Members) -> Calibration | None:
    """The rule of a client's model that the experiment asks for; None if it asks for none, or if there is no limit."""
    if evaluation.unknown == "none" or model.net.grid:
        return None
    return calibrate(model, fitted_rule(model, evaluation.unknown), evaluation.false_alarms, members)


def calibrate(model: Model, rule: UnknownRule, false_alarms: float, members: Members) -> Calibration | None:
    """The rule of a client's model with its limit, see `calibrate_on`; None if there is none."""
    if model.net.grid:  # labels of images may be others than those of pixels
        return None
    client, is_own = model.client, rule.classes
    assert client is not None
    test = of_classes(members.test[client], is_own)
    validation = members.validation[client] if members.validation else test.subset(np.zeros(0))
    held_out, rest = (validation, test) if len(validation) else halves(test)
    return calibrate_on(model, rule, false_alarms, held_out, rest, _foreign(members, model, is_own))


def calibrate_on(
    model: Model,
    rule: UnknownRule,
    false_alarms: float,
    held_out: Examples,
    own: Examples | None = None,
    foreign: Sequence[Examples] = (),
) -> Calibration | None:
    """The rule with a limit from the `held_out` examples, measured on others, of the client's classes and of others.

    None if there are no examples for the limit, if the client has no class, if every pixel has a label, or if the rule
    needs the scores of a head and the model has none.
    """
    needs_head = rule.rule != "prototype"
    if model.net.grid or not rule.classes.any() or (needs_head and "head" not in model.ways()):
        return None
    by_held_out = _scores(model, rule, [held_out])
    limit = limit_for(by_held_out, false_alarms)
    if limit is None:
        return None
    by_own, by_foreign = _scores(model, rule, [own] if own else []), _scores(model, rule, foreign)
    limited = replace(rule, limit=limit)
    own_flagged, foreign_flagged = (int(limited.exceeded(scores).sum()) for scores in (by_own, by_foreign))
    auc = separation(by_own, by_foreign)
    return Calibration(
        limited,
        UnknownFigures(len(by_held_out), len(by_own), own_flagged, len(by_foreign), foreign_flagged, auc),
    )


def unknown_summary(rule: str, false_alarms: float, calibrations: Mapping[int, Calibration]) -> dict[str, Any]:
    """The key `unknown` of result.json: rates over the examples of all clients, and the mean AUC over clients."""

    def rate(flagged: int, total: int) -> float | None:
        return flagged / total if total else None

    measured = [calibration.figures for calibration in calibrations.values()]
    areas = [figures.auc for figures in measured if figures.auc is not None]
    return {
        "rule": rule if measured else None,
        "aim": false_alarms,
        "false_alarms": rate(sum(f.own_flagged for f in measured), sum(f.own for f in measured)),
        "found": rate(sum(f.foreign_flagged for f in measured), sum(f.foreign for f in measured)),
        "auc": sum(areas) / len(areas) if areas else None,
        "clients": len(measured),
    }


def fitted_rule(model: Model, rule: str) -> UnknownRule:
    """A rule without a limit, for the classes of the model's training examples."""
    is_own = model.data.class_counts(len(model.labels)) > 0
    if rule != "prototype":
        return UnknownRule(rule, is_own)
    z, y = model.net.features(model.params, model.data)
    means, spreads = torch.zeros(len(is_own), z.shape[1]), torch.zeros(len(is_own))
    for label in is_own.nonzero().flatten().tolist():
        of_class = z[y == label]
        means[label] = of_class.mean(0)
        spreads[label] = (of_class - means[label]).norm(dim=1).mean()
    return UnknownRule(rule, is_own, means=means, spreads=spreads)


@torch.no_grad()
def _scores(model: Model, rule: UnknownRule, parts: Sequence[Examples]) -> Tensor:
    """The scores [n] of examples at even distances in all parts, about `_MOST_ROWS` at most."""
    parts = [part for part in parts if len(part)]
    most = math.ceil(_MOST_ROWS / max(len(parts), 1))
    chosen = [part.subset(np.unique(np.linspace(0, len(part) - 1, most).round())) for part in parts]
    batches = (x for part in chosen for x, _ in part.batches(EVALUATION_BATCH))
    return torch.cat([torch.zeros(0, dtype=torch.double), *(model.unknown_scores(rule, x) for x in batches)])


def of_classes(examples: Examples, wanted: Tensor) -> Examples:
    """The examples of the classes that are wanted [classes]."""
    return examples.subset(wanted[examples.labels].nonzero().flatten().numpy())


def halves(examples: Examples) -> tuple[Examples, Examples]:
    """Half of the examples of each class, rounded down and drawn at random, and the other half."""
    first = stratified_share(examples.labels.numpy(), 0.5, random_state("unknown"))
    return examples.subset(np.flatnonzero(first)), examples.subset(np.flatnonzero(~first))


def _foreign(members: Members, model: Model, is_own: Tensor) -> list[Examples]:
    """Examples of other classes from the balanced test set, normalised as the client's inputs."""
    parts = with_input_shape(members.balanced, model.net.shape)
    return [of_classes(part.normalised_like(model.data), ~is_own) for part in parts]
