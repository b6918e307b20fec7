"""The supervisor: starts the server, clients or both, watches them, and ends all of them together."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from filelock import FileLock, Timeout

from protofed.deploy.deployment import RUNNING_FILE, replace_file
from protofed.deploy.processes import (
    Child,
    Handle,
    adopt_orphans,
    descendants,
    end_processes,
    handle_of,
    kill_all,
    reap_orphans,
)
from protofed.errors import UserError

if TYPE_CHECKING:
    from types import FrameType

ShowLine = Callable[[str, str], None]
"""Shows a line: the name of the server or client, and the text."""
_PAUSE = 0.25
"""Seconds between two looks at the processes."""
_STOP_SECONDS = 30.0
"""Seconds that a supervisor gets to end its processes."""


class Part(Protocol):
    """A server or client under the supervisor."""

    name: str
    folder: Path
    child: Child | None
    outcome: bool | None
    """whether the part has ended well (True) or badly (False); None while it goes on"""

    def step(self) -> None:
        """Look at the process, and do what is next."""


def supervise(parts: Sequence[Part]) -> bool | None:
    """Run the parts until the first of them has ended. Returns its outcome; None if a signal stopped everything.

    The other parts are ended then. SIGINT, SIGTERM and SIGHUP end everything. No process is left in any case.
    """
    adopt_orphans()
    with _stop_signals() as received, ExitStack() as locks:
        for part in parts:
            locks.enter_context(_locked(part))
        family: set[Handle] = set()
        try:
            while not received:
                for part in parts:
                    before = part.child
                    part.step()
                    if part.child and part.child is not before:
                        _write_running(part, part.child)
                    if received:
                        return None
                family = {handle for handle in family if handle.alive}
                family.update(handle for part in parts if part.child for handle in descendants(part.child.pid))
                reap_orphans(part.child.pid for part in parts if part.child)
                if parts[0].outcome is not None:
                    return parts[0].outcome
                time.sleep(_PAUSE)
            return None
        finally:
            end_processes([part.child for part in reversed(parts) if part.child], family)
            for part in parts:
                (part.folder / RUNNING_FILE).unlink(missing_ok=True)


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """A list to which the signals that stop a program add their number, while the block lasts."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _locked(part: Part) -> Iterator[None]:
    """Only one supervisor may run a server or client. The lock ends with the block, and also when the process dies."""
    lock = FileLock(part.folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"{part.name} is already running from {part.folder}. Stop it with: protofed deploy down {part.folder}"
        ) from None
    try:
        end_leftovers(part.folder)
        yield
    finally:
        lock.release()


class Running(NamedTuple):
    """The processes of a server or client, as its running.json names them."""

    supervisor: Handle
    process: Handle


def _write_running(part: Part, child: Child) -> None:
    supervisor = handle_of(os.getpid())
    content = {"supervisor": supervisor, "process": child.handle, "since": time.time()}
    replace_file(part.folder / RUNNING_FILE, json.dumps(content).encode())


def read_running(folder: Path) -> Running | None:
    """The processes of a server or client; None if it was ended in an orderly way or never started."""
    try:
        content = json.loads((folder / RUNNING_FILE).read_text())
        return Running(Handle(*content["supervisor"]), Handle(*content["process"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def end_leftovers(folder: Path) -> None:
    """Kill the processes of a supervisor that was killed."""
    running = read_running(folder)
    if running and not running.supervisor.alive:
        family = descendants(running.process.pid) if running.process.alive else []
        kill_all([running.process, *family])
        (folder / RUNNING_FILE).unlink(missing_ok=True)


def stop_parts(folders: Sequence[Path]) -> list[str]:
    """Stop the servers and clients in these folders, and those under the same supervisors. Returns their names."""
    names = []
    supervisors: set[Handle] = set()
    for folder in folders:
        running = read_running(folder)
        if running and (running.supervisor.alive or running.process.alive):
            names.append(folder.name)
            if running.supervisor.alive:
                supervisors.add(running.supervisor)
            else:
                end_leftovers(folder)
    for supervisor in supervisors:
        with suppress(ProcessLookupError):
            os.kill(supervisor.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while any(supervisor.alive for supervisor in supervisors) and time.monotonic() < deadline:
        time.sleep(0.1)
    for supervisor in supervisors:
        if supervisor.alive:
            kill_all([supervisor, *descendants(supervisor.pid)])
    return names
