"""Checks of what clients answer, before anything is computed with it. Every problem is a `ValueError`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from protofed.core import AnyMethod, Upload
from protofed.engines.engine import Evaluation, Report
from protofed.messages import leaves, unflatten
from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from protofed.engines.scoring import Counts, Hits

MessageFigures = dict[str, Any]


def check_identity(figures: Mapping[str, Any], task: Mapping[str, Any]) -> None:
    """Raise an error unless an answer belongs to this message."""
    for key in ("run", "kind", "number"):
        if figures.get(key) != task[key]:
            raise ValueError(f"it answered for {key} {figures.get(key)!r} instead of {task[key]!r}")
    if figures.get("round") != task["round"]:
        answered: Any = figures.get("round")
        shown = answered + 1 if _is_count(answered) else answered
        raise ValueError(f"it answered round {shown} in round {task['round'] + 1} (stale)")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _finite_number(figures: Mapping[str, Any], key: str) -> float:
    value: Any = figures.get(key)
    if type(value) not in (int, float) or value < 0 or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r}")
    return float(value)


def count_of(figures: Mapping[str, Any], key: str) -> int:
    """A whole number from 0."""
    value: Any = figures.get(key)
    if not _is_count(value):
        raise ValueError(f"{key} is {value!r}")
    return int(value)


def read_report(
    method: AnyMethod,
    number: int,
    tensors: dict[str, Tensor],
    figures: MessageFigures,
    like: Any,
    classes: Tensor | None,
) -> Report:
    """The report of a client. `like`: an upload with the names, types and shapes that this one must have.

    `classes` [classes]: whether the client enrolled with each class; None: it does not say.
    """
    try:
        message = unflatten(method.types()["up"], tensors)
    except (ValueError, KeyError, TypeError, RuntimeError, IndexError) as problem:
        raise ValueError(f"its upload cannot be read: {problem}") from None
    _check_structure(message, like)
    for name, leaf in leaves(message):
        if isinstance(leaf, Prototypes) and classes is not None:
            strange = (leaf.support != 0).any(1) & ~classes
            if strange.any():
                label = int(strange.nonzero()[0])
                raise ValueError(f"{name or 'the message'} has the class number {label}, which it did not enrol with")
    terms = figures.get("terms")
    if not isinstance(terms, dict) or not all(type(value) in (int, float) for value in terms.values()):
        raise ValueError(f"terms is {terms!r}")
    upload = Upload(
        number,
        count_of(figures, "num_examples"),
        count_of(figures, "steps"),
        _finite_number(figures, "work"),
        message,
        count_of(figures, "round"),
    )
    return Report(
        upload, {str(key): float(value) for key, value in terms.items()}, _finite_number(figures, "examples_seen"), {}
    )


def _check_structure(message: Any, like: Any) -> None:
    """Raise an error unless a message has the names, types and shapes of another one."""
    got, expected = dict(leaves(message)), dict(leaves(like))
    for name in sorted(got.keys() | expected.keys()):
        shown = name or "the message"
        if name not in got or name not in expected:
            raise ValueError(f"{shown} {'is missing' if name not in got else 'is unknown'}")
        for value, wanted in zip(_tensors(got[name]), _tensors(expected[name]), strict=False):
            if value.shape != wanted.shape:
                raise ValueError(f"{shown} has the shape {list(value.shape)}; must be {list(wanted.shape)}")
            if value.dtype != wanted.dtype:
                raise ValueError(f"{shown} is of type {value.dtype}; must be {wanted.dtype}")


def _tensors(leaf: Tensor | Prototypes) -> tuple[Tensor, ...]:
    return (leaf.mean, leaf.support) if isinstance(leaf, Prototypes) else (leaf,)


def read_evaluation(number: int, figures: MessageFigures, classes: int) -> Evaluation:
    """The evaluation of a client."""
    total = count_of(figures, "total")
    return Evaluation(number, _correct(figures, total), total, _pixels(figures, classes))


def read_server_scores(figures: MessageFigures, classes: int) -> MessageFigures:
    """A client's counts of the server's own model."""
    scores = figures.get("server")
    if not isinstance(scores, dict):
        raise ValueError("the scores of the server's model are missing")
    total = count_of(scores, "total")
    loss = scores.get("loss")
    if loss is not None and type(loss) not in (int, float):
        raise ValueError(f"loss is {loss!r}")
    checked = {"correct": _correct(scores, total), "total": total, "pixels": _pixels(scores, classes)}
    return {**checked, "loss": loss, "loss_total": count_of(scores, "loss_total")}


def _correct(figures: Mapping[str, Any], total: int) -> dict[str, int]:
    correct = figures.get("correct")
    if not isinstance(correct, dict) or not all(_is_count(count) and count <= total for count in correct.values()):
        raise ValueError(f"correct is {correct!r} of {total}")
    return {str(way): int(count) for way, count in correct.items()}


def _pixels(figures: Mapping[str, Any], classes: int) -> dict[str, Counts]:
    pixels = figures.get("pixels")
    if not isinstance(pixels, dict):
        raise ValueError(f"pixels is {pixels!r}")
    for matrix in pixels.values():
        is_matrix = isinstance(matrix, list) and all(
            isinstance(row, list) and len(row) == classes + 1 for row in matrix
        )
        if not is_matrix or len(matrix) != classes or not all(_is_count(count) for row in matrix for count in row):
            raise ValueError("pixels is not a matrix of counts")
    return {str(way): matrix for way, matrix in pixels.items()}


def read_hits(figures: MessageFigures, classes: int) -> Hits:
    """A client's correct predictions on the balanced test set, per way of predicting and class."""
    hits = figures.get("hits")
    if not isinstance(hits, dict) or not all(
        isinstance(row, list) and len(row) == classes and all(map(_is_count, row)) for row in hits.values()
    ):
        raise ValueError("hits are not counts per class")
    return {str(way): row for way, row in hits.items()}
