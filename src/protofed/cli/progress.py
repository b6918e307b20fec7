"""The progress of many runs on the screen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.live import Live

from protofed.cli.printing import say
from protofed.experiment.progress import read_progress
from protofed.experiment.wording import duration, percent, quantity

if TYPE_CHECKING:
    from rich.console import Console

    from protofed.studies.plan import SweepRun

_SECONDS_PER_LINE = 30.0
"""Seconds between two lines about runs that are going on, where the output is not a terminal."""


class RunProgress:
    """Reports the progress of many runs. The time left is estimated from the runs that were not done before."""

    def __init__(self, console: Console, jobs: Sequence[SweepRun], at_a_time: int = 2) -> None:
        self.console, self.jobs, self.ended, self.began = console, jobs, 0, time.perf_counter()
        self.done_before = {job.out for job in jobs if (job.out / "result.json").exists()}
        self.to_do, self.last_line = len(jobs) - len(self.done_before), time.perf_counter()
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        numbers = {0: "one per core of the cluster", 1: "one", 2: "two"}.get(at_a_time, str(at_a_time))
        together = f", {numbers} at a time" if self.to_do > 1 else ""
        say(console, f"{quantity(len(jobs), 'run')}, {self.to_do} to do{together}")

    def __enter__(self) -> RunProgress:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    def run_ended(self, job: SweepRun, result: dict[str, Any]) -> None:
        """Show the result of a run that was not done before."""
        if job.out in self.done_before:
            return
        self.ended, self.last_line = self.ended + 1, time.perf_counter()
        left = (time.perf_counter() - self.began) / self.ended * (self.to_do - self.ended)
        how = "stopped" if "stopped" in result else f"{percent(result['accuracy']['head'])} by head"
        say(
            self.console,
            f"{self.ended}/{self.to_do}  {job.setting}, seed {job.seed}: {how}  left {duration(left)}",
        )

    def tick(self) -> None:
        """Show the runs that are going on: at once on a terminal, every half minute elsewhere."""
        if not self.live and time.perf_counter() - self.last_line < _SECONDS_PER_LINE:
            return
        self.last_line = time.perf_counter()
        lines = [
            f"{job.setting}, seed {job.seed}: {how_far}" for job in self.jobs if (how_far := read_progress(job.out))
        ]
        if self.live:
            self.live.update("\n".join(lines), refresh=True)
        elif lines:
            say(self.console, f"running  {'; '.join(lines)}")
