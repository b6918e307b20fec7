"""How well rules tell inputs of a client's own classes from inputs of other classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protofed.experiment.unknown import RULES, UnknownRule, calibrate, fitted_rule, unknown_summary
from protofed.measures.question import Measurement, Question, Rows
from protofed.net import EVALUATION_BATCH

if TYPE_CHECKING:
    from protofed.core import Scores
    from protofed.experiment.model import Model


@dataclass(frozen=True)
class _NearestServerPrototype(UnknownRule):
    """The distance to the nearest prototype of the server, relative to the mean distance of the class's examples.

    It is only measured, not used: embeddings of foreign inputs are short and lie near prototypes that are short, too.
    """

    def scores(self, by_way: Scores, embed: Callable[[], Tensor]) -> Tensor:
        assert self.spreads is not None
        distances = -by_way["prototype"].double()
        return distances.amin(1) / self.spreads[distances.argmin(1)].clamp(min=1e-12)

    @classmethod
    @torch.no_grad()
    def of(cls, model: Model) -> _NearestServerPrototype | None:
        """The rule for a model; None if it does not predict by prototype."""
        batches = [(model.compute_scores(x), y) for x, y in model.data.batches(EVALUATION_BATCH)]
        if not batches or "prototype" not in batches[0][0]:
            return None
        labels = torch.cat([y for _, y in batches])
        distances = torch.cat([-scores["prototype"].double() for scores, _ in batches])
        distances = distances.gather(1, labels.unsqueeze(1)).squeeze(1)
        spreads = torch.full((len(model.labels),), float(distances.mean()), dtype=torch.double)
        for label in labels.unique().tolist():
            spreads[label] = distances[labels == label].mean()
        return cls("server_prototype", torch.bincount(labels, minlength=len(model.labels)) > 0, spreads=spreads)


def measure_unknown(question: Question) -> Measurement:
    """Each rule at every client, with its limit from examples that are not measured."""
    wanted, members = question.state.config.eval.false_alarms, question.state.members
    makers: dict[str, Callable[[Model], UnknownRule | None]] = {rule: partial(fitted_rule, rule=rule) for rule in RULES}
    makers["server_prototype"] = _NearestServerPrototype.of
    rows: Rows = {}
    models = [(client, model) for client, model in question.models() if len(model.data) and not model.net.grid]
    for name, make in makers.items():
        rules = {client: (model, rule) for client, model in models if (rule := make(model))}
        calibrations = {
            client: calibration
            for client, (model, rule) in rules.items()
            if (calibration := calibrate(model, rule, wanted, members))
        }
        if calibrations:
            figures = unknown_summary(name, wanted, calibrations)
            areas = [c.figures.auc for c in calibrations.values() if c.figures.auc is not None]
            rows[name] = {
                "auc": figures["auc"],
                "lowest_auc": min(areas, default=None),
                "false_alarms": figures["false_alarms"],
                "found": figures["found"],
                "clients": len(calibrations),
            }
    if not rows:
        for _, model in models:
            model.must_be_finite()
    return Measurement(
        "Rules for unknown inputs: the AUC between a client's own classes and all others (mean and lowest client), and "
        f"the shares of inputs of both kinds that are marked if the limit is set for {100 * wanted:g} % false alarms.",
        rows,
        () if rows else ("No client has test examples of its classes, or every pixel has a label.",),
    )
