"""Entropies per pixel (Michieli & Ozay 2021, section 5.2): how sure a model is, and how active its embeddings are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.batch import nearest_rows
from protofed.core import Net, Params
from protofed.errors import UserError
from protofed.examples import IGNORED, Examples
from protofed.measures.question import Measurement, Question, Rows
from protofed.net import EVALUATION_BATCH


class EntropyMaps(NamedTuple):
    """The two entropies of each pixel, in nats."""

    softmax: Tensor  # [n, height, width]: H_S, of the probabilities of the classes
    features: Tensor  # [n, height, width]: H_E, of the embedding scaled to sum 1


def entropy(shares: Tensor) -> Tensor:
    """The entropy [...] in nats of shares [..., n] that sum to 1; 0 log 0 is 0.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000])
    """
    terms: Tensor = torch.special.entr(shares)
    return terms.sum(-1)


def feature_entropy(z: Tensor) -> Tensor:
    """The entropy [...] of embeddings [..., dim] whose positive parts are scaled to sum 1; 0 if no part is positive."""
    mass = z.clamp(min=0)
    return entropy(mass / mass.sum(-1, keepdim=True).clamp(min=1e-12))


@torch.no_grad()
def entropy_maps(net: Net, params: Params, x: Tensor) -> EntropyMaps:
    """The entropies of normalised images [n, ...], at their size: each pixel takes the nearest embedding's H_E."""
    if not net.grid:
        raise UserError(f"Entropy maps need a net that labels every pixel, but {net.name} gives one label per input.")
    z, logits = net(params, x)
    size = (net.shape[1], net.shape[2])
    rows = entropy(logits.softmax(-1)), nearest_rows(feature_entropy(z), net.grid, size)
    return EntropyMaps(*(values.unflatten(0, (-1, *size)) for values in rows))


def mean_entropies(net: Net, params: Params, parts: Sequence[Examples]) -> dict[str, float]:
    """The mean of both entropies over all pixels that have a label."""
    sums, number = torch.zeros(2, dtype=torch.double), 0
    for x, y in (batch for part in parts for batch in part.batches(EVALUATION_BATCH)):
        is_labelled = y != IGNORED
        sums += torch.stack([values[is_labelled].double().sum() for values in entropy_maps(net, params, x)])
        number += int(is_labelled.sum())
    softmax, features = (sums / max(number, 1)).tolist()
    return {"softmax": softmax, "features": features, "pixels": number}


def measure_entropy(question: Question) -> Measurement:
    """The mean entropies of each client's model on its own test set."""
    rows: Rows = {}
    for client, model in question.models():
        model.must_be_finite()
        test = question.state.members.test[client]
        if len(test):
            rows[question.name(client)] = mean_entropies(model.net, model.params, [test])
    if question.client is None and rows:
        keys = ("softmax", "features", "pixels")
        rows["mean"] = {key: sum(row[key] for row in rows.values()) / len(rows) for key in keys}
    return Measurement(
        "Mean entropy per pixel in nats, by head, on the clients' own test sets: of the classes' probabilities "
        "(softmax), and of the embedding scaled to sum 1 (features).",
        rows,
    )
