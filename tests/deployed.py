"""Deployed federations for tests and benchmarks: real processes, started by the commands that an operator uses."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from protofed.deploy.deployment import RUNNING_FILE
from protofed.deploy.processes import Handle, command_of, descendants, handle_of, port_is_free

COMMAND = [sys.executable, "-c", "from protofed.cli import entry; entry()"]
"""`protofed`, with the Python of the tests."""


def until(condition: Callable[[], Any], what: str, seconds: float = 400.0) -> Any:
    """The first true value of the condition; an error that says what was waited for if it takes too long."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s for: {what}")
        time.sleep(0.1)
    return value


class Command:
    """A running `protofed` command, with its output in a file."""

    def __init__(self, output: Path, *words: str | Path, before: Sequence[str] = ()) -> None:
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [*before, *COMMAND, *map(str, words)], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        self.handle = handle_of(self.process.pid)

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def says(self, words: str, seconds: float = 400.0, times: int = 1) -> None:
        """Wait until the output has these words. The command must still run, or have said them before it ended."""

        def said() -> bool:
            ended = self.process.poll() is not None
            if self.text().count(words) >= times:
                return True
            assert not ended, (
                f"the command ended with {self.process.returncode} before it said {words!r}:\n{self.text()}"
            )
            return False

        try:
            until(said, words, seconds)
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.text()}") from None

    def ends(self, seconds: float = 600.0) -> int:
        """Wait for the end. Returns the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command did not end within {seconds:.0f} s:\n{self.text()}") from None


class Federation:
    """A deployment and the commands that run from it. `close` ends everything that is left."""

    def __init__(self, path: Path, port: int) -> None:
        self.path, self.port, self.commands = path, port, list[Command]()
        self.init_seconds = 0.0

    @property
    def server(self) -> Path:
        return self.path / "server"

    @property
    def deadline(self) -> float:
        """A deadline for a round that clients on this machine meet: writing the deployment took them about as long."""
        return min(max(30.0, 8 * self.init_seconds), 150.0)

    def client(self, name: str) -> Path:
        return self.path / "clients" / name

    def start(self, *words: str | Path) -> Command:
        """Start `protofed deploy ...` in the background."""
        output = self.path.parent / f"{len(self.commands)}-{words[0]}.out"
        self.commands.append(Command(output, "deploy", *words))
        return self.commands[-1]

    def do(self, *words: str | Path) -> str:
        """Run `protofed deploy ...` to its end. Returns what it prints; it must succeed."""
        done = subprocess.run(
            [*COMMAND, "deploy", *map(str, words)], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def settings(self, **values: Any) -> None:
        """Change values of server.toml."""
        path = self.server / "server.toml"
        lines = [line for line in path.read_text().splitlines() if line.partition("=")[0].strip() not in values]
        path.write_text("\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]))

    def process(self, part: Path) -> Handle:
        """The SuperLink or SuperNode of a part."""

        def running() -> Handle | None:
            with contextlib.suppress(OSError, ValueError):
                return Handle(*json.loads((part / RUNNING_FILE).read_text())["process"])
            return None

        found: Handle = until(running, f"a process of {part.name}")
        return found

    def works_on(self, name: str) -> bool:
        """Whether the client app of a client runs at this moment."""
        node = self.process(self.client(name))
        return any(command_of(handle.pid) == "flwr-clientapp" for handle in descendants(node.pid) if handle.alive)

    def rounds(self) -> list[dict[str, Any]]:
        path = self.server / "run" / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def left(self) -> list[str]:
        """The processes that still work for this deployment, by what their environment or command says."""
        mark = str(self.path.resolve()).encode()
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdecimal() and int(path.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (path / "environ").read_bytes() or mark in (path / "cmdline").read_bytes():
                        found.append(f"{path.name} {command_of(int(path.name))}")
        return found

    def is_gone(self) -> None:
        """No process is left and the port is free."""
        until(lambda: not self.left(), f"the end of {self.left()}", 60)
        until(lambda: port_is_free("127.0.0.1", self.port), "the port", 60)

    def close(self) -> None:
        for command in self.commands:
            if command.process.poll() is None:
                command.process.send_signal(signal.SIGTERM)
        for command in self.commands:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.process.wait(20)
            if command.process.poll() is None:
                family = descendants(command.process.pid)
                command.process.kill()
                command.process.wait()
                for handle in family:
                    with contextlib.suppress(ProcessLookupError):
                        if handle.alive:
                            os.kill(handle.pid, signal.SIGKILL)


@contextlib.contextmanager
def federation(path: Path, file: str, *words: str, port: int) -> Iterator[Federation]:
    """A new deployment in a folder, and an orderly end whatever happens."""
    made = Federation(path, port)
    began = time.monotonic()
    made.do("init", file, path, "--port", str(port), *words)
    made.init_seconds = time.monotonic() - began
    try:
        yield made
    finally:
        made.close()


def assert_same_rounds(ours: list[dict[str, Any]], expected: list[dict[str, Any]], tolerance: float = 1e-5) -> None:
    """All figures of rounds.jsonl are equal up to the tolerance, but for the seconds."""
    assert [row["round"] for row in ours] == [row["round"] for row in expected]
    for row, other in zip(ours, expected, strict=True):
        assert row.keys() == other.keys()
        for key in row.keys() - {"seconds"}:
            _assert_close(row[key], other[key], tolerance, f"round {row['round']}: {key}")


def _assert_close(value: Any, other: Any, tolerance: float, where: str) -> None:
    if isinstance(value, dict):
        assert value.keys() == other.keys(), where
        for key in value:
            _assert_close(value[key], other[key], tolerance, f"{where}.{key}")
    elif isinstance(value, list):
        assert len(value) == len(other), where
        for number, pair in enumerate(zip(value, other, strict=True)):
            _assert_close(*pair, tolerance, f"{where}[{number}]")
    elif isinstance(value, float) and isinstance(other, float):
        assert math.isclose(value, other, rel_tol=tolerance, abs_tol=tolerance), f"{where}: {value} and {other}"
    else:
        assert value == other, where
