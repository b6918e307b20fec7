"""Child processes: starting them, finding their descendants, and ending all of them.

Flower starts processes of its own (an executor, and one per app), some of them in a session of their own. They are
found by their parents in /proc, so this is complete on Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_GRACE = 8.0
"""Seconds that processes get to end after SIGINT, before they are killed."""
_PR_SET_CHILD_SUBREAPER = 36


class Handle(NamedTuple):
    """A process, by its number and the time at which it was started, so that a reused number is not mistaken for it."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        status = _read_stat(self.pid)
        return status is not None and status.started == self.started and status.state != "Z"


class _Stat(NamedTuple):
    state: str
    parent: int
    started: int


def handle_of(pid: int) -> Handle | None:
    """The handle of a process that is running; None if there is none."""
    status = _read_stat(pid)
    if status is None:
        return Handle(pid, 0) if not Path("/proc").is_dir() and _exists(pid) else None
    return Handle(pid, status.started)


def _exists(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


def _read_stat(pid: int) -> _Stat | None:
    """State, parent and start time of a process, from /proc; elsewhere only whether it exists."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return _Stat(fields[0], int(fields[1]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        if not Path("/proc").is_dir() and _exists(pid):
            return _Stat("S", 0, 0)
        return None


def descendants(pid: int) -> list[Handle]:
    """All descendants of a process, children first."""
    children: dict[int, list[Handle]] = {}
    for path in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if path.name.isdecimal() and (status := _read_stat(int(path.name))):
            children.setdefault(status.parent, []).append(Handle(int(path.name), status.started))
    found, waiting = [], [pid]
    while waiting:
        for child in children.get(waiting.pop(0), []):
            found.append(child)
            waiting.append(child.pid)
    return found


def command_of(pid: int) -> str:
    """The name of the program of a process, without its arguments (which may have secrets)."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    names = [Path(word).name for word in words[:2]]
    return next((name for name in reversed(names) if name and not name.startswith("-")), "")


def resident_bytes(pid: int) -> int:
    """The memory that a process holds, in bytes; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def adopt_orphans() -> None:
    """Let descendants whose parent was killed become children of this process, so that it can find and end them."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Iterable[int]) -> None:
    """Forget ended processes that were adopted, which would otherwise still look alive to those that watch them."""
    known = set(own)
    for child in descendants(os.getpid()):
        status = _read_stat(child.pid)
        if status and status.state == "Z" and status.parent == os.getpid() and child.pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


class Child:
    """A process of this one, with a log file. It is in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.handle = handle_of(self.process.pid)
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def ended(self) -> int | None:
        """How the process ended: its exit code, or minus the number of the signal; None while it runs."""
        return self.process.poll()


def end_processes(children: Sequence[Child], family: Iterable[Handle]) -> None:
    """End these processes and all their descendants: politely first, then with SIGKILL.

    `family` are descendants that were seen earlier: they may have lost the process that started them.
    """
    known = set(family)
    for child in children:
        known.update(descendants(child.pid))
        if child.ended() is None:
            child.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        known.update(handle for child in children for handle in descendants(child.pid))
        reap_orphans(child.pid for child in children)
        if all(child.ended() is not None for child in children) and not any(handle.alive for handle in known):
            break
        time.sleep(0.1)
    for child in children:
        if child.ended() is None:
            child.process.kill()
        child.process.wait()
    kill_all(known)
    while any(handle.alive for handle in known) and time.monotonic() < deadline + 2:
        time.sleep(0.05)
    reap_orphans(())


def kill_all(handles: Iterable[Handle]) -> None:
    """Kill these processes, as far as they still run."""
    for handle in handles:
        if handle.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(handle.pid, signal.SIGKILL)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that no program uses now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(host: str, port: int) -> bool:
    """Whether a program could listen on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
