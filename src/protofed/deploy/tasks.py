"""What the server's messages to a client are about, as far as the client must check or compare it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofed.errors import UserError

if TYPE_CHECKING:
    from protofed.engines.flower.client_answers import MessageFigures

FORGETTABLE = ("oldest",)
"""Entries of a task on which the client's answer does not depend."""
TESTS = ("evaluate", "validation", "examine")
"""The kinds of messages that let a client test its model."""


def identity_of(task: MessageFigures) -> MessageFigures:
    """The entries that say which message an answer belongs to."""
    return {key: task[key] for key in ("kind", "run", "round", "number")}


def kind_of_test(task: MessageFigures) -> str:
    """The kind of a message that asks for a test; an error if there is no such test."""
    for kind in TESTS:
        if task.get("kind") == kind:
            return kind
    raise UserError(
        f"The server's message asks for a test of the kind {task.get('kind')!r}; must be one of {', '.join(TESTS)}. "
        "Use the same version of protofed."
    )
