"""Measures of a finished run, computed on demand. Each measure is a table of rows and columns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofed.core import Scores
from protofed.engines.scoring import hit, labelled, predicted, with_input_shape
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.results import Result
from protofed.measures.bound_tables import measure_bounds
from protofed.measures.classification import auc, balanced_accuracy, calibration_error, confusion, macro_f1
from protofed.measures.cost import cost_of_rounds, cost_until
from protofed.measures.entropy import measure_entropy
from protofed.measures.evenness import evenness
from protofed.measures.geometry import centres, cosine_similarities, drift, scatter
from protofed.measures.objective import measure_objective
from protofed.measures.of_features import mean_margins, measure_discrepancy, measure_gradients, measure_model_margins
from protofed.measures.question import Measurement, Measurements, Question, Rows
from protofed.measures.unknown_rules import measure_unknown
from protofed.methods.parts.margins import other_class_distances, semantic_margins
from protofed.net import EVALUATION_BATCH
from protofed.plugins import Registry, label


@torch.no_grad()
def _scores_by_head(answer: Callable[[Tensor], Scores], parts: Sequence[Examples]) -> tuple[Tensor, Tensor] | None:
    """The scores [n, classes] by head of all examples, and their labels [n]; None if there are none."""
    batches = (batch for part in parts for batch in part.batches(EVALUATION_BATCH))
    scored = [labelled(scores["head"], y) for x, y in batches if "head" in (scores := answer(x))]
    return (torch.cat([scores for scores, _ in scored]), torch.cat([y for _, y in scored])) if scored else None


def _client_scores(question: Question) -> dict[int, tuple[Tensor, Tensor]]:
    """Scores and labels per client on its own test set, for the clients that have one."""
    tests = question.state.members.test
    scored = {client: _scores_by_head(model.compute_scores, [tests[client]]) for client, model in question.models()}
    return {client: scores for client, scores in scored.items() if scores}


def _server_scores(question: Question) -> tuple[Tensor, Tensor] | None:
    """Scores and labels of the server's own model on the balanced test set; None if the server has no model."""
    model = question.state.model(None)
    return _scores_by_head(model.compute_scores, with_input_shape(question.state.members.balanced, model.net.shape))


def _classification_figures(scores: Tensor, y: Tensor) -> dict[str, Any]:
    """All measures of classification, from logits [n, classes] and labels [n]."""
    answers, probabilities, classes = predicted(scores), scores.double().softmax(-1), scores.shape[1]
    return {
        "examples": len(y),
        "accuracy": float(hit(scores, y).double().mean()),
        "balanced_accuracy": balanced_accuracy(y, answers, classes),
        "macro_f1": macro_f1(y, answers, classes),
        "auc": auc(probabilities, y),
        "calibration_error": calibration_error(probabilities, y),
    }


def _column_means(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """The mean of every column over the rows that have a value in it."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            columns.setdefault(key, []).extend([] if value is None else [value])
    return {key: sum(values) / len(values) if values else None for key, values in columns.items()}


def _measure_classification(question: Question) -> Measurement:
    """Balanced accuracy, F1, AUC and calibration of each client and of the server."""
    scored = _client_scores(question)
    rows: Rows = {question.name(client): _classification_figures(*scores) for client, scores in scored.items()}
    if question.client is None:
        rows["mean"] = _column_means(list(rows.values()))
        if server_scores := _server_scores(question):
            rows["server"] = _classification_figures(*server_scores)
    return Measurement(
        "By head: each client on its own test set, the mean over clients, and the server's own model, if it has one, "
        "on the balanced test set.",
        rows,
    )


def _measure_confusion(question: Question) -> Measurement:
    """Number of examples per true class and predicted class."""
    server_scores = _server_scores(question) if question.client is None else None
    scored = [server_scores] if server_scores else list(_client_scores(question).values())
    if server_scores:
        tested = "the server's own model on the balanced test set"
    elif question.client is None:
        tested = "all clients, each on its own test set"
    else:
        tested = f"{question.name(question.client)} on its own test set"
    classes = len(question.labels)
    counts = sum(
        (confusion(y, predicted(scores), classes) for scores, y in scored),
        start=torch.zeros(classes, classes, dtype=torch.long),
    )
    rows = {label: question.by_class(row) for label, row in zip(question.labels, counts, strict=True)}
    return Measurement(
        f"Number of examples per true class (row) and predicted class (column): {tested}, by head.", rows
    )


def _measure_fairness(question: Question) -> Measurement:
    """Accuracy over clients: mean, spread, worst tenth, Jain's index."""
    rows: Rows = {}
    for column in question.result.clients[0]:
        if column.startswith(("accuracy_", "personal_")):
            values = [row[column] for row in question.result.clients if row[column] is not None]
            if figures := evenness(values):
                rows[column.removeprefix("accuracy_")] = {"clients": len(values), **figures}
    return Measurement("Accuracy over clients: mean, standard deviation, mean of the worst tenth, Jain's index.", rows)


def _measure_similarity(question: Question) -> Measurement:
    """Cosines between the server's prototypes of every two classes."""
    similarities = cosine_similarities(question.prototypes)
    rows = {label: question.by_class(row) for label, row in zip(question.labels, similarities, strict=True)}
    return Measurement("The cosine similarity between the server's prototypes of every two classes.", rows)


def _measure_scatter(question: Question) -> Measurement:
    """Variance of the embeddings within and between classes."""
    embedded: list[tuple[Tensor, Tensor]] = []
    rows: Rows = {}
    for client, model in question.models():
        model.must_be_finite()
        embedded.append(model.net.features(model.params, question.state.members.test[client]))
        rows |= _scatter_row(question.name(client), *embedded[-1], len(question.labels))
    if question.client is None:
        rows["mean"] = _column_means(list(rows.values()))
        if len({z.shape[1] for z, _ in embedded}) == 1:
            z, y = (torch.cat(parts) for parts in zip(*embedded, strict=True))
            rows |= _scatter_row("pooled", z, y, len(question.labels))
    return Measurement(
        "The embeddings of each client's test set: variance within classes, between classes, and their ratio. "
        "`pooled`: the same of all clients' embeddings together, if they have the same size.",
        rows,
    )


def _scatter_row(name: str, z: Tensor, y: Tensor, classes: int) -> Rows:
    """A row with the scatter of embeddings [n, dim] with labels [n]; {} without examples."""
    variances = scatter(z, y, classes)
    return {name: {**variances._asdict(), "ratio": variances.ratio}} if variances else {}


def _measure_margins(question: Question) -> Measurement:
    """Distances between the server's prototypes."""
    prototypes = question.prototypes
    per_class = zip(
        question.labels,
        other_class_distances(prototypes, prototypes).tolist(),
        semantic_margins(prototypes, prototypes).tolist(),
        (prototypes.support[:, 0] > 0).tolist(),
        strict=True,
    )
    rows: Rows = {"mean": mean_margins(prototypes)}
    rows |= {f"class {label}": {"between": far, "letter": mu} for label, far, mu, exists in per_class if exists}
    rows |= {f"round {number}": mean_margins(centres(traced)) for number, traced in question.trace}
    return Measurement(
        "The aggregate mean margin of the server's prototypes: `between` is the mean distance to the prototypes of the "
        "other classes, `letter` is Eq. (15) to the letter; overall, per class, and per round in trace/.",
        rows,
    )


def _measure_drift(question: Question) -> Measurement:
    """How far the server's prototypes have moved from trace to trace."""
    question.must_have_prototypes()
    trace = question.trace
    if len(trace) < 2:
        raise UserError(
            f"drift needs at least two rounds in trace/, but {question.result.folder or 'this run'} has {len(trace)}. "
            "Run it again with --set run.trace_every=1."
        )
    rows: Rows = {}
    for (_, before), (number, after) in pairwise(trace):
        moved = drift(before, after)
        rows[f"round {number}"] = {**question.by_class(moved), "mean": float(moved.nanmean())}
    return Measurement(
        "The L2 distance that the server's prototype of each class has moved since the previous round in trace/.", rows
    )


def _measure_cost(question: Question) -> Measurement:
    """Numbers and bytes sent: per round, in total, and until an accuracy was reached."""
    rounds = question.result.rounds
    total = cost_of_rounds(rounds)
    ways = dict.fromkeys(key for row in rounds for key in row if key.startswith("accuracy_") and row[key] is not None)
    rows: Rows = {"per round": {key: round(value / len(rounds)) for key, value in total.items()}, "total": total}
    for key in ways:
        if not key.endswith("_std"):
            cost = cost_until(rounds, question.accuracy, key)
            rows[f"until {key.removeprefix('accuracy_')}"] = dict(cost) if cost else dict.fromkeys(total)
    return Measurement(
        "Numbers and bytes that all clients sent and received: the mean per round, the total, and the sum until an "
        f"accuracy of {question.accuracy:g} was first reached (empty if it never was).",
        rows,
    )


def _measure_function(found: Any, name: str) -> Callable[[Question], Measurement]:
    """A measure that was found by a name outside the package: a function of a `Question` that returns its rows."""
    if not callable(found):
        raise UserError(f'"{name}" is a {type(found).__name__}; must be a function that gets a Question.')

    def measured(question: Question) -> Measurement:
        rows = found(question)
        if isinstance(rows, Measurement):
            return rows
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            raise UserError(
                f"{label(name)} returned a {type(rows).__name__}; must be a Measurement, or a dict of rows by name."
            )
        return Measurement((inspect.getdoc(found) or label(name)).partition("\n")[0], rows)

    measured.__doc__ = inspect.getdoc(found)
    return measured


_MEASURES: dict[str, Callable[[Question], Measurement]] = {
    "bounds": measure_bounds,
    "classification": _measure_classification,
    "confusion": _measure_confusion,
    "cost": _measure_cost,
    "discrepancy": measure_discrepancy,
    "drift": _measure_drift,
    "entropy": measure_entropy,
    "fairness": _measure_fairness,
    "gradients": measure_gradients,
    "margins": _measure_margins,
    "model_margins": measure_model_margins,
    "objective": measure_objective,
    "scatter": _measure_scatter,
    "similarity": _measure_similarity,
    "unknown": measure_unknown,
}
MEASURES = Registry("measures", _measure_function, _MEASURES)
DEFAULT_MEASURES = ("fairness", "classification", "cost")
_PER_CLIENT = ("bounds", "classification", "confusion", "entropy", "scatter", "unknown")
"""The measures that can be computed for a single client."""


def measure(
    result: Result | str | Path,
    what: str | Sequence[str] = DEFAULT_MEASURES,
    *,
    client: int | str | None = None,
    accuracy: float = 0.9,
    beside: Result | None = None,
    baseline: Result | None = None,
    every: int | None = None,
) -> Measurements:
    """Measure a finished run: its result or its folder.

    `what`: names in `MEASURES`, or one name. `client`: only this client (its number or name). `accuracy`: the
    accuracy until which `cost` is summed. `beside`: the run that `discrepancy` compares with. `baseline`: the run of
    another method, for how much nearer to `beside` the features are than those of the baseline. `every`: `bounds`
    repeats the run and probes every this many rounds; None: what run.monitor recorded, or five rounds of a repetition.
    """
    what = (what,) if isinstance(what, str) else what
    functions = {label(name): MEASURES.find(name, "measure")[1] for name in what}
    if client is not None and not functions.keys() - (_MEASURES.keys() - set(_PER_CLIENT)):
        raise UserError(f"--client {client}: only {', '.join(_PER_CLIENT)} can be measured for a single client.")
    if beside is not None and "discrepancy" not in what:
        raise UserError("--beside: only discrepancy compares two runs. Add --what discrepancy.")
    if baseline is not None and beside is None:
        raise UserError("--baseline: only discrepancy has a baseline. Add --what discrepancy --beside DIR.")
    if every is not None and "bounds" not in what:
        raise UserError(f"--every {every}: only bounds repeats rounds. Add --what bounds.")
    result = Result.load(result) if isinstance(result, str | Path) else result
    if isinstance(client, str):
        client = result.state.members.client_number(client)
    question = Question(result, client, accuracy, other_run=beside, baseline=baseline, every=every)
    with one_thread():
        return Measurements({name: function(question) for name, function in functions.items()})
