"""The server under the supervisor: SuperLink, registration of the clients' keys, the run, and its end."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from protofed.deploy.certificates import valid_until
from protofed.deploy.deployment import replace_file, server_network, server_status
from protofed.deploy.flower_commands import (
    flower_environment,
    is_healthy,
    register_client,
    run_status,
    submit_run,
    superlink_command,
    write_connection,
)
from protofed.deploy.log_lines import LogTail, readable_line
from protofed.deploy.processes import Child, command_of, descendants, port_is_free
from protofed.deploy.settings import NODE_IDS_FILE, read_server_settings
from protofed.deploy.supervisor import end_leftovers
from protofed.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.deploy.supervisor import ShowLine

_START_SECONDS = 120.0
"""Seconds that the SuperLink gets until it answers."""
_REGISTERED_AT_ONCE = 4
_REGISTERED_FILE = "registered.json"
"""The keys that the SuperLink's database has or is about to get, by the names of their clients."""
_ASK_SECONDS = 60.0
"""Seconds between two questions to Flower about the run while it seems to go on, or after one that failed."""
_MOST_FAILED_QUESTIONS = 5
"""The number of questions in a row that may fail until the run is given up."""


class ServerPart:
    """A server: SuperLink and run. `listen` and `port` replace those of network.toml."""

    name = "server"

    def __init__(
        self, folder: Path, say: ShowLine, resume: bool, rounds: int = 0, listen: str | None = None, port: int = 0
    ) -> None:
        self.folder, self.say, self.resume, self.rounds = folder, say, resume, rounds
        self.network = server_network(folder)
        self.clients = read_server_settings(folder).clients
        self.listen, self.port = listen or self.network.listen, port or self.network.port
        if self.listen not in ("127.0.0.1", "0.0.0.0"):
            raise UserError(
                f'listen: got "{self.listen}"; must be 127.0.0.1 (for this machine only) or 0.0.0.0 (for every IPv4 '
                "network of this machine), because the server's own processes reach it at 127.0.0.1."
            )
        end_leftovers(folder)
        if not port_is_free(self.listen, self.port):
            raise UserError(
                f"Port {self.port} is in use by another program. Stop that program, or give another port with --port "
                f"(for good: in {folder / 'network.toml'} and in those of the clients)."
            )
        if self.network.tls and (left := valid_until(folder / "server.pem").timestamp() - time.time()) < 30 * 86400:
            state = f"ends in {left / 86400:.0f} days" if left > 0 else "has ended"
            say(self.name, f"the validity of server.pem {state}: make a new one with `protofed deploy renew`")
        self.child: Child | None = None
        self.outcome: bool | None = None
        self.accepts = False  # whether clients can connect
        self.run = ""  # Flower's id of the run, once it has been started
        self.app_was_seen = False
        self.failed_questions = 0  # in a row
        self.flower_log, self.own_log = LogTail(folder / "logs" / "flower.log"), LogTail(folder / "server.log")
        self.began = self.last_look = time.monotonic()

    def step(self) -> None:
        """Start the SuperLink, wait until it answers, start the run, and watch it."""
        self._show_logs()
        if self.child is None:
            self._forget_other_keys()
            write_connection(self.folder, self.network, self.port)
            command = superlink_command(self.folder, self.network, self.listen, self.port)
            self.child = Child(command, flower_environment(self.folder), self.folder / "logs" / "flower.log")
        elif (code := self.child.ended()) is not None:
            self._end(False, f"the SuperLink {how_it_ended(code)}; see logs/flower.log in {self.folder}")
        elif not self.accepts:
            self._await_superlink()
        elif not self.run:
            self.run = submit_run(self.folder, self.resume, self.rounds)
            self.last_look = time.monotonic()
        else:
            self._watch_run()

    def _await_superlink(self) -> None:
        if not is_healthy(self.folder, self.network, self.port):
            if time.monotonic() > self.began + _START_SECONDS:
                self._end(False, f"the SuperLink did not answer within {_START_SECONDS:.0f} seconds")
            return
        self.say(self.name, f"listening on {self.listen}:{self.port}, {self._protection()}")
        if self.network.auth:
            self._register_clients()
        self.accepts = True

    def _protection(self) -> str:
        if not self.network.tls:
            return "NOT encrypted (no --tls)"
        return "with TLS, clients authenticate" if self.network.auth else "with TLS, any client may connect (no --auth)"

    def _keys(self) -> dict[str, str]:
        """The public key of each client that has one, by name."""
        files = {name: self.folder / "keys" / f"{name}.pub" for name in self.clients}
        return {name: file.read_text().strip() for name, file in files.items() if file.is_file()}

    def _forget_other_keys(self) -> None:
        """Let the SuperLink start without its database if that has keys which it must not have, or may have.

        Keys that are not in keys/ must not be valid. After an interrupted registration, the ids of nodes are missing
        for keys that the database may have, and Flower registers no key twice.
        """
        ids, registered = self.folder / NODE_IDS_FILE, self.folder / _REGISTERED_FILE
        before, known = (json.loads(path.read_text()) if path.exists() else {} for path in (registered, ids))
        keys = self._keys()
        is_wrong = any(keys.get(name) != key or name not in known for name, key in before.items())
        if is_wrong or not (self.folder / "state.db").exists():
            for path in (*self.folder.glob("state.db*"), ids, registered):
                path.unlink(missing_ok=True)

    def _register_clients(self) -> None:
        """Tell the SuperLink the keys that it does not know yet, and keep the ids of their nodes."""
        path, keys = self.folder / NODE_IDS_FILE, self._keys()
        known = json.loads(path.read_text()) if path.exists() else {}
        new = [name for name in keys if name not in known]
        replace_file(self.folder / _REGISTERED_FILE, json.dumps(keys).encode())  # first: see `_forget_other_keys`
        with ThreadPoolExecutor(_REGISTERED_AT_ONCE) as threads:
            for name, node in zip(new, threads.map(partial(register_client, self.folder), new), strict=True):
                known[name] = node
                replace_file(path, json.dumps(known).encode())
        if missing := [name for name in self.clients if name not in known]:
            self.say(self.name, f"no key in {self.folder / 'keys'} for {', '.join(missing)}: they cannot connect")

    def _watch_run(self) -> None:
        """See whether the run has ended. Flower is asked only when it seems so, because each question costs seconds."""
        app_runs = self._app_runs()
        self.app_was_seen |= app_runs
        seems_over = server_status(self.folder).get("state") in ("finished", "failed") or self.app_was_seen
        patience = 1.0 if seems_over and not app_runs and not self.failed_questions else _ASK_SECONDS
        if time.monotonic() < self.last_look + patience:
            return
        try:
            status = run_status(self.folder, self.run)
            self.failed_questions = 0
        except UserError as problem:
            self.failed_questions += 1
            if self.failed_questions >= _MOST_FAILED_QUESTIONS:
                raise
            self.say(self.name, f"{problem} Asking again in {_ASK_SECONDS:.0f} seconds.")
            status = ""
        self.last_look = time.monotonic()
        if status.startswith("finished"):
            self._show_logs()
            reason = server_status(self.folder).get("error")
            self._end(status == "finished:completed", f"the run has ended ({status}){f': {reason}' if reason else ''}")

    def _app_runs(self) -> bool:
        """Whether the process of the server app runs."""
        if self.child is None:
            return False
        return any(command_of(handle.pid) == "flwr-serverapp" for handle in descendants(self.child.pid) if handle.alive)

    def _end(self, outcome: bool, text: str) -> None:
        self.outcome = outcome
        self.say(self.name, text)

    def _show_logs(self) -> None:
        for line in self.own_log.new_lines():
            self.say(self.name, line)
        for line in self.flower_log.new_lines():
            if text := readable_line(line):
                self.say(self.name, text)


def how_it_ended(code: int) -> str:
    """How a process ended, in words.

    >>> how_it_ended(-9)
    'was killed by signal 9'
    >>> how_it_ended(1)
    'ended with code 1'
    """
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
