"""Progress of runs for Python users: one line on a terminal or in a notebook, and a file that other processes read."""

from __future__ import annotations

import html
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.experiment.watchers import Watcher
from protofed.experiment.wording import duration, percent

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.members import Members
    from protofed.experiment.results import RoundRow

_FILE = ".progress"
_EVERY = 0.5
"""Seconds between two updates."""
_WIDTH = 24
"""Characters of the bar."""


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def wants_progress(progress: bool | None) -> bool:
    """Whether to show progress: as the caller says, or (None) on a terminal and in a notebook."""
    return (in_notebook() or sys.stderr.isatty()) if progress is None else progress


class ProgressLine:
    """A bar with a text, in one line of a terminal (stderr) or of a notebook. A file gets no bar."""

    def __init__(self) -> None:
        self.began, self.shown, self.handle = time.perf_counter(), False, None
        self.notebook = in_notebook()

    def show(self, done: float, total: float, text: str) -> None:
        """Show that `done` of `total` is done."""
        share, seconds = done / max(total, 1), time.perf_counter() - self.began
        left = f", {duration(seconds / share - seconds)} left" if 0 < share < 1 else ""
        if self.notebook:
            self._show_in_notebook(share, f"{text}{left}")
        elif sys.stderr.isatty():
            filled = round(_WIDTH * share)
            sys.stderr.write(f"\r\x1b[K[{'#' * filled}{'.' * (_WIDTH - filled)}] {text}{left}")
            sys.stderr.flush()
        self.shown = True

    def _show_in_notebook(self, share: float, text: str) -> None:
        from IPython.display import HTML, display  # this is only called within IPython

        bar = HTML(f'<progress value="{share:.4f}" max="1"></progress> {html.escape(text)}')
        if self.handle is None:
            self.handle = display(bar, display_id=True)
        else:
            self.handle.update(bar)

    def say(self, text: str) -> None:
        """Show a text that stays."""
        self.end()
        print(text, file=sys.stderr)

    def end(self) -> None:
        """End the line of a terminal."""
        if self.shown and not self.notebook and sys.stderr.isatty():
            sys.stderr.write("\n")
        self.shown = False


class ProgressBar(Watcher):
    """Shows the progress of a run: rounds, clients within a round, and the latest accuracy."""

    def __init__(self) -> None:
        self.line, self.rounds, self.accuracy, self.latest = ProgressLine(), 0, "", 0.0

    def started(self, config: Config, members: Members, rounds: Sequence[RoundRow], notes: Sequence[str]) -> None:
        self.rounds, self.name = config.run.rounds, config.method_name

    def progress(self, round: int, done: int, of: int) -> None:
        if time.perf_counter() - self.latest >= _EVERY:
            self._show(round - 1 + done / of, f"round {round}/{self.rounds}, {done} of {of} clients")

    def round(self, row: RoundRow) -> None:
        way = next((way for way in ("head", "prototype") if row.get(f"accuracy_{way}") is not None), None)
        if way:
            spread = {"mean": row[f"accuracy_{way}"], "std": row[f"accuracy_{way}_std"]}
            self.accuracy = f", {percent(spread)} by {way}"
        last = row["round"] == self.rounds
        if last or time.perf_counter() - self.latest >= _EVERY:
            self._show(row["round"], f"round {row['round']}/{self.rounds}")

    def _show(self, done: float, text: str) -> None:
        self.latest = time.perf_counter()
        self.line.show(done, self.rounds, f"{self.name}: {text}{self.accuracy}")

    def preparing(self, text: str) -> None:
        self.line.say(text)

    def warned(self, text: str) -> None:
        self.line.say(text)

    def closed(self) -> None:
        self.line.end()


class ProgressFile(Watcher):
    """Writes the progress of a run to a hidden file in its folder, for the process that shows many runs."""

    def __init__(self, folder: Path) -> None:
        self.file, self.rounds, self.latest = folder / _FILE, 0, 0.0

    def started(self, config: Config, members: Members, rounds: Sequence[RoundRow], notes: Sequence[str]) -> None:
        self.rounds = config.run.rounds
        self._write(len(rounds), 0, 0)

    def progress(self, round: int, done: int, of: int) -> None:
        if time.perf_counter() - self.latest >= _EVERY:
            self._write(round - 1, done, of)

    def round(self, row: RoundRow) -> None:
        if time.perf_counter() - self.latest >= _EVERY:
            self._write(row["round"], 0, 0)

    def _write(self, done: int, clients: int, of: int) -> None:
        self.latest = time.perf_counter()
        content = {"done": done, "rounds": self.rounds, "clients": clients, "of": of}
        self.file.write_text(json.dumps(content), encoding="utf-8")

    def warned(self, text: str) -> None:
        warnings.warn(f"{self.file.parent}: {text}", RuntimeWarning, stacklevel=2)

    def closed(self) -> None:
        self.file.unlink(missing_ok=True)


def read_progress(folder: Path) -> str:
    """How far the run in this folder is, such as "round 4/50, 3 of 20 clients"; "" if it is not going on."""
    try:
        content: dict[str, Any] = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        clients = f", {content['clients']} of {content['of']} clients" if content["clients"] else ""
        return f"round {min(content['done'] + 1, content['rounds'])}/{content['rounds']}{clients}"
    except (OSError, ValueError, KeyError):
        return ""
