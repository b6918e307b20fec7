"""Checkpoints: the server's state and what every client keeps, as safetensors with a checksum. Nothing unpickles."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from protofed.errors import UserError
from protofed.folder import write
from protofed.messages import flatten, grouped, unflatten

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.core import AnyMethod


def store(where: Path, rounds: int, server: Any, kept: dict[int, Any], experiment: str) -> None:
    """Write the state after so many rounds; of the older ones the newest stays, in case this one is damaged."""
    content = save(flatten({"server": server, "kept": {str(client): state for client, state in kept.items()}}))
    name = f"{rounds:06d}"
    write(where / f"{name}.safetensors", content)
    about = {
        "rounds": rounds,
        "clients": sorted(kept),
        "sha256": hashlib.sha256(content).hexdigest(),
        "experiment": experiment,
    }
    write(where / f"{name}.json", json.dumps(about).encode())
    for old in stored(where)[2:]:
        (where / f"{old}.json").unlink()
        (where / f"{old}.safetensors").unlink(missing_ok=True)


def stored(where: Path) -> list[str]:
    """The names of the checkpoints there are, the newest first."""
    return sorted(
        (path.stem for path in where.glob("*.json") if re.fullmatch(r"\d{6,}", path.stem)), key=int, reverse=True
    )


def latest(where: Path, method: AnyMethod, experiment: str) -> tuple[int, Any, dict[int, Any]] | None:
    """The newest whole state: (rounds done, server, kept); None if there never was one."""
    names = stored(where)
    types = method.types()
    for name in names:
        try:
            about = json.loads((where / f"{name}.json").read_text())
            content = (where / f"{name}.safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != about["sha256"]:
                continue
            parts = grouped(load(content))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            continue
        if about.get("experiment") != experiment:
            raise UserError(
                f"{where} does not fit config.toml, which has changed since. Start a new run with another --out."
            )
        states = grouped(parts.get("kept", {}))
        kept = {client: unflatten(types["kept"], states.get(str(client), {})) for client in about["clients"]}
        return about["rounds"], unflatten(types["server"], parts.get("server", {})), kept
    if names:
        raise UserError(
            f"None of the checkpoints in {where} is whole ({', '.join(names)}). Start the run again with another --out."
        )
    return None
