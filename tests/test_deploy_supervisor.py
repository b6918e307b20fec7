"""The supervisor with small processes instead of Flower's: nothing is left, whatever happens."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from protofed.deploy.client_part import ClientPart
from protofed.deploy.deployment import RUNNING_FILE
from protofed.deploy.log_lines import LogTail
from protofed.deploy.processes import Child, Handle, descendants, free_port, handle_of, port_is_free
from protofed.deploy.supervisor import end_leftovers, read_running, stop_parts, supervise
from protofed.errors import UserError

FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"], start_new_session=True)
time.sleep(60)
"""
"""A process with a child in a session of its own that does not end when asked to."""


class SmallPart:
    """A part with any command. Its outcome is set from outside."""

    def __init__(self, folder: Path, code: str = FAMILY) -> None:
        self.name, self.folder, self.code = folder.name, folder, code
        self.child: Child | None = None
        self.outcome: bool | None = None
        self.steps = 0
        folder.mkdir(exist_ok=True)

    def step(self) -> None:
        self.steps += 1
        if self.child is None:
            self.child = Child([sys.executable, "-c", self.code], os.environ, self.folder / "log")


def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr("protofed.deploy.processes._GRACE", 0.5)
    monkeypatch.setattr("protofed.deploy.supervisor._PAUSE", 0.05)


def watch(parts, then) -> tuple[bool | None, list[Handle]]:
    """Supervise the parts, and do something once each of them has a family. Returns the outcome and all processes."""
    seen: list[Handle] = []

    def act() -> None:
        until(lambda: all(part.child and descendants(part.child.pid) for part in parts))
        for part in parts:
            seen.extend([part.child.handle, *descendants(part.child.pid)])
        then()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        return supervise(parts), seen
    finally:
        thread.join()


def test_all_processes_end_with_the_first_part(tmp_path):
    parts = [SmallPart(tmp_path / "server"), SmallPart(tmp_path / "a")]
    outcome, seen = watch(parts, lambda: setattr(parts[0], "outcome", True))
    assert outcome is True
    assert len(seen) == 4
    assert not any(handle.alive for handle in seen)
    assert not (parts[1].folder / RUNNING_FILE).exists()


def test_the_end_of_another_part_ends_nothing(tmp_path):
    parts = [SmallPart(tmp_path / "server"), SmallPart(tmp_path / "a")]

    def then() -> None:
        parts[1].outcome = False
        steps = parts[0].steps
        until(lambda: parts[0].steps > steps + 2)
        parts[0].outcome = False

    assert watch(parts, then)[0] is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes(tmp_path, number):
    before = signal.getsignal(number)
    outcome, seen = watch([SmallPart(tmp_path / "server")], lambda: os.kill(os.getpid(), number))
    assert outcome is None
    assert not any(handle.alive for handle in seen)
    assert signal.getsignal(number) is before


def test_an_error_ends_all_processes(tmp_path):
    part = SmallPart(tmp_path / "server")
    seen: list[Handle] = []

    def step() -> None:
        SmallPart.step(part)
        seen[:] = [part.child.handle, *descendants(part.child.pid)]
        if len(seen) > 1:
            raise UserError("a mistake")

    part.step = step
    with pytest.raises(UserError, match="a mistake"):
        supervise([part])
    assert len(seen) == 2
    assert not any(handle.alive for handle in seen)


def test_children_of_a_killed_process_end_too(tmp_path):
    """They have lost the process that started them, so they must have been seen before."""
    part = SmallPart(tmp_path / "server")

    def then() -> None:
        steps = part.steps
        until(lambda: part.steps > steps + 2)
        part.child.process.kill()
        until(lambda: not part.child.handle.alive)
        part.outcome = False

    outcome, seen = watch([part], then)
    assert outcome is False
    assert not any(handle.alive for handle in seen)


def test_only_one_supervisor_per_part(tmp_path):
    part, messages = SmallPart(tmp_path / "server"), []

    def then() -> None:
        try:
            with pytest.raises(UserError) as refused:
                supervise_in_process(tmp_path / "server")
            messages.append(str(refused.value))
        finally:
            part.outcome = True  # otherwise the supervisor would wait for ever

    watch([part], then)
    assert "already running" in messages[0]


def supervise_in_process(folder: Path) -> None:
    """Supervise from another process, as a second command would."""
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_deploy_supervisor import SmallPart
from protofed.deploy.supervisor import supervise
from protofed.errors import UserError
try:
    supervise([SmallPart(Path({str(folder)!r}))])
except UserError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr  # the supervisor of this process may reap it first, and its exit code is lost then
    raise UserError(done.stdout)


def test_what_a_killed_supervisor_left_is_found_and_ended(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_deploy_supervisor import SmallPart
from protofed.deploy.supervisor import supervise
supervise([SmallPart(Path({str(folder)!r}))])
"""
    supervisor = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: (running := read_running(folder)) and descendants(running.process.pid), 60)
        running = read_running(folder)
        family = [running.process, *descendants(running.process.pid)]
    finally:
        supervisor.kill()
        supervisor.wait()
    assert all(handle.alive for handle in family)
    assert stop_parts([folder]) == ["a"]
    until(lambda: not any(handle.alive for handle in family))
    assert stop_parts([folder]) == []


def test_a_reused_process_number_is_not_mistaken(tmp_path):
    own = handle_of(os.getpid())
    assert own.alive
    assert not Handle(own.pid, own.started + 1).alive
    (tmp_path / RUNNING_FILE).write_text(f'{{"supervisor": [{own.pid}, 1], "process": [{own.pid}, 1]}}')
    end_leftovers(tmp_path)  # this process is still here to say so


def test_ports():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not port_is_free("127.0.0.1", taken.getsockname()[1])
    assert port_is_free("127.0.0.1", free_port())


def test_new_lines_of_a_log(tmp_path):
    path = tmp_path / "log"
    path.write_text("old\n")
    tail, complete = LogTail(path), LogTail(path, from_start=True)
    with path.open("a") as file:
        file.write("new\nhal")
        file.flush()
        assert list(tail.new_lines()) == ["new"]
        file.write("f\n")
        file.flush()
    assert list(tail.new_lines()) == ["half"]
    assert list(complete.new_lines()) == ["old", "new", "half"]
    path.write_text("x\n")
    assert list(tail.new_lines()) == ["x"]


class FakeChild:
    pid = 0
    handle = None

    def __init__(self, log: Path, text: str) -> None:
        log.parent.mkdir(exist_ok=True)
        with log.open("a") as file:
            file.write(text)

    def ended(self) -> int:
        return 1


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client whose process ends at once, with what Flower's log then says."""
    (tmp_path / "client.toml").write_text('name = "a"\n')
    (tmp_path / "network.toml").write_text('server = "127.0.0.1:1"\n')
    (tmp_path / "policy.toml").touch()
    (tmp_path / "data.npz").write_text("")
    said: list[str] = []
    clock = [1000.0]
    text = ["\n"]
    monkeypatch.setattr("protofed.deploy.client_part.Child", lambda command, environment, log: FakeChild(log, text[0]))
    monkeypatch.setattr("protofed.deploy.client_part.supernode_command", lambda *words: [])
    monkeypatch.setattr("protofed.deploy.client_part.time.monotonic", lambda: clock[0])
    part = ClientPart(tmp_path, lambda name, line: said.append(line), give_up=60.0)
    return part, said, clock, text


def test_a_refused_client_tries_again_and_gives_up_in_the_end(client):
    part, said, clock, text = client
    text[0] = "Failed to initialize the connection to the SuperLink.\n[code: 2004] Failed to activate SuperNode.\n"
    starts = 0
    while part.outcome is None:
        part.step()
        starts += part.next_start is None
        clock[0] += 1.0
        assert clock[0] < 1200
    assert 5 < starts < 20
    assert 1060 < clock[0] < 1080
    assert len([line for line in said if "Trying again" in line]) == 1
    assert "Giving up" in said[-1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[code: 2001] must be registered via the CLI", "only clients with a key"),
        ("CERTIFICATE_VERIFY_FAILED", "does not match ca.pem"),
        ("ERROR :     Exit Code: 302", "elliptic-curve key"),
    ],
)
def test_a_client_that_is_refused_for_good_gives_up_at_once(client, text, reason):
    part, said, _, log = client
    log[0] = f"{text}\n"
    part.step()
    part.step()
    assert part.outcome is False
    assert reason in said[-1]


def test_a_client_that_dies_is_started_again_after_growing_pauses(client):
    part, said, clock, _ = client
    starts = []
    while len(starts) < 5:
        part.step()
        if part.next_start is None:
            starts.append(clock[0])
        clock[0] += 0.5
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 2.0
    assert 8.0 <= pauses[-1] <= 10.0
    assert "ended with code 1" in said[0]
