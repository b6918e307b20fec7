"""Runs that belong together: those that are finished are not done again, one that was interrupted goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from protofed import Config, run
from protofed.folder import Folder


def finished(out: Path, recipe: str | None, words: str) -> dict[str, Any]:
    """The result.json of a run of a recipe (none: the defaults) with "section.key=value" words."""
    if not (out / "result.json").exists():
        print(f"{out} ...", file=sys.stderr, flush=True)
        run(Config.load(recipe, words.split()), out, resume=(out / "config.toml").exists())
    return Folder(out).result()
