"""Messages to clients, and their answers until a deadline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from flwr.app import Message

from protofed.engines.flower.client_answers import MessageFigures, check_identity, one_line
from protofed.engines.flower.wire import record_figures, record_tensors, to_records
from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from protofed.engines.flower.nodes import Nodes

_NODE_LOST = 5
_LOST = (3, 4, _NODE_LOST, 8)
"""Flower's codes of errors after which a message may be sent again: the message, the node or the app was lost."""
_MOST_SENDS = 3
"""How often a message is sent to one client."""


SECURE_STEPS = ("keys", "shares", "reveal")
"""The kinds of messages that secure sums need in addition to the upload."""


def _message_type(kind: str) -> str:
    """Flower's type of a message of this kind."""
    return f"query.{kind}" if kind in SECURE_STEPS else "train" if kind == "train" else "evaluate"


class Patience(NamedTuple):
    """How long to wait, in seconds."""

    round: float = 600.0  # for the answers of clients that are online
    gone: float = 300.0  # for a client to come back if none is online
    poll: float = 0.4  # between two looks for answers


class Parcel(NamedTuple):
    """The content of a message."""

    tensors: dict[str, Tensor]
    figures: MessageFigures


@dataclass
class Exchange:
    """The messages of one round, and what has come back."""

    tasks: dict[int, Parcel]
    under_way: dict[str, tuple[int, int]] = field(default_factory=dict)  # per message the client and its node
    done: dict[str, int] = field(default_factory=dict)  # per message that was answered the client
    sends: dict[int, int] = field(default_factory=dict)  # how often the message was sent to each client
    answers: dict[int, Parcel] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)  # what went wrong with the answers of the other clients

    def unsent(self) -> list[int]:
        """The clients that have no message under way, and neither answered nor failed."""
        busy = {*self.answers, *self.failures, *(number for number, _ in self.under_way.values())}
        return [number for number in self.tasks if number not in busy]


class Post:
    """Sends messages to clients through Flower's grid, and collects their answers."""

    def __init__(self, nodes: Nodes, names: Sequence[str], patience: Patience) -> None:
        self.nodes, self.names, self.patience = nodes, names, patience
        self.late: dict[str, tuple[int, int]] = {}  # per message without an answer in time the client and the round

    def say(self, number: int, text: str) -> None:
        """Write a line about a client to the log."""
        self.nodes.observer.say(f"client {self.names[number]}: {one_line(text)}")

    def exchange(self, round: int, tasks: dict[int, Parcel]) -> Exchange:
        """Send the messages, and wait until all clients that are online have answered, at most until the deadline."""
        exchange, clock = Exchange(tasks), self.nodes.clock
        began = clock.now()
        while True:
            self.nodes.look()
            self._send(exchange)
            self._receive(exchange, round)
            waited = clock.now() - began
            if waited >= self.patience.round or self._is_over(exchange, waited):
                break
            clock.sleep(self.patience.poll)
        for message, (number, _) in exchange.under_way.items():
            exchange.failures[number] = f"no answer within {self.patience.round:g} s"
            self.late[message] = (number, round)
        silent = len(exchange.done) == 0
        exchange.failures |= dict.fromkeys(
            (n for n in exchange.unsent() if n not in exchange.failures), "not connected"
        )
        if silent and tasks:
            failures = sorted(exchange.failures.items())
            reasons = "; ".join(f"{self.names[number]}: {one_line(text)}" for number, text in failures)
            raise UserError(
                f"Round {round + 1}: none of the clients answered ({reasons}). The last checkpoint is kept: start the "
                "clients, then continue with `protofed deploy resume`."
            )
        return exchange

    def _is_over(self, exchange: Exchange, waited: float) -> bool:
        """Whether there is nothing to wait for: clients that are not online are not waited for, unless all are gone."""
        unsent = exchange.unsent()
        if exchange.under_way or any(self.nodes.of(number) is not None for number in unsent):
            return False
        return not unsent or bool(exchange.done) or waited >= self.patience.gone

    def _send(self, exchange: Exchange) -> None:
        """Send their messages to clients that are online and have none under way, also to those that came back."""
        for sent, (number, asked) in list(exchange.under_way.items()):
            if self.nodes.by_client.get(number) != asked:  # the client has come back with another node
                del exchange.under_way[sent]
        for number in exchange.unsent():
            if (node := self.nodes.of(number)) is None:
                continue
            parcel = exchange.tasks[number]
            kind = _message_type(parcel.figures["kind"])
            message = Message(to_records(*parcel), node, kind, ttl=self.patience.round + 60)
            ids = [sent for sent in self.nodes.grid.push_messages([message]) if sent]
            exchange.sends[number] = exchange.sends.get(number, 0) + 1
            exchange.under_way |= dict.fromkeys(ids, (number, node))
            if not ids and exchange.sends[number] >= _MOST_SENDS:
                exchange.failures[number] = "its message could not be sent"

    def _receive(self, exchange: Exchange, round: int) -> None:
        """Take the answers that have come."""
        waiting = [*exchange.under_way, *self.late]
        for reply in list(self.nodes.grid.pull_messages(waiting)) if waiting else []:
            message = reply.metadata.reply_to_message_id
            if message in exchange.under_way:
                number, _ = exchange.under_way.pop(message)
                self._take(exchange, number, message, reply)
            elif message in exchange.done:
                number = exchange.done[message]
                exchange.answers.pop(number, None)
                exchange.failures[number] = "it answered twice"
            elif message in self.late:
                number, late_round = self.late.pop(message)
                if not reply.has_error():
                    self.say(number, f"its answer to round {late_round + 1} came after the deadline and is not used")

    def _take(self, exchange: Exchange, number: int, message: str, reply: Message) -> None:
        """Take one answer. After an error of the transport, the message is sent again if the client is online."""
        if reply.has_error():
            if reply.error.code in _LOST:
                if reply.error.code == _NODE_LOST:
                    self.nodes.online.discard(self.nodes.by_client[number])  # until the next look
                if exchange.sends[number] >= _MOST_SENDS:
                    exchange.failures[number] = f"lost {_MOST_SENDS} times: {reply.error.reason}"
                return
            exchange.done[message] = number
            exchange.failures[number] = str(reply.error.reason)
            return
        exchange.done[message] = number
        try:
            parcel = Parcel(record_tensors(reply.content), record_figures(reply.content))
            check_identity(parcel.figures, exchange.tasks[number].figures)
        except ValueError as problem:
            exchange.failures[number] = str(problem)
            return
        exchange.answers[number] = parcel
        if parcel.figures["kind"] == "train":
            self.nodes.observer.uploaded(number, parcel.figures["round"])
