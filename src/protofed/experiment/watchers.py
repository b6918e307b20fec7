"""Watchers: observers of a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.experiment.config import Config
    from protofed.experiment.members import Members
    from protofed.experiment.results import Result, RoundRow


class Watcher:
    """Observes a run. Every method does nothing here; a subclass defines those that it needs.

    A watcher that `run.watchers` names is made with the run folder, and only if there is one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    @classmethod
    def require(cls) -> None:
        """Raise a `UserError` if something that the watcher needs is not installed."""

    def preparing(self, text: str) -> None:
        """Work before the run starts takes long, such as the features of an encoder; `text` shows its progress."""

    def started(self, config: Config, members: Members, rounds: Sequence[RoundRow], notes: Sequence[str]) -> None:
        """The run starts or resumes; `rounds` are the rounds done before, `notes` remarks for the user."""

    def progress(self, round: int, done: int, of: int) -> None:
        """Within a round (from 1), `done` of `of` clients have trained."""

    def round(self, row: RoundRow) -> None:
        """A round has ended; `row` is its line of rounds.jsonl."""

    def warned(self, text: str) -> None:
        """Something went wrong in the round that ended last; the run goes on."""

    def finished(self, result: Result) -> None:
        """The run has ended with a result."""

    def closed(self) -> None:
        """The run has ended, for whatever reason."""


def progress_reporter(watchers: Sequence[Watcher], round: int, clients: int) -> Callable[[int], None]:
    """A function that adds up the clients trained in a round, and passes their number to the watchers."""
    trained = 0

    def report(more: int) -> None:
        nonlocal trained
        trained += more
        for watcher in watchers:
            watcher.progress(round, trained, clients)

    return report


def pass_warning(text: str, watchers: Sequence[Watcher], has_watchers: bool) -> None:
    """Pass a warning to the watchers, and to Python if the caller has none."""
    for watcher in watchers:
        watcher.warned(text)
    if not has_watchers:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
