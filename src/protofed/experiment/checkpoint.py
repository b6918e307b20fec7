"""Checkpoints: the server's state and what every client keeps, as safetensors with a checksum. Nothing unpickles."""

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


class Stored(NamedTuple):
    """The state after so many rounds, and the newer checkpoints that are damaged."""

    rounds: int
    server: Any
    kept: dict[int, Any]
    damaged: list[str]


def write_checkpoint(where: Path, rounds: int, server: Any, kept: dict[int, Any], experiment: str) -> None:
    """Write the state after so many rounds; of the older ones the newest stays, in case this one is damaged."""
    content = to_bytes({"server": server, "kept": {str(client): state for client, state in kept.items()}})
    name = f"{rounds:06d}"
    write_atomically(where / f"{name}.safetensors", content)
    about = {
        "rounds": rounds,
        "clients": sorted(kept),
        "sha256": hashlib.sha256(content).hexdigest(),
        "experiment": experiment,
    }
    write_atomically(where / f"{name}.json", json.dumps({**about, "check": _checksum(about)}).encode())
    newest = checkpoint_names(where)[:2]
    remove_checkpoints(
        where, {path.stem for path in (*where.glob("*.json"), *where.glob("*.safetensors"))} - set(newest)
    )


def remove_checkpoints(where: Path, names: Iterable[str]) -> None:
    """Take checkpoints away; the JSON first, without which the tensors do not count."""
    for name in names:
        (where / f"{name}.json").unlink(missing_ok=True)
        (where / f"{name}.safetensors").unlink(missing_ok=True)


def _checksum(about: dict[str, Any]) -> str:
    """A hash of what the JSON says: one flipped bit in it is noticed as well as one in the tensors."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def checkpoint_names(where: Path) -> list[str]:
    """The names of the checkpoints there are, the newest first."""
    return sorted(
        (path.stem for path in where.glob("*.json") if re.fullmatch(r"\d{6,}", path.stem)), key=int, reverse=True
    )


def latest_checkpoint(where: Path, method: AnyMethod, experiment: str) -> Stored | None:
    """The newest whole state; None if there never was one."""
    names = checkpoint_names(where)
    types = method.types()
    for place, name in enumerate(names):
        try:
            about = json.loads((where / f"{name}.json").read_text())
            content = (where / f"{name}.safetensors").read_bytes()
            check = about.pop("check")
            if check != _checksum(about) or hashlib.sha256(content).hexdigest() != about["sha256"]:
                continue
            parts = group_by_first_name(load(content))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
            continue
        if about["experiment"] != experiment:
            raise UserError(
                f"{where} does not fit config.toml, which has changed since. Start a new run with another --out."
            )
        states = group_by_first_name(parts.get("kept", {}))
        try:
            kept = {client: unflatten(types["kept"], states.get(str(client), {})) for client in about["clients"]}
            server = unflatten(types["server"], parts.get("server", {}))
        except (KeyError, ValueError) as problem:
            raise UserError(
                f"{where} was written by another version of the method, which kept other things. Start a new run."
            ) from problem
        return Stored(about["rounds"], server, kept, names[:place])
    if names:
        raise UserError(
            f"None of the checkpoints in {where} is whole ({', '.join(names)}). Start the run again with another --out."
        )
    return None
