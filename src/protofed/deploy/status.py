"""What an operator sees of the server: lines of a log, and the file status.json."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from protofed.engines.flower.client_answers import one_line
from protofed.experiment.watchers import Watcher
from protofed.experiment.wording import quantity, void_text

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.experiment.config import Config
    from protofed.experiment.members import Members
    from protofed.experiment.results import Result, RoundRow

STATUS_FILE = "status.json"
LOG_FILE = "server.log"
_LONGEST_LINE = 10_000


class ServerStatus(Watcher):
    """Prints what happens, and keeps status.json up to date."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.path, self.log = folder / STATUS_FILE, folder / LOG_FILE
        self.names = tuple(names)
        self.content: dict[str, Any] = {"state": "enrolling", "run": "", "round": 0, "rounds": 0, "error": ""}
        self.clients = {name: _not_seen_yet(number) for number, name in enumerate(names)}
        self.write()

    def write(self, **changes: Any) -> None:
        """Write the status, with these changes."""
        self.content |= changes
        content = {**self.content, "updated": time.time(), "clients": self.clients}
        new = self.path.with_name(f".{STATUS_FILE}.new")  # not forced to disk: after a crash it is out of date anyway
        new.write_text(json.dumps(content, indent=1), encoding="utf-8")
        new.replace(self.path)

    def say(self, text: str) -> None:
        """Print a line, and append it to server.log: Flower does not show what a server app prints.

        What clients send can be part of it, so control characters are left out.
        """
        text = one_line(text, _LONGEST_LINE)
        print(text, flush=True)
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def members(self, run: str, names: Sequence[str]) -> None:
        """The clients that take part are known. One that server.toml does not list any more is shown, too."""
        self.names = tuple(names)
        for number, name in enumerate(names):
            self.clients.setdefault(name, _not_seen_yet(number))["number"] = number
        self.write(run=run)

    def connected(self, numbers: Collection[int]) -> None:
        online = {self.names[number] for number in numbers}
        changed = [name for name in self.names if self.clients[name]["connected"] != (name in online)]
        for name in changed:
            client = self.clients[name]
            client["connected"] = name in online
            if client["enrolled"]:
                self.say(f"client {name}: {'connected again' if name in online else 'not connected any more'}")
            elif name in online:
                self.say(f"client {name}: enrolled")
            client["enrolled"] = client["enrolled"] or name in online
        if changed:
            self.write()

    def uploaded(self, number: int, round: int) -> None:
        self.clients[self.names[number]] |= {"last_round": round + 1, "last_upload": time.time()}
        self.write()

    def started(self, config: Config, members: Members, rounds: Sequence[RoundRow], notes: Sequence[str]) -> None:
        for note in notes:
            self.say(f"note: {note}")
        self.write(state="running", round=len(rounds), rounds=config.run.rounds)
        self.say(f"{config.method_name}, {len(members)} clients, rounds {len(rounds) + 1} to {config.run.rounds}")

    def round(self, row: RoundRow) -> None:
        for number, reason in row["rejected"].items():
            name = self.names[int(number)]
            self.clients[name]["rejected"] += 1
            self.clients[name]["last_reason"] = one_line(f"round {row['round']}: {reason}")
            self.say(f"client {name}: rejected in round {row['round']}: {reason}")
        if text := void_text(row):
            self.say(text)
        self.write(round=row["round"])
        asked, ways = len(row["clients"]), (("head", "by head"), ("prototype", "by prototype"))
        shares = [
            f"{text} {100 * row[f'accuracy_{way}']:.1f} %"
            for way, text in ways
            if row.get(f"accuracy_{way}") is not None
        ]
        accuracy = f", accuracy {', '.join(shares)}" if shares else ""
        used = asked - len(row["rejected"])
        self.say(f"round {row['round']}: {used} of {asked} clients answered ({row['seconds']:.1f} s){accuracy}")

    def warned(self, text: str) -> None:
        self.say(f"warning: {text}")

    def finished(self, result: Result) -> None:
        self.write(state="finished")
        self.say(f"finished after {quantity(result.summary['rounds'], 'round')}: {result.folder}")

    def failed(self, problem: str) -> None:
        """The run has ended with an error."""
        self.write(state="failed", error=one_line(problem, _LONGEST_LINE))
        self.say(f"error: {problem}")


def _not_seen_yet(number: int) -> dict[str, Any]:
    """What is known about a client before it connects."""
    return {
        "number": number,
        "connected": False,
        "enrolled": False,
        "last_round": 0,
        "last_upload": None,
        "rejected": 0,
        "last_reason": "",
    }
