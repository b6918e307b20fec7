"""The guard: every upload is checked before any arithmetic."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from protofed.messages import flatten, leaves
from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofed.core import Upload

Structure = tuple[tuple[str, tuple[int, ...]], ...]
"""The names and shapes of a message."""


def sift(uploads: Sequence[Upload[Any]]) -> tuple[list[Upload[Any]], dict[int, str]]:
    """The uploads that are accepted, and per rejected client the reason."""
    rejected = {upload.client: reason for upload in uploads if (reason := _complaint(upload))}
    sane = [upload for upload in uploads if upload.client not in rejected]
    structures = {upload.client: _structure(upload) for upload in sane}
    most_common = Counter(structures.values()).most_common(1)
    for client, structure in structures.items():
        if structure != (usual := most_common[0][0]):
            name, _ = min(set(structure) ^ set(usual))
            rejected[client] = f"{name or 'the message'} does not have the names or shapes that the other clients sent"
    return [upload for upload in sane if upload.client not in rejected], rejected


def _complaint(upload: Upload[Any]) -> str | None:
    """What is wrong with an upload, looked at alone."""
    if upload.num_examples < 0:
        return f"num_examples is {upload.num_examples}"
    for name, tensor in flatten(upload.message).items():
        if not torch.isfinite(tensor).all():
            return f"{name or 'the message'} is not finite"
    for name, leaf in leaves(upload.message):
        if isinstance(leaf, Prototypes) and (leaf.support < 0).any():
            return f"{name or 'the message'} has a negative support"
    return None


def _structure(upload: Upload[Any]) -> Structure:
    """Names and shapes; for prototypes [classes, modes, dim], whichever classes were sent."""
    shapes = {
        name: tuple((leaf.mean if isinstance(leaf, Prototypes) else leaf).shape)
        for name, leaf in leaves(upload.message)
    }
    return tuple(sorted(shapes.items()))
