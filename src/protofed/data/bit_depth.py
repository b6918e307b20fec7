"""Checks of images before their pixels become bytes."""

from __future__ import annotations

from typing import Any

from protofed.errors import UserError


def require_bytes(image: Any, owner: str) -> None:
    """Raise an error if an image of Pillow has one channel of more than 8 bits, of which `convert` cuts large values.

    `owner` begins the error message.
    """
    if image.mode.startswith(("I", "F")):
        raise UserError(
            f"{owner} has pixels of more than 8 bits (Pillow's mode {image.mode}). Scale them, and save 8 bits."
        )
