"""Reading safetensors files that other people wrote: what is damaged is an error that names the file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor


def read_safetensors(path: Path, advice: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file. `advice` ends the error messages."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. {advice}") from None
    except (OSError, SafetensorError) as problem:
        raise UserError(f"{path} cannot be read as safetensors: {problem}. {advice}") from problem


@contextmanager
def understood_metadata(path: Path, advice: str) -> Iterator[None]:
    """What goes wrong within, where metadata are used, is an error that names their file."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        raise UserError(f"{path} is damaged: its metadata cannot be understood ({problem!r}). {advice}") from problem
