"""The guard: every upload is checked by its type before any arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from protofed.messages import flatten, leaves
from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.core import Upload

Structure = tuple[tuple[str, tuple[int, ...], str], ...]
"""The names, shapes and types of a message."""


class Expected(NamedTuple):
    """What the server knows before uploads arrive."""

    round: int
    clients: int
    size_of: Callable[[int], int]  # the number of training examples of a client
    classes_of: Callable[[int], Tensor | None]  # which classes a client has [classes]; None: it does not say
    count_labels: bool = True  # whether prototypes count examples; False: they count pixels
    exact: bool = True  # whether counts are exact; False: they have noise, which hides them and the classes


def sift(
    uploads: Sequence[Upload[Any]], expected: Expected | None = None, norm_cap: float = 0.0
) -> tuple[list[Upload[Any]], dict[int, str]]:
    """The uploads that are accepted, and per rejected client the reason.

    `norm_cap`: the largest norm of a part of a message, as a multiple of the median over the accepted uploads; 0: any.
    """
    times = Counter(upload.client for upload in uploads)
    rejected = {client: f"it sent {number} uploads in one round" for client, number in times.items() if number > 1}
    for upload in uploads:
        if upload.client not in rejected and (reason := _complaint(upload, expected)):
            rejected[upload.client] = reason
    sane = [upload for upload in uploads if upload.client not in rejected]
    structures = {upload.client: _structure(upload) for upload in sane}
    most_common = Counter(structures.values()).most_common(1)
    for client, structure in structures.items():
        if structure != (usual := most_common[0][0]):
            name, *_ = min(set(structure) ^ set(usual))
            rejected[client] = f"{name or 'the message'} does not have the names or shapes that the other clients sent"
    sane = [upload for upload in sane if upload.client not in rejected]
    if norm_cap:
        rejected |= _too_large(sane, norm_cap)
    return [upload for upload in sane if upload.client not in rejected], rejected


def _complaint(upload: Upload[Any], expected: Expected | None) -> str | None:
    """What is wrong with an upload, looked at alone."""
    if upload.num_examples < 0:
        return f"num_examples is {upload.num_examples}"
    if upload.steps < 0 or not 0 <= upload.work < math.inf:
        return f"steps is {upload.steps} and work {upload.work}"
    try:
        flat, parts = flatten(upload.message), list(leaves(upload.message))
    except (TypeError, ValueError, RuntimeError, IndexError) as problem:
        return f"the message cannot be read: {problem}"
    for name, tensor in flat.items():
        if not torch.isfinite(tensor).all():
            return f"{name or 'the message'} is not finite"
    for name, leaf in parts:
        if isinstance(leaf, Prototypes):
            if leaf.mean.dim() != 3 or leaf.support.shape != leaf.mean.shape[:2]:
                return f"{name or 'the message'} has means and support of shapes that do not match"
            if (leaf.support < 0).any():
                return f"{name or 'the message'} has a negative support"
    return _unexpected(upload, parts, expected) if expected else None


def _unexpected(
    upload: Upload[Any], parts: Sequence[tuple[str, Tensor | Prototypes]], expected: Expected
) -> str | None:
    """What contradicts what the server knows."""
    if upload.round is not None and upload.round != expected.round:
        return f"it answered round {upload.round + 1} in round {expected.round + 1} (stale)"
    if not 0 <= upload.client < expected.clients:
        return f"there is no client {upload.client}"
    if not expected.exact:
        return None
    size, classes = expected.size_of(upload.client), expected.classes_of(upload.client)
    if upload.num_examples != size:
        return f"num_examples is {upload.num_examples}, but it has {size}"
    for name, leaf in parts:
        if not isinstance(leaf, Prototypes):
            continue
        shown, held = name or "the message", (leaf.support > 0).any(1)
        if classes is not None and len(classes) == len(held) and (strange := held & ~classes).any():
            return f"{shown} has the class number {int(strange.nonzero()[0])}, which it does not have"
        if expected.count_labels and float(leaf.support.double().sum()) > size * (1 + 1e-3):
            return f"{shown} counts {float(leaf.support.double().sum()):g} examples, but it has {size}"
    return None


def _too_large(uploads: Sequence[Upload[Any]], cap: float) -> dict[int, str]:
    """The clients with a part whose norm is above `cap` times the median over the uploads, and the reason."""
    norms = {upload.client: part_norms(upload.message) for upload in uploads}
    reasons: dict[int, str] = {}
    for name in dict.fromkeys(name for by_part in norms.values() for name in by_part):
        usual = median(by_part[name] for by_part in norms.values() if name in by_part)
        for client, by_part in norms.items():
            if usual > 0 and by_part.get(name, 0.0) > cap * usual:
                ratio = by_part[name] / usual
                reasons[client] = f"{name or 'the message'} has a norm {ratio:.3g} times the median of the round"
    return reasons


def part_norms(message: Any) -> dict[str, float]:
    """The norm of each field of a message: of prototypes the largest of a row, of parameters that of all together."""
    squares: dict[str, float] = {}
    for name, leaf in leaves(message):
        field = name.partition("/")[0]
        if isinstance(leaf, Prototypes):
            held = leaf.mean[leaf.support > 0].double()
            square = float(held.square().sum(-1).max()) if len(held) else 0.0
            squares[field] = max(squares.get(field, 0.0), square)
        elif leaf.dtype.is_floating_point:
            squares[field] = squares.get(field, 0.0) + float(leaf.double().square().sum())
    return {field: math.sqrt(square) for field, square in squares.items()}


def _structure(upload: Upload[Any]) -> Structure:
    """Names, shapes and types; for prototypes [classes, modes, dim], whichever classes were sent."""
    tensors = {name: leaf.mean if isinstance(leaf, Prototypes) else leaf for name, leaf in leaves(upload.message)}
    return tuple(sorted((name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()))
