"""The clients of an experiment with copies of their examples on the device that trains them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protofed.devices import CPU
from protofed.engines.placement import DeviceCopies

if TYPE_CHECKING:
    import torch

    from protofed.experiment.members import Members


def placed_members(members: Members, device: torch.device) -> Members:
    """The same clients; steps and evaluations take their examples from the device. On the CPU nothing is copied."""
    if device == CPU:
        return members
    sets: dict[str, Any] = {key: getattr(members, key) for key in ("train", "test", "validation", "balanced")}
    copies = DeviceCopies(device, (examples for parts in sets.values() for examples in parts))
    placed: dict[str, Any] = {key: copies.placed(parts) for key, parts in sets.items()}
    return replace(members, **placed)
