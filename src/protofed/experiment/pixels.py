"""Runs in which every pixel has a label: which nets fit, and how far predictions and masks overlap.

The overlap of a class is its intersection over union (IoU): pixels that have the class in both the mask and the
prediction, divided by those that have it in at least one of them. A mean leaves out classes that occur in neither.
Class 0 is the background.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protofed.errors import UserError

if TYPE_CHECKING:
    from protofed.core import AnyMethod
    from protofed.engines.engine import Evaluation
    from protofed.engines.scoring import Counts
    from protofed.examples import Examples
    from protofed.experiment.members import Members


def class_overlaps(counts: Counts) -> list[float | None]:
    """The IoU of each class, from pixels per true class (row) and predicted class (column; the last one: no answer).

    >>> class_overlaps([[6, 2, 0], [0, 2, 0]])
    [0.75, 0.5]
    """
    matrix = np.asarray(counts, dtype=np.int64)
    both = matrix.diagonal()
    either = matrix.sum(1) + matrix[:, :-1].sum(0) - both
    return [int(hit) / int(total) if total else None for hit, total in zip(both, either, strict=True)]


def mean_overlap(counts: Counts, background: bool = True) -> float | None:
    """The mean IoU (mIoU) over the classes that occur; without `background`, class 0 is left out.

    >>> mean_overlap([[6, 2, 0], [0, 2, 0]]), mean_overlap([[6, 2, 0], [0, 2, 0]], background=False)
    (0.625, 0.5)
    """
    overlaps = [overlap for overlap in class_overlaps(counts)[0 if background else 1 :] if overlap is not None]
    return float(np.mean(overlaps)) if overlaps else None


def client_overlap(evaluation: Evaluation, way: str, background: bool = True) -> float | None:
    """The mIoU of a client on its own test set; None if its pixels have no labels."""
    return mean_overlap(evaluation.pixels[way], background) if way in evaluation.pixels else None


def overlap_columns(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """A round's columns about clients: per way of predicting the mean and deviation of their mIoU, and without class 0.

    {} if pixels have no labels.
    """
    row: dict[str, Any] = {}
    for way in dict.fromkeys(way for evaluation in evaluations for way in evaluation.pixels):
        overlaps = [client_overlap(evaluation, way) for evaluation in evaluations]
        of_objects = [client_overlap(evaluation, way, background=False) for evaluation in evaluations]
        values, objects = ([value for value in column if value is not None] for column in (overlaps, of_objects))
        row |= {
            f"miou_{way}": float(np.mean(values)) if values else None,
            f"miou_{way}_std": float(np.std(values)) if values else None,
            f"miou_{way}_objects": float(np.mean(objects)) if objects else None,
        }
    return row


def server_overlap_columns(counts: Counts, labels: Sequence[str | int]) -> dict[str, Any]:
    """A round's columns about the server's model: its mIoU with and without class 0, and the IoU of each class."""
    return {
        "miou": mean_overlap(counts),
        "miou_objects": mean_overlap(counts, background=False),
        "iou": dict(zip(map(str, labels), class_overlaps(counts), strict=True)),
    }


def background_overlap(parts: Sequence[Examples], classes: int) -> float | None:
    """The baseline: the mIoU on these examples of a model that predicts the background everywhere."""
    totals = [sum(int(part.class_counts(classes)[label]) for part in parts) for label in range(classes)]
    return mean_overlap([[total, *[0] * classes] for total in totals])


def overlap_summary(row: dict[str, Any], members: Members) -> dict[str, Any]:
    """The entry `miou` of result.json, from the last round: of the server's model, and the mean over clients.

    `background` is the baseline on the balanced test set.
    """
    summary = {"mean": row["miou"], "per_class": row.get("iou")}
    ways = [key for key in row if key.startswith("miou_") and f"{key}_std" in row]
    if not ways and "iou" not in row:
        return summary
    clients = {
        key.removeprefix("miou_"): {"mean": row[key], "std": row[f"{key}_std"], "objects": row[f"{key}_objects"]}
        for key in ways
    }
    baseline = background_overlap(members.balanced, members.classes)
    return {**summary, "objects": row.get("miou_objects"), "background": baseline, "clients": clients}


def check_pixel_labels(members: Members, method_name: str, method: AnyMethod) -> None:
    """Raise an error if nets label pixels and the data do not, or the reverse, or if the method cannot do either."""
    for net, train in zip(members.nets, members.train, strict=True):
        if train.mask is not None and not net.grid:
            raise UserError(
                f"{members.dataset} has a label for every pixel, but net {net.name} gives one per image. "
                "Use a net that labels pixels (unet, deeplab)."
            )
        if net.grid and train.mask is None:
            raise UserError(
                f"net {net.name} labels every pixel, but {members.dataset} has one label per input. "
                "Use data with masks (pets_masks), or another net."
            )
        if net.grid and method.calls_head:
            raise UserError(
                f"{method_name} computes logits from single embeddings, but net {net.name} computes them from maps. "
                "Use another method, such as fedavg, fedproto or protomargin."
            )
