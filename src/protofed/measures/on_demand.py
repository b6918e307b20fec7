"""What can be measured of a finished run: each measure is a table of rows and columns, made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from protofed.core import Scores, cross_entropy
from protofed.engines.scoring import fitting, hit, predicted
from protofed.engines.threads import one_thread
from protofed.errors import UserError, did_you_mean
from protofed.examples import Examples
from protofed.experiment.results import Result
from protofed.measures.classification import auc, balanced_accuracy, calibration_error, confusion, macro_f1
from protofed.measures.cost import cost_of_rounds, cost_until
from protofed.measures.discrepancy import bandwidth, gradient_dissimilarity, mean_mmd
from protofed.measures.evenness import evenness
from protofed.measures.geometry import centres, cosine_similarities, drift, scatter
from protofed.measures.question import Measurement, Question, Rows
from protofed.methods.parts.margins import aggregate_mean_margin, other_classes, semantic_margins
from protofed.net import EVALUATE
from protofed.prototypes import Prototypes

EACH, CENTRE = 500, 1000
"""Discrepancy compares at most so many features of a client, and so many of the other run."""


@torch.no_grad()
def _asked_by_head(answer: Callable[[Tensor], Scores], parts: Sequence[Examples]) -> tuple[Tensor, Tensor] | None:
    """The scores [n, classes] by head of all examples, and their labels [n]; None if there are none."""
    batches = (batch for part in parts for batch in part.batches(EVALUATE))
    found = [(scores["head"], y) for x, y in batches if "head" in (scores := answer(x))]
    return (torch.cat([scores for scores, _ in found]), torch.cat([y for _, y in found])) if found else None


def _of_clients(asked: Question) -> dict[int, tuple[Tensor, Tensor]]:
    """Scores and labels of each client on its own test set, if it has one."""
    found = {
        client: _asked_by_head(model.answer, [asked.state.members.test[client]]) for client, model in asked.models()
    }
    return {client: answers for client, answers in found.items() if answers}


def _of_server(asked: Question) -> tuple[Tensor, Tensor] | None:
    """Scores and labels of the server's own model on the balanced test set, if there is such a model."""
    model = asked.state.model(None)
    return _asked_by_head(model.answer, fitting(asked.state.members.balanced, model.net.shape))


def _judged(scores: Tensor, y: Tensor) -> dict[str, Any]:
    """Every measure of classification, from logits."""
    answers, probabilities, classes = predicted(scores), scores.double().softmax(-1), scores.shape[1]
    return {
        "examples": len(y),
        "accuracy": float(hit(scores, y).double().mean()),
        "balanced_accuracy": balanced_accuracy(y, answers, classes),
        "macro_f1": macro_f1(y, answers, classes),
        "auc": auc(probabilities, y),
        "calibration_error": calibration_error(probabilities, y),
    }


def _over(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """The mean of every column, over the rows that have it."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            columns.setdefault(key, []).extend([] if value is None else [value])
    return {key: sum(values) / len(values) if values else None for key, values in columns.items()}


def _measure_classification(asked: Question) -> Measurement:
    rows: Rows = {f"client {client}": _judged(*answers) for client, answers in _of_clients(asked).items()}
    if asked.client is None:
        rows["mean"] = _over(list(rows.values()))
        if shared := _of_server(asked):
            rows["server"] = _judged(*shared)
    return Measurement(
        "By head: each client on its own test set, the mean over clients, and the server's own model, if there is one, "
        "on the balanced test set.",
        rows,
    )


def _measure_confusion(asked: Question) -> Measurement:
    shared = _of_server(asked) if asked.client is None else None
    answers = [shared] if shared else list(_of_clients(asked).values())
    whose = "client " + str(asked.client) if asked.client is not None else "all clients, each"
    whose = "the server's own model on the balanced test set" if shared else f"{whose} on its own test set"
    classes = len(asked.labels)
    counts = sum(
        (confusion(y, predicted(scores), classes) for scores, y in answers),
        start=torch.zeros(classes, classes, dtype=torch.long),
    )
    rows = {label: asked.by_class(row) for label, row in zip(asked.labels, counts, strict=True)}
    return Measurement(f"How often a class (row) got an answer (column): {whose}, by head.", rows)


def _measure_fairness(asked: Question) -> Measurement:
    rows: Rows = {}
    for column in asked.result.clients[0]:
        if column.startswith(("accuracy_", "personal_")):
            values = [row[column] for row in asked.result.clients if row[column] is not None]
            if even := evenness(values):
                rows[column.removeprefix("accuracy_")] = {"clients": len(values), **even}
    return Measurement("The clients' accuracies: mean, spread, mean of the worst tenth, Jain's index.", rows)


def _measure_similarity(asked: Question) -> Measurement:
    found = cosine_similarities(asked.prototypes)
    rows = {label: asked.by_class(row) for label, row in zip(asked.labels, found, strict=True)}
    return Measurement("The cosines between the server's prototypes of the classes.", rows)


def _measure_scatter(asked: Question) -> Measurement:
    rows: Rows = {}
    for client, model in asked.models():
        model.must_be_finite()
        if found := scatter(*model.net.features(model.params, asked.state.members.test[client]), len(asked.labels)):
            rows[f"client {client}"] = {**found._asdict(), "ratio": found.ratio}
    if asked.client is None:
        rows["mean"] = _over(list(rows.values()))
    return Measurement(
        "The embeddings of each client's test set: variance within and between classes, their ratio.", rows
    )


def _measure_margins(asked: Question) -> Measurement:
    own = asked.prototypes
    seen = own.support[:, 0] > 0
    per_class = zip(
        asked.labels, other_classes(own, own).tolist(), semantic_margins(own, own).tolist(), seen.tolist(), strict=True
    )
    rows: Rows = {"mean": _both_readings(own)}
    rows |= {f"class {label}": {"between": far, "letter": mu} for label, far, mu, there in per_class if there}
    rows |= {f"round {number}": _both_readings(centres(kept)) for number, kept in asked.trace}
    return Measurement(
        "The aggregate mean margin of the server's prototypes: the mean distance to the other classes' prototypes, and "
        "Eq. (15) to the letter; of each class, and over the rounds in trace/.",
        rows,
    )


def _both_readings(prototypes: Prototypes) -> dict[str, float]:
    return {
        "between": aggregate_mean_margin(prototypes, "between"),
        "letter": aggregate_mean_margin(prototypes, "letter"),
    }


def _measure_drift(asked: Question) -> Measurement:
    _, trace = asked.prototypes, asked.trace
    if len(trace) < 2:
        raise UserError(
            f"drift is between rounds in trace/, of which {asked.result.folder or 'this run'} has {len(trace)}. "
            "Run it with --set run.trace_every=1."
        )
    rows: Rows = {}
    for (_, before), (number, after) in pairwise(trace):
        moved = drift(before, after)
        rows[f"round {number}"] = {**asked.by_class(moved), "mean": float(moved.nanmean())}
    return Measurement(
        "How far each class's prototype of the server has moved since the round before in trace/ (L2).", rows
    )


def _measure_cost(asked: Question) -> Measurement:
    rounds = asked.result.rounds
    whole = cost_of_rounds(rounds)
    ways = dict.fromkeys(key for row in rounds for key in row if key.startswith("accuracy_") and row[key] is not None)
    rows: Rows = {"a round": {key: round(value / len(rounds)) for key, value in whole.items()}, "whole run": whole}
    for key in ways:
        if not key.endswith("_std"):
            reached = cost_until(rounds, asked.accuracy, key)
            rows[f"until {key.removeprefix('accuracy_')}"] = dict(reached) if reached else dict.fromkeys(whole)
    return Measurement(
        f"What all clients sent up and got: in a round on average, in the whole run, and until an accuracy of "
        f"{asked.accuracy:g} was first reached; nothing where it never was.",
        rows,
    )


def _measure_gradients(asked: Question) -> Measurement:
    state = asked.state
    method, members = state.config.method, state.members
    kept, down = state.kept[0], method.broadcast(state.server, 0)
    first = method.receive(kept, down)
    for client in range(1, len(members)):
        other = method.receive(state.kept[client], method.broadcast(state.server, client))
        if first.keys() != other.keys() or not all(torch.equal(first[name], other[name]) for name in first):
            raise UserError(
                "gradients are compared at one model that all clients have; those of "
                f"{state.config.method_name} have their own. Use a run of a method that shares all weights (fedavg)."
            )
    net = members.nets[0]
    found = gradient_dissimilarity(
        net, first, members.train, cross_entropy, lambda params, x: method.predict(net, params, x, down, kept)["head"]
    )
    busy = sum(len(train) > 0 for train in members.train)
    return Measurement(
        "The mean over clients of ||grad L_k - grad L||^2 at the shared model, on their training examples.",
        {"shared model": {"dissimilarity": found, "clients": busy}},
    )


def _features(asked: Question) -> list[Tensor]:
    """The embeddings of each client's training examples by its own model; of many, some at equal distances."""
    found = []
    for client, model in asked.models():
        model.must_be_finite()
        found.append(some(model.net.features(model.params, asked.state.members.train[client])[0], EACH))
    return found


def some(z: Tensor, limit: int) -> Tensor:
    """At most so many rows, at equal distances: rows may be in the order of their classes."""
    return z if len(z) <= limit else z[torch.arange(limit) * len(z) // limit]


def _measure_discrepancy(asked: Question) -> Measurement:
    if asked.beside is None:
        raise UserError("discrepancy is between the features of two runs: give the other one with --beside DIR.")
    mine, theirs = _features(replace(asked, client=None)), _features(Question(asked.beside))
    dims = [sorted({one.shape[1] for one in all_of}) for all_of in (mine, theirs)]
    if len({*dims[0], *dims[1]}) > 1:
        raise UserError(f"The embeddings have {dims[0]} and {dims[1]} dimensions; they must be the same (net.dim).")
    central = some(torch.cat(theirs), CENTRE)
    wide = bandwidth(central)
    return Measurement(
        f"The mean over clients of the MMD (Gaussian kernel) between their features and those of "
        f"{asked.beside.folder or 'the other run'}, on training examples.",
        {"clients": {"mmd": mean_mmd(mine, central, wide), "width": wide}},
    )


MEASURES: dict[str, Callable[[Question], Measurement]] = {
    "classification": _measure_classification,
    "confusion": _measure_confusion,
    "cost": _measure_cost,
    "discrepancy": _measure_discrepancy,
    "drift": _measure_drift,
    "fairness": _measure_fairness,
    "gradients": _measure_gradients,
    "margins": _measure_margins,
    "scatter": _measure_scatter,
    "similarity": _measure_similarity,
}
CHEAP = ("fairness", "classification", "cost")
_OF_ONE = ("classification", "confusion", "scatter")
"""What can be measured of one client."""


def measure(
    result: Result,
    what: Sequence[str] = CHEAP,
    *,
    client: int | None = None,
    accuracy: float = 0.9,
    beside: Result | None = None,
) -> dict[str, Measurement]:
    """Measure a run: `client` is for one client's figures, `accuracy` for the cost, `beside` for discrepancy."""
    for name in what:
        if name not in MEASURES:
            raise UserError(f"There is no measure {name!r}. {did_you_mean(name, MEASURES)}")
    if client is not None and not set(what) & set(_OF_ONE):
        raise UserError(f"--client {client}: only {', '.join(_OF_ONE)} can be measured of one client.")
    if beside is not None and "discrepancy" not in what:
        raise UserError("--beside: only discrepancy is between two runs. Ask for it: --what discrepancy.")
    asked = Question(result, client, accuracy, beside)
    with one_thread():
        return {name: MEASURES[name](asked) for name in dict.fromkeys(what)}
