"""Runs that belong together: those that are finished are not done again, one that was interrupted goes on."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from protofed import Config, run
from protofed.folder import Folder


def finished(out: Path, recipe: str | None, words: str) -> dict[str, Any]:
    """The result.json of a run of a recipe (none: the defaults) with "section.key=value" words."""
    config, before = Config.load(recipe, words.split()), out / "config.toml"
    if before.exists():
        was = Config.load(before)
        config = replace(config, engine=was.engine, data=replace(config.data, clients=was.data.clients))
        if was.digest() != config.digest() or was.run.rounds != config.run.rounds:
            raise SystemExit(f"{out} is of another experiment: remove it.")
    if not (out / "result.json").exists():
        print(f"{out} ...", file=sys.stderr, flush=True)
        run(config, out, resume=before.exists())
    return Folder(out).result()
