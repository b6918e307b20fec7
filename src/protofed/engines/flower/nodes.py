"""Which of Flower's nodes is which client. Nodes come and go; a client that comes back may have another node."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from flwr.app import Message

from protofed.engines.flower.client_answers import one_line
from protofed.engines.flower.wire import record_figures, to_records
from protofed.errors import UserError

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_REFUSED_SECONDS = 60.0
"""A node that was refused is asked again after this time, since it may have been corrected."""
_SILENT_SECONDS = 300.0
"""A node that does not answer is asked again after this time."""
_LOOK_SECONDS = 2.0
"""Pause between two looks at which nodes are online."""


class Observer(Protocol):
    """What wants to know about clients: the server's log and its status file."""

    def say(self, text: str) -> None:
        """A line for the log."""
        ...

    def connected(self, numbers: Collection[int]) -> None:
        """The clients that are online now."""
        ...

    def uploaded(self, number: int, round: int) -> None:
        """A client has uploaded something in a round (from 0)."""
        ...


class Clock(Protocol):
    """Time; tests have one of their own."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class RealClock:
    """The machine's time."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class NodeRegistry(Protocol):
    """Decides which nodes are clients."""

    def admit(self, node: int, figures: dict[str, Any]) -> int:
        """The number of the client that describes itself like this; a `UserError` if it is refused."""
        ...

    def accept(self, number: int, figures: dict[str, Any]) -> None:
        """Remember the description of a client that is now known by its node."""
        ...


class Nodes:
    """The nodes that are online, and the client that each of them is."""

    def __init__(self, grid: Grid, registry: NodeRegistry, observer: Observer, clock: Clock | None = None) -> None:
        self.grid, self.registry, self.observer, self.clock = grid, registry, observer, clock or RealClock()
        self.by_client: dict[int, int] = {}  # the node of each client that has enrolled
        self.rivals: dict[int, tuple[int, dict[str, Any]]] = {}  # nodes that say they are a client which is online
        self.asked: dict[str, tuple[int, float]] = {}  # per unanswered question the node and the time
        self.refused: dict[int, tuple[str, float]] = {}  # per node the reason and the time
        self.online: set[int] = set()
        self.looked = -_LOOK_SECONDS

    def of(self, number: int) -> int | None:
        """The node of a client; None if the client is not online."""
        node = self.by_client.get(number)
        return node if node in self.online else None

    def look(self) -> None:
        """See which nodes are online, and ask those that are new who they are."""
        now = self.clock.now()
        if now - self.looked >= _LOOK_SECONDS:
            self.looked = now
            self.online = set(self.grid.get_node_ids())
            self._ask(now)
        self._hear(now)
        for node, (number, figures) in list(self.rivals.items()):
            if node not in self.online or self.of(number) is None:  # a client that was restarted gets its name back
                del self.rivals[node]
                if node in self.online:
                    self._set(number, node, figures)
        self.observer.connected([number for number in self.by_client if self.of(number) is not None])

    def _ask(self, now: float) -> None:
        """Ask the nodes that are not known who they are, and after a while again those that were refused."""
        self.asked = {
            message: (node, since)
            for message, (node, since) in self.asked.items()
            if node in self.online and now - since < _SILENT_SECONDS
        }
        waiting = {node for node, (_, since) in self.refused.items() if now - since < _REFUSED_SECONDS}
        known = {*self.by_client.values(), *self.rivals, *waiting, *(node for node, _ in self.asked.values())}
        for node in sorted(self.online - known):
            question = Message(to_records({}, {}), node, "query.enrol", ttl=_SILENT_SECONDS)
            self.asked |= {message: (node, now) for message in self.grid.push_messages([question]) if message}

    def _hear(self, now: float) -> None:
        """Enrol the nodes that have described themselves."""
        for reply in list(self.grid.pull_messages(list(self.asked))) if self.asked else []:
            node, _ = self.asked.pop(reply.metadata.reply_to_message_id, (None, now))
            if node is None:
                continue
            try:
                if reply.has_error():
                    raise UserError(f"it does not describe itself: {reply.error.reason}")
                figures = record_figures(reply.content)
                number = self.registry.admit(node, figures)
                current = self.of(number)
                if current is not None:
                    self.rivals[node] = (number, figures)
                    raise UserError(f"client number {number} is already online as node {current}")
            except (UserError, ValueError) as problem:
                reason = one_line(str(problem))
                if self.refused.get(node, ("", now))[0] != reason:
                    self.observer.say(f"node {node}: refused: {reason}")
                self.refused[node] = (reason, now)
            else:
                self._set(number, node, figures)

    def _set(self, number: int, node: int, figures: dict[str, Any]) -> None:
        self.refused.pop(node, None)
        self.registry.accept(number, figures)
        self.by_client[number] = node
