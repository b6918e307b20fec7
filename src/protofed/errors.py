"""Errors that the user can fix. The command line shows them as one readable message, never as a traceback."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ConfigError", "StoppedRunError", "UserError", "did_you_mean", "is_out_of_memory"]


class UserError(Exception):
    """The message says what is wrong, what was got, and what to do. The command line exits with `exit_code`."""

    exit_code = 2


class StoppedRunError(UserError):
    """A run that cannot go on. What it has written is intact. `reason` is the message without what to do next."""

    exit_code = 1

    def __init__(self, reason: str, next_step: str = "") -> None:
        super().__init__(f"{reason} {next_step}".strip())
        self.reason = reason


class ConfigError(UserError):
    """All problems of an experiment, in one message."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "The experiment has a problem:" if count == 1 else f"The experiment has {count} problems:"
        super().__init__("\n".join([head, *(f"  - {problem}" for problem in self.problems)]))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        """It is pickled by its problems, and not by their text: another process may have found them."""
        return type(self), (self.problems,)


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """A hint for the error message about an unknown name.

    >>> did_you_mean("fedporto", ["fedavg", "fedproto"])
    'Did you mean "fedproto"? Known: fedavg, fedproto.'
    """
    names = sorted(known_names)
    close = [] if name.isdecimal() else get_close_matches(name, names, n=1)  # 1 is not meant by 10
    hint = f'Did you mean "{close[0]}"? ' if close else ""
    return f"{hint}Known: {', '.join(names)}."


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an error of Python or torch says that there is not enough memory, or that a size is beyond any memory.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."))
    True
    """
    text = str(problem).lower()
    return isinstance(problem, MemoryError) or "allocate memory" in text or "overflow" in text
