"""Checkpoints: the server's state and what every client keeps, as safetensors with a checksum. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load

from protofed.errors import UserError
from protofed.experiment.folder import write_atomically
from protofed.messages import group_by_first_name, to_bytes, unflatten

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from protofed.core import AnyMethod


class Checkpoint(NamedTuple):
    """The state of a run between two rounds."""

    rounds: int  # the number of rounds done
    server: Any
    kept: dict[int, Any]
    damaged: list[str]  # the names of newer checkpoints that are damaged


def write_checkpoint(
    folder: Path, rounds: int, server: Any, kept: dict[int, Any], experiment: str, keep: int = 2
) -> None:
    """Write the state after this number of rounds, and delete all but the newest `keep` checkpoints (0: none).

    With 2 or more, an earlier one can be used if this one gets damaged. `experiment` is the digest of the config.
    """
    content = to_bytes({"server": server, "kept": {str(client): state for client, state in kept.items()}})
    name = f"{rounds:06d}"
    write_atomically(folder / f"{name}.safetensors", content)
    about = {
        "rounds": rounds,
        "clients": sorted(kept),
        "sha256": hashlib.sha256(content).hexdigest(),
        "experiment": experiment,
    }
    write_atomically(folder / f"{name}.json", json.dumps({**about, "check": _checksum(about)}).encode())
    names = checkpoint_names(folder)
    newest = names[:keep] if keep else names
    remove_checkpoints(
        folder, {path.stem for path in (*folder.glob("*.json"), *folder.glob("*.safetensors"))} - set(newest)
    )


def remove_checkpoints(folder: Path, names: Iterable[str]) -> None:
    """Delete checkpoints. The JSON goes first: without it the tensors are no checkpoint."""
    for name in names:
        (folder / f"{name}.json").unlink(missing_ok=True)
        (folder / f"{name}.safetensors").unlink(missing_ok=True)


def _checksum(about: dict[str, Any]) -> str:
    """A hash of the JSON's content, so that a flipped bit in it is noticed like one in the tensors."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def checkpoint_names(folder: Path) -> list[str]:
    """The names of all checkpoints in the folder, the newest first."""
    return sorted(
        (path.stem for path in folder.glob("*.json") if re.fullmatch(r"\d{6,}", path.stem)), key=int, reverse=True
    )


def latest_checkpoint(folder: Path, method: AnyMethod, experiment: str) -> Checkpoint | None:
    """The newest intact checkpoint; None if the folder has none, an error if all are damaged."""
    names = checkpoint_names(folder)
    for position, name in enumerate(names):
        if checkpoint := read_checkpoint(folder, name, method, experiment):
            return checkpoint._replace(damaged=names[:position])
    if names:
        raise UserError(
            f"None of the checkpoints in {folder} is intact ({', '.join(names)}). "
            "Start the run again with another --out."
        )
    return None


def read_checkpoint(folder: Path, name: str, method: AnyMethod, experiment: str) -> Checkpoint | None:
    """The checkpoint with this name; None if it is damaged, an error if it is of another experiment or method."""
    try:
        about = json.loads((folder / f"{name}.json").read_text())
        content = (folder / f"{name}.safetensors").read_bytes()
        check = about.pop("check")
        if check != _checksum(about) or hashlib.sha256(content).hexdigest() != about["sha256"]:
            return None
        parts = group_by_first_name(load(content))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
    if about["experiment"] != experiment:
        raise UserError(
            f"{folder} does not match config.toml: the file was changed, or the run is of an earlier version of "
            "protofed. Start a new run with another --out."
        )
    types, states = method.types(), group_by_first_name(parts.get("kept", {}))
    try:
        kept = {client: unflatten(types["kept"], states.get(str(client), {})) for client in about["clients"]}
        server = unflatten(types["server"], parts.get("server", {}))
    except (KeyError, ValueError) as problem:
        raise UserError(
            f"{folder} was written by another version of the method, whose state has other parts. "
            "Start a new run with another --out."
        ) from problem
    return Checkpoint(about["rounds"], server, kept, [])
