"""Runs that belong together: those that are finished are not done again, one that was interrupted goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

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


def two_at_a_time(task: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What the task gives for each of the jobs, in their order, on two processes."""
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(task, *zip(*jobs, strict=True)))


def percent(values: Sequence[float], digits: int = 1) -> str:
    """Mean and the half-width of the 95 % interval of Student's t, over seeds."""
    wide = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(values), np.nan)
    around = f" ± {wide * np.std(values, ddof=1) / len(values) ** 0.5 * 100:.{digits}f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.{digits}f}{around}"
