"""How a command ends when the user interrupts it or the operating system reports an error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer


@contextmanager
def advice_if_stopped(advice: Callable[[], str]) -> Iterator[None]:
    """End the command with a message and advice if Ctrl-C or the operating system stops the work inside.

    The exit code is 130 after Ctrl-C and 1 after an error of the operating system, such as a full disk.
    """
    try:
        yield
        return
    except KeyboardInterrupt:
        message, code = "\nInterrupted.", 130
    except OSError as problem:
        message, code = f"protofed: {system_message(problem)}", 1
    print("\n".join(filter(None, [message, advice()])), file=sys.stderr)
    raise typer.Exit(code)


def same_command_continues() -> str:
    """The advice of commands that skip finished runs."""
    return "Run the same command again to continue."


def system_message(problem: OSError) -> str:
    """The message of the operating system, with the name of the file if there is one.

    >>> system_message(OSError(28, "No space left on device", "a/rounds.jsonl"))
    'No space left on device: a/rounds.jsonl.'
    """
    message = problem.strerror or str(problem)
    return f"{message}: {problem.filename}." if problem.filename else f"{message}."
