"""Series of runs for the scripts. Finished runs are not repeated, and an interrupted run continues."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from protofed import Config
from protofed.studies import sweep


def result_of(out: Path, recipe: str | None, words: str) -> dict[str, Any]:
    """The result.json of a run of a recipe (None: the defaults) with "section.key=value" words; it is run if needed."""
    if not (out / "result.json").exists():
        print(f"{out} ...", file=sys.stderr, flush=True)
    return sweep.finish_run(out, Config.load(recipe, words.split()))
