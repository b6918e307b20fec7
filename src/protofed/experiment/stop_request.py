"""How another process, such as a browser's server, asks a run to stop: by an empty file in its folder."""

from __future__ import annotations

from pathlib import Path

_STOP = ".stop"


def ask_to_stop(folder: Path) -> None:
    """Ask the process that runs in this folder to stop after its next checkpoint."""
    (folder / _STOP).touch()


def was_asked_to_stop(folder: Path) -> bool:
    """Whether somebody asked since the last call of this function."""
    try:
        (folder / _STOP).unlink()
    except FileNotFoundError:
        return False
    return True
