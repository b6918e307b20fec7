"""Runs that belong together: those that are finished are not done again, one that was interrupted goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from protofed import Config
from protofed.studies import sweep


def finished(out: Path, recipe: str | None, words: str) -> dict[str, Any]:
    """The result.json of a run of a recipe (none: the defaults) with "section.key=value" words."""
    if not (out / "result.json").exists():
        print(f"{out} ...", file=sys.stderr, flush=True)
    return sweep.finish_run(out, Config.load(recipe, words.split()))


def two_at_a_time(task: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What the task gives for each of the jobs, in their order, on two processes."""
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(task, *zip(*jobs, strict=True)))
