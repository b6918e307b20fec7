"""What made a result: the versions of the software, the commit of a checkout, and the processor's instructions."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import torch

from protofed import __version__


@cache
def versions_and_processor() -> dict[str, str | None]:
    """The entry `versions` of result.json.

    The last digits of a figure depend on the processor: torch sums in another order with other vector instructions.
    """
    return {
        "protofed": __version__,
        "commit": _commit(Path(__file__).parent),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def _commit(folder: Path) -> str | None:
    """The commit of the checkout that the package is in, with "+" if files differ from it; None if it is in none."""
    try:
        root = _git(folder, "rev-parse", "--show-toplevel")
        if not (Path(root) / "src" / "protofed").is_dir():  # installed inside some other project's checkout
            return None
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
        return _git(folder, "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    """The output of a git command."""
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
