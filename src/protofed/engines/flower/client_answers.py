"""Checks of what clients answer, before anything is computed with it. Every problem is a `ValueError`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from protofed.core import AnyMethod, Upload
from protofed.engines.engine import Evaluation, Report, Split
from protofed.messages import leaves, unflatten
from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from protofed.engines.scoring import Counts, Hits

MessageFigures = dict[str, Any]
_MOST = 2**53
"""The largest number in the figures of an answer. Up to this one, a float holds every whole number exactly."""
_LARGEST_TERM = 3.4e38
"""A term of the loss that is larger is not finite in the precision in which clients train."""
_MOST_TERMS = 100
"""The largest number of terms of a loss, and the largest number of characters in the name of one."""


class EnrolledSizes(NamedTuple):
    """The numbers of examples that a client enrolled with."""

    train: int
    test: int
    validation: int = -1  # -1: it has no validation set
    pixels: int = 0  # per image, if every pixel has a label; 0: every example has one label

    def check_labels(self, figures: Mapping[str, Any], key: str, examples: int) -> int:
        """The number of labels that a client reports for this number of examples; an error if it cannot be right."""
        labels = count_of(figures, key)
        if labels > examples * self.pixels if self.pixels else labels != examples:
            enrolled = f"{examples} images of {self.pixels} pixels" if self.pixels else f"{examples}"
            raise ValueError(f"{key} is {labels}, but it enrolled with {enrolled}")
        return labels


def one_line(text: str, longest: int = 500) -> str:
    """A text of a client as it may be shown and stored: without control characters, and not longer than this.

    >>> one_line("x\\x1b[2J\\nfinished after 2 rounds")
    'x [2J finished after 2 rounds'
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: longest + 1])
    return printable if len(printable) <= longest else f"{printable[: longest - 4]} ..."


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
    return type(value) is int and 0 <= value <= _MOST


def _finite_number(figures: Mapping[str, Any], key: str) -> float:
    value: Any = figures.get(key)
    if type(value) not in (int, float) or not 0 <= value <= _MOST:
        raise ValueError(f"{key} is {value!r}")
    return float(value)


def count_of(figures: Mapping[str, Any], key: str) -> int:
    """A whole number from 0 to 2^53."""
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
    for name, leaf in leaves(like):
        if isinstance(leaf, Prototypes):
            _check_packed_shape(name, tensors, list(leaf.mean.shape))
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
    return report_of(number, message, figures)


def report_of(number: int, message: Any, figures: MessageFigures) -> Report:
    """The report of a client with this message, which was checked before, and with the figures that it sent."""
    upload = Upload(
        number,
        count_of(figures, "num_examples"),
        count_of(figures, "steps"),
        _finite_number(figures, "work"),
        message,
        count_of(figures, "round"),
    )
    return Report(upload, _loss_terms(figures), _finite_number(figures, "examples_seen"), {})


def _check_packed_shape(name: str, tensors: Mapping[str, Tensor], expected: list[int]) -> None:
    """Raise an error if packed prototypes say that they have another shape, before memory is taken for that shape."""
    shape = tensors.get(f"{name}/shape" if name else "shape")
    if shape is not None and shape.shape == (3,) and shape.tolist() != expected:
        raise ValueError(f"{name or 'the message'} has the shape {shape.tolist()}; must be {expected}")


def _loss_terms(figures: Mapping[str, Any]) -> dict[str, float]:
    """The terms of the loss. They may be infinite or NaN: see `has_finite_terms`."""
    terms = figures.get("terms")
    if not isinstance(terms, dict) or len(terms) > _MOST_TERMS:
        raise ValueError("terms is not a table of numbers")
    for name, value in terms.items():
        if len(name) > _MOST_TERMS or not name.isprintable():
            raise ValueError(f"terms has the name {name[:_MOST_TERMS]!r}")
        if type(value) is not float and not (type(value) is int and abs(value) <= _MOST):
            raise ValueError(f"the term {name} is {value!r}")
    return {name: float(value) for name, value in terms.items()}


def has_finite_terms(report: Report) -> bool:
    """Whether all terms of a client's loss are finite, as a sum over clients must be, too."""
    return all(abs(value) <= _LARGEST_TERM for value in report.terms.values())


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


def read_evaluation(number: int, figures: MessageFigures, classes: int, sizes: EnrolledSizes, on: Split) -> Evaluation:
    """The evaluation of a client on its test or validation set."""
    total = sizes.check_labels(figures, "total", sizes.test if on == "test" else sizes.validation)
    return Evaluation(number, _correct(figures, total), total, _pixels(figures, classes, total, sizes))


def read_server_scores(figures: MessageFigures, classes: int, sizes: EnrolledSizes) -> MessageFigures:
    """A client's counts of the server's own model."""
    scores = figures.get("server")
    if not isinstance(scores, dict):
        raise ValueError("the scores of the server's model are missing")
    total = sizes.check_labels(scores, "total", sizes.test)
    return {
        "correct": _correct(scores, total),
        "total": total,
        "pixels": _pixels(scores, classes, total, sizes),
        "loss": None if scores.get("loss") is None else _finite_number(scores, "loss"),
        "loss_total": sizes.check_labels(scores, "loss_total", sizes.train),
    }


def _correct(figures: Mapping[str, Any], total: int) -> dict[str, int]:
    correct = figures.get("correct")
    if not isinstance(correct, dict) or not all(_is_count(count) and count <= total for count in correct.values()):
        raise ValueError(f"correct is {correct!r} of {total}")
    return {str(way): int(count) for way, count in correct.items()}


def _pixels(figures: Mapping[str, Any], classes: int, total: int, sizes: EnrolledSizes) -> dict[str, Counts]:
    pixels = figures.get("pixels")
    if not isinstance(pixels, dict) or (pixels and not sizes.pixels):
        raise ValueError(f"pixels is {pixels!r}")
    for matrix in pixels.values():
        is_matrix = isinstance(matrix, list) and all(
            isinstance(row, list) and len(row) == classes + 1 for row in matrix
        )
        if not is_matrix or len(matrix) != classes or not all(_is_count(count) for row in matrix for count in row):
            raise ValueError("pixels is not a matrix of counts")
        if (counted := sum(map(sum, matrix))) != total:
            raise ValueError(f"pixels has {counted} pixels, but total is {total}")
    return {str(way): matrix for way, matrix in pixels.items()}


def read_hits(figures: MessageFigures, totals: Sequence[int]) -> Hits:
    """A client's correct predictions on the balanced test set, per way of predicting and class.

    `totals` [classes]: the number of examples of each class in that set.
    """
    hits = figures.get("hits")
    if not isinstance(hits, dict) or not all(
        isinstance(row, list) and len(row) == len(totals) and all(map(_is_count, row)) for row in hits.values()
    ):
        raise ValueError("hits are not counts per class")
    if any(count > total for row in hits.values() for count, total in zip(row, totals, strict=True)):
        raise ValueError(f"hits are more than the examples of a class in balanced.npz ({list(totals)})")
    return {str(way): row for way, row in hits.items()}
