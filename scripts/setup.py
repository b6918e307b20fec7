"""Make .venv ready, once: killed at any moment, the next call starts it anew; called again, it does nothing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
VENV = HERE / ".venv"
PYTHON = VENV / "bin" / "python"
READY = VENV / "ready"
TORCH = "torch==2.13.0"
CHECK = "import pydantic, rich, safetensors, sklearn, tomli_w, torch, typer, protofed.cli, protofed.experiment.run"


def stamp() -> str:
    """What a ready environment was made from; a virtual environment also belongs to its place."""
    parts = [str(HERE).encode(), *((HERE / name).read_bytes() for name in ("requirements.txt", "pyproject.toml"))]
    return hashlib.sha256(b"\0".join([*parts, Path(__file__).read_bytes()])).hexdigest()


def is_ready() -> bool:
    """Was it made from what is here now, and does its Python still run?"""
    try:
        return READY.read_text() == stamp() and subprocess.run([PYTHON, "-c", ""]).returncode == 0
    except OSError:
        return False


def main() -> None:
    with (HERE / ".venv.lock").open("w") as lock:
        # The lock is inherited by every program started below, so that it is free only when all of them are gone,
        # even if this one is killed while pip goes on.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is under way in this folder: waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_ready():
            return
        if VENV.exists() or VENV.is_symlink():
            print("Removing an unfinished or outdated .venv", flush=True)
            if VENV.is_dir() and not VENV.is_symlink():
                shutil.rmtree(VENV)
            else:
                VENV.unlink()
        version = ".".join(map(str, sys.version_info[:3]))
        pip = [PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        steps: list[tuple[str, list[str | Path]]] = [
            (f"making .venv with Python {version}", [sys.executable, "-m", "venv", VENV]),
            (f"installing {TORCH}, alone (a minute or two)", [*pip, TORCH]),
            ("installing the pinned requirements", [*pip, "-r", HERE / "requirements.txt"]),
            ("installing protofed", [*pip, "--no-deps", "--no-build-isolation", "-e", HERE]),
            ("checking that everything imports", [PYTHON, "-c", CHECK]),
        ]
        for number, (what, command) in enumerate(steps, 1):
            print(f"set-up {number}/{len(steps)}: {what}", flush=True)
            done = subprocess.run(command, pass_fds=[lock.fileno()], env={**os.environ, "PYTHONNOUSERSITE": "1"})
            if done.returncode:
                sys.exit(f"The set-up failed while {what}. The messages above say why; mend that and call make again.")
        READY.write_text(stamp())


main()
