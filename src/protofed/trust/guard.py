"""Is this upload sane? Asked of every upload before any arithmetic."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from protofed.messages import flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofed.core import Upload


def sift(uploads: Sequence[Upload[Any]]) -> tuple[list[Upload[Any]], dict[int, str]]:
    """The uploads that can be used, and for every other client why its upload cannot."""
    rejected = {upload.client: reason for upload in uploads if (reason := complaint(upload))}
    sane = [upload for upload in uploads if upload.client not in rejected]
    built = {upload.client: structure(upload) for upload in sane}
    usual = Counter(built.values()).most_common(1)
    for client, parts in built.items():
        if parts != usual[0][0]:
            odd = sorted(set(parts) ^ set(usual[0][0]))[0]
            rejected[client] = f"{odd[0]} is not built like the others'"
    return [upload for upload in sane if upload.client not in rejected], rejected


def complaint(upload: Upload[Any]) -> str | None:
    """What is wrong with an upload taken by itself."""
    if upload.examples < 0:
        return f"examples is {upload.examples}"
    for name, value in flatten(upload.message).items():
        if not torch.isfinite(value).all():
            return f"{name} is not finite"
        if name.endswith("support") and (value < 0).any():
            return f"{name} is negative"
    return None


def structure(upload: Upload[Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes; of prototypes the classes and the dim, whichever rows and however many modes were sent."""
    flat = flatten(upload.message)
    parts = []
    for name, value in flat.items():
        place, _, last = name.rpartition("/")
        packed = f"{place}/shape" in flat
        if last == "shape" or not packed:
            parts.append((name, tuple(value.tolist()[::2]) if packed else tuple(value.shape)))
    return tuple(sorted(parts))
