"""Set up .venv. If it is complete, nothing is done. If an earlier call was killed, the next one starts again."""

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
    """A hash of what a finished environment was made from, including its path, because it cannot be moved."""
    parts = [str(HERE).encode(), *((HERE / name).read_bytes() for name in ("requirements.txt", "pyproject.toml"))]
    return hashlib.sha256(b"\0".join([*parts, Path(__file__).read_bytes()])).hexdigest()


def is_ready() -> bool:
    """Whether the environment was made from the current files and its Python runs."""
    try:
        return READY.read_text() == stamp() and subprocess.run([PYTHON, "-c", ""]).returncode == 0
    except OSError:
        return False


def main() -> None:
    with (HERE / ".venv.lock").open("w") as lock:
        # Every program started below inherits the lock. So it is released only when all of them have ended, even if
        # this program is killed while pip continues.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is running in this folder. Waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_ready():
            return
        if VENV.exists() or VENV.is_symlink():
            print("Removing an incomplete or outdated .venv", flush=True)
            if VENV.is_dir() and not VENV.is_symlink():
                shutil.rmtree(VENV)
            else:
                VENV.unlink()
        version = ".".join(map(str, sys.version_info[:3]))
        pip = [PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        steps: list[tuple[str, list[str | Path]]] = [
            (f"creating .venv with Python {version}", [sys.executable, "-m", "venv", VENV]),
            (f"installing {TORCH} (a minute or two)", [*pip, TORCH]),
            ("installing the pinned requirements", [*pip, "-r", HERE / "requirements.txt"]),
            ("installing protofed", [*pip, "--no-deps", "--no-build-isolation", "-e", HERE]),
            ("checking that everything imports", [PYTHON, "-c", CHECK]),
        ]
        for number, (step, command) in enumerate(steps, 1):
            print(f"set-up {number}/{len(steps)}: {step}", flush=True)
            process = subprocess.run(command, pass_fds=[lock.fileno()], env={**os.environ, "PYTHONNOUSERSITE": "1"})
            if process.returncode:
                sys.exit(
                    f"The set-up failed while {step}. The messages above say why. Fix the cause and call make again."
                )
        READY.write_text(stamp())


main()
