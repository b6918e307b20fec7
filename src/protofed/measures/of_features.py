"""Measures of the models of a finished run that need its data: margins, gradients and features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.core import Net, Params, cross_entropy
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.measures.discrepancy import bandwidth, feature_discrepancy, gradient_dissimilarity, mean_mmd
from protofed.measures.question import Measurement, Question, Rows
from protofed.methods.parts.margins import aggregate_mean_margin
from protofed.plugins import label
from protofed.prototypes import Prototypes

FEATURES_PER_CLIENT, FEATURES_OF_OTHER_RUN = 500, 1000
"""The largest numbers of features that MMD compares."""


class _OneModel(NamedTuple):
    """The model that all clients receive, and how it predicts by head."""

    net: Net
    params: Params
    logits: Callable[[Params, Tensor], Tensor]


def _model_of_all_clients(question: Question, measure: str) -> _OneModel:
    """The model that all clients receive; an error if they receive different ones."""
    state = question.state
    method, members = state.config.method, state.members
    kept, down = state.kept[0], method.broadcast(state.server, 0)
    params = method.receive(kept, down)
    for client in range(1, len(members)):
        other = method.receive(state.kept[client], method.broadcast(state.server, client))
        if params.keys() != other.keys() or not all(torch.equal(params[name], other[name]) for name in params):
            raise UserError(
                f"{measure} needs one model that all clients share, but the clients of "
                f"{label(state.config.method_name)} have different ones. Use a method that shares all weights, such as "
                "fedavg."
            )
    net = members.nets[0]
    return _OneModel(net, params, lambda params, x: method.predict(net, params, x, down, kept)["head"])


def measure_gradients(question: Question) -> Measurement:
    """How much the gradients of all clients differ at the shared model."""
    model, train = _model_of_all_clients(question, "gradients"), question.state.members.train
    dissimilarity = gradient_dissimilarity(model.net, model.params, train, cross_entropy, model.logits)
    return Measurement(
        "The mean over clients of ||grad L_k - grad L||^2 at the shared model, on their training examples.",
        {"shared model": {"dissimilarity": dissimilarity, "clients": sum(len(part) > 0 for part in train)}},
    )


def measure_model_margins(question: Question) -> Measurement:
    """The aggregate mean margin of the shared model, in two readings of p_agg."""
    model, train = _model_of_all_clients(question, "model_margins"), question.state.members.train
    last = [train[client] for client in question.result.rounds[-1]["clients"]]
    rows: Rows = {
        name: mean_margins(model_prototypes(model.net, model.params, parts))
        for name, parts in (("all clients", train), ("clients of the last round", last))
    }
    return Measurement(
        "The aggregate mean margin of the shared model's prototypes on training examples, not scaled: `between` is the "
        "mean distance to the prototypes of the other classes, `letter` is Eq. (15) to the letter.",
        rows,
    )


def model_prototypes(net: Net, params: Params, parts: Sequence[Examples]) -> Prototypes:
    """Eq. (10) for one model: the prototypes of the clients, combined by their numbers of examples."""
    by_client = [Prototypes.of(*net.features(params, part), net.classes) for part in parts if len(part)]
    return Prototypes.pool(by_client, "examples") if by_client else Prototypes.empty(net.classes, net.dim)


def mean_margins(prototypes: Prototypes) -> dict[str, float]:
    """The aggregate mean margin in both readings of Eq. (15)."""
    return {
        "between": aggregate_mean_margin(prototypes, "between"),
        "letter": aggregate_mean_margin(prototypes, "letter"),
    }


def measure_discrepancy(question: Question) -> Measurement:
    """The distance of the clients' features from those of another run, Eq. (16); with a baseline FFD, Eq. (17)."""
    if question.other_run is None:
        raise UserError("discrepancy compares the features of two runs. Give the other run with --beside DIR.")
    runs = {"clients": replace(question, client=None)}
    if question.baseline is not None:
        runs["baseline"] = Question(question.baseline)
    features = {name: _client_features(run) for name, run in runs.items()}
    other_features = _client_features(Question(question.other_run))
    other_dims = sorted({z.shape[1] for z in other_features})
    for parts in features.values():
        dims = sorted({z.shape[1] for z in parts})
        if len({*dims, *other_dims}) > 1:
            raise UserError(
                f"The embeddings have {dims} and {other_dims} dimensions. Use two runs with the same net.dim."
            )
    central = evenly_spaced_rows(torch.cat(other_features), FEATURES_OF_OTHER_RUN)
    width = bandwidth(central)
    rows: Rows = {name: {"mmd": mean_mmd(parts, central, width), "width": width} for name, parts in features.items()}
    if question.baseline is not None:
        rows["clients"]["ffd"] = feature_discrepancy(rows["clients"]["mmd"], rows["baseline"]["mmd"])
    ffd = "; ffd is by how many percent it is smaller than the baseline's" if question.baseline else ""
    return Measurement(
        "The mean over clients of the MMD (Gaussian kernel) between their features and those of "
        f"{question.other_run.folder or 'the other run'}, on training examples{ffd}.",
        rows,
    )


def _client_features(question: Question) -> list[Tensor]:
    """Per client the embeddings of its training examples by its own model; of many examples, evenly spaced ones."""
    features = []
    for client, model in question.models():
        model.must_be_finite()
        z, _ = model.net.features(model.params, question.state.members.train[client])
        features.append(evenly_spaced_rows(z, FEATURES_PER_CLIENT))
    return features


def evenly_spaced_rows(z: Tensor, limit: int) -> Tensor:
    """At most `limit` rows of z, evenly spaced because the rows may be sorted by class."""
    return z if len(z) <= limit else z[torch.arange(limit) * len(z) // limit]
