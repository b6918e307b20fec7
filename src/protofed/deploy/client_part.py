"""A client under the supervisor: its SuperNode, which is started again when it dies or is refused for a while."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from protofed.deploy.deployment import client_network
from protofed.deploy.flower_commands import flower_environment, supernode_command
from protofed.deploy.log_lines import LogTail, readable_line
from protofed.deploy.processes import Child, free_port
from protofed.deploy.server_part import how_it_ended
from protofed.deploy.settings import read_client_settings
from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from protofed.deploy.supervisor import ShowLine

GIVE_UP_SECONDS = 120.0
"""Seconds for which a client that the server refuses tries again."""
_REFUSED_PAUSE = 5.0
_LONGEST_PAUSE = 60.0
_LINES_KEPT = 200
_FINAL = {
    "[code: 2001]": "the server lets only clients with a key connect, but network.toml says auth = false",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate does not match ca.pem, or its validity has ended",
    "Exit Code: 302": "client.key cannot be used: it must be an elliptic-curve key in the format of OpenSSH",
}
"""Refusals that another attempt does not change, by what Flower's log says."""
_FOR_A_WHILE = "[code: 2004]"
"""The SuperLink does not know the key (yet), or an earlier process of this client still counts as connected."""


class ClientPart:
    """A client: its SuperNode. `server` replaces the address of network.toml."""

    def __init__(
        self,
        folder: Path,
        say: ShowLine,
        server: str | None = None,
        give_up: float = GIVE_UP_SECONDS,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.folder, self.say, self.give_up, self.ready = folder, say, give_up, ready
        self.network = client_network(folder)
        settings, _ = read_client_settings(folder)
        self.name, self.server = settings.name, server or self.network.server
        host, _, port = self.server.rpartition(":")
        if not host or not port.isdigit():
            where = "--server" if server else f"{folder / 'network.toml'}: server"
            raise UserError(f'{where}: got "{self.server}"; must be host:port, such as 10.0.0.1:8443.')
        if not (folder / settings.data).is_file():
            raise UserError(
                f"{folder / settings.data} does not exist. Put this client's data there: an .npz file with x and y; "
                f"{folder / 'README.md'} describes it."
            )
        self.child: Child | None = None
        self.outcome: bool | None = None
        self.next_start: float | None = 0.0  # when to start the SuperNode; None while it runs
        self.failures = 0
        self.refused_since: float | None = None
        self.waits = False  # whether the server does not answer
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)  # of this SuperNode
        self.log = LogTail(folder / "logs" / "flower.log")

    def step(self) -> None:
        """Start the SuperNode if it is time to, and decide what follows when it has ended."""
        self._show_log()
        if self.outcome is not None:
            return
        if self.next_start is not None:
            if time.monotonic() >= self.next_start and self.ready():
                self._start()
        elif self.child and (code := self.child.ended()) is not None:
            self._show_log()
            self._decide(code)

    def _start(self) -> None:
        self.lines.clear()
        command = supernode_command(self.folder, self.network, self.server, free_port())
        self.child = Child(command, flower_environment(self.folder), self.folder / "logs" / "flower.log")
        self.next_start = None

    def _decide(self, code: int) -> None:
        """Try again after a pause, or give up."""
        text, now = "\n".join(self.lines), time.monotonic()
        reason = next((words for mark, words in _FINAL.items() if mark in text), "")
        if reason:
            self._give_up(reason)
        elif _FOR_A_WHILE in text:
            self.refused_since = self.refused_since or now
            if now - self.refused_since > self.give_up:
                self._give_up("the server does not know this client's key (server/keys has the keys that it knows)")
                return
            self.next_start = now + _REFUSED_PAUSE
            if self.refused_since == now:
                self.say(
                    self.name,
                    "refused: the server does not know this key, or still counts an earlier process of this client as "
                    f"connected (for up to a minute). Trying again for {self.give_up:.0f} s",
                )
        else:
            self.failures += 1
            pause = min(2.0 ** (self.failures - 1), _LONGEST_PAUSE)
            self.next_start = now + pause
            self.say(self.name, f"the SuperNode {how_it_ended(code)}; starting it again in {pause:.0f} s")

    def _give_up(self, reason: str) -> None:
        self.outcome = False
        self.say(self.name, f"refused: {reason}. Giving up")

    def _show_log(self) -> None:
        for line in self.log.new_lines():
            self.lines.append(line)
            if "SuperNode ID:" in line:
                self.failures, self.refused_since, self.waits = 0, None, False
                self.say(self.name, f"connected to {self.server}")
            elif "Connection attempt failed" in line:
                if not self.waits and self.child and self.child.ended() is None:
                    self.say(self.name, f"{self.server} does not answer; trying again until it does")
                self.waits = True
            elif text := readable_line(line):
                self.say(self.name, text)
