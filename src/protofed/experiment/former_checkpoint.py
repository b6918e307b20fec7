"""Checkpoints of earlier versions: one file of tensors and one of JSON per checkpoint. They are only read."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load

from protofed.messages import group_by_first_name, unflatten

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from protofed.core import AnyMethod


class FormerCheckpoint(NamedTuple):
    """An intact checkpoint: its JSON, and its tensors by the first part of their names."""

    about: dict[str, Any]
    parts: dict[str, dict[str, Tensor]]

    def states(self, method: AnyMethod) -> tuple[Any, dict[int, Any]]:
        """The server's state, and what each client keeps."""
        types, kept = method.types(), group_by_first_name(self.parts.get("kept", {}))
        clients = {client: unflatten(types["kept"], kept.get(str(client), {})) for client in self.about["clients"]}
        return unflatten(types["server"], self.parts.get("server", {})), clients


def former_names(folder: Path) -> list[str]:
    """The names of all checkpoints in the folder, the newest first."""
    return sorted(
        (path.stem for path in folder.glob("*.json") if re.fullmatch(r"\d{6,}", path.stem)), key=int, reverse=True
    )


def read_former(folder: Path, name: str) -> FormerCheckpoint | None:
    """The checkpoint with this name; None if it is damaged."""
    try:
        about = json.loads((folder / f"{name}.json").read_text())
        content = (folder / f"{name}.safetensors").read_bytes()
        check = about.pop("check")
        text = json.dumps(about, sort_keys=True).encode()
        if check != hashlib.sha256(text).hexdigest() or hashlib.sha256(content).hexdigest() != about["sha256"]:
            return None
        return FormerCheckpoint(about, group_by_first_name(load(content))) if _is_about(about) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError):
        return None


def _is_about(about: dict[str, Any]) -> bool:
    """Whether the JSON of a checkpoint has what a checkpoint needs."""
    clients, rounds = about["clients"], about["rounds"]
    numbers = [*clients, rounds] if isinstance(clients, list) else [-1]
    return all(type(number) is int and number >= 0 for number in numbers) and isinstance(about["experiment"], str)


def remove_former(folder: Path) -> None:
    """Delete all checkpoints of the former format, and what an interrupted write left of one."""
    for path in (*folder.glob("*.json"), *folder.glob("*.safetensors")):  # the JSON first: without it, it is none
        if re.fullmatch(r"\d{6,}", path.stem):
            path.unlink()
