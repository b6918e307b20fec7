"""Whether Flower is installed, in the version that protofed was tested with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from protofed.errors import UserError

FLOWER_VERSION = "1.41.0"
"""Flower changes its interfaces often, so exactly one version is supported."""


def require_flower() -> None:
    """Raise an error if Flower is not installed, or in another version."""
    advice = "Run pip install 'protofed[flower]'."
    try:
        got = version("flwr")
    except PackageNotFoundError:
        raise UserError(f"This needs Flower, which is not installed. {advice}") from None
    if got != FLOWER_VERSION:
        raise UserError(f"This needs Flower {FLOWER_VERSION}, but {got} is installed. {advice}")
