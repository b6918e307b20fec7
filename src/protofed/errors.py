"""Errors a person can mend: shown as one readable message, never as a traceback."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class UserError(Exception):
    """What is wrong, what was got, what to do. The command line exits with 2."""


class ConfigError(UserError):
    """Everything that is wrong with an experiment, collected."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "The experiment has a problem:" if count == 1 else f"The experiment has {count} problems:"
        super().__init__("\n".join([head, *(f"  - {problem}" for problem in self.problems)]))


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """A hint to put after an unknown name.

    >>> did_you_mean("fedporto", ["fedavg", "fedproto"])
    'Did you mean "fedproto"? Known: fedavg, fedproto.'
    """
    names = sorted(known)
    close = get_close_matches(got, names, n=1)
    hint = f'Did you mean "{close[0]}"? ' if close else ""
    return f"{hint}Known: {', '.join(names)}."
