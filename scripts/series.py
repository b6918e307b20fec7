"""Series of runs for the scripts. Finished runs are not repeated, and an interrupted run continues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from protofed import Config
from protofed.studies import sweep


def result_of(out: Path, recipe: str | None, words: str) -> dict[str, Any]:
    """The result.json of a run of a recipe (None: the defaults) with "section.key=value" words; it is run if needed."""
    if not (out / "result.json").exists():
        print(f"{out} ...", file=sys.stderr, flush=True)
    return sweep.finish_run(out, Config.load(recipe, words.split()))


def two_at_a_time(task: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of the task for each job, in the order of the jobs, from two processes."""
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(task, *zip(*jobs, strict=True)))
