"""The server's own model: its accuracy on the test sets, and its loss on all training examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.devices import moved
from protofed.engines.scoring import labelled, pixel_counts, tally
from protofed.experiment.pixels import server_overlap_columns
from protofed.net import EVALUATION_BATCH

if TYPE_CHECKING:
    from protofed.core import AnyMethod, Scores
    from protofed.examples import Examples
    from protofed.experiment.members import Members
    from protofed.experiment.results import RoundRow

Predict = Callable[[Tensor], "Scores"]


def server_predictor(method: AnyMethod, members: Members, server: Any) -> Predict:
    """The scores of the server's model for inputs; {} if it has none."""
    net = members.nets[0]
    server = moved(server, members.balanced[0].for_steps.device) if members.balanced else server

    def predict(x: Tensor) -> Scores:
        return net.at_image_size(method.predict_global(net, server, x), len(x))

    return predict


def server_columns(
    predict: Predict, members: Members, training_loss: bool, tested: Sequence[int] | None = None
) -> RoundRow:
    """The columns of a tested round about the server's model; the accuracy is null if the server has none.

    The balanced test set is the dataset's. If clients have test sets of their own (`eval.test = "own"`, subjects), the
    accuracy on the union of these is `accuracy_global_union`: the correct predictions of all clients over all examples;
    of the `tested` clients if these are given.
    """
    accuracies = _accuracies(predict, members.balanced)
    row: RoundRow = {"accuracy_global": accuracies.get("head")}
    row |= {f"accuracy_global_{way}": share for way, share in accuracies.items() if way != "head"}
    if any(part.own for part in members.parts):
        sets = members.test if tested is None else [members.test[client] for client in tested]
        row["accuracy_global_union"] = _accuracies(predict, sets).get("head")
    if training_loss:
        row["loss_global"] = mean_cross_entropy(predict, members.train)
    if any(part.mask is not None for part in members.balanced):
        counts = pixel_counts(predict, members.balanced, members.classes)
        row |= server_overlap_columns(counts["head"], members.labels) if "head" in counts else {}
    return row


def _accuracies(predict: Predict, parts: Sequence[Examples]) -> dict[str, float]:
    """Per way of predicting: the share of the examples of all parts that is predicted correctly."""
    counts, total = [tally(predict, part) for part in parts], sum(part.num_labels for part in parts)
    ways = dict.fromkeys(way for count in counts for way in count)
    return {way: sum(count.get(way, 0) for count in counts) / total for way in ways}


@torch.no_grad()
def mean_cross_entropy(predict: Predict, parts: Sequence[Examples]) -> float | None:
    """The mean cross-entropy of the head over the examples of all parts; None without examples or without a head."""
    total, number = 0.0, 0
    for x, y in (batch for part in parts for batch in part.for_steps.batches(EVALUATION_BATCH)):
        predictions = predict(x)
        if "head" not in predictions:
            return None
        scores, labels = labelled(predictions["head"], y)
        total += float(F.cross_entropy(scores, labels, reduction="sum"))
        number += len(labels)
    return total / number if number else None
