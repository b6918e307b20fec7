"""Where the CPU time of a round goes: torch's operations by kind, in microseconds per image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

KINDS: dict[str, tuple[str, ...]] = {
    "convolutions": ("convolution", "conv2d"),
    "pooling": ("max_pool2d",),
    "matrix products": ("bmm", "mm"),
    "all other operations": ("",),
}
"""Per kind what the names of its operations contain; an operation belongs to the first kind that fits."""


def profiled(one_round: Callable[[], Any], images: int) -> dict[str, float]:
    """Microseconds per image in each kind of operation, without what other operations do inside them."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        one_round()
    spent = dict.fromkeys(KINDS, 0.0)
    for operation in found.key_averages():
        kind = next(kind for kind, words in KINDS.items() if any(word in operation.key for word in words))
        spent[kind] += operation.self_cpu_time_total
    return {kind: microseconds / images for kind, microseconds in spent.items()}
