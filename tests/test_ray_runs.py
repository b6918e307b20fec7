"""Runs on a cluster of Ray: calls, errors and the shared folder with a stand-in for Ray, and two sweeps at once on Ray itself."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from concurrent.futures import Future
from pathlib import Path

import pytest

from protofed import __version__
from protofed.engines.ray_connection import connected_ray
from protofed.errors import UserError
from protofed.studies import ray_runs
from protofed.studies.ray_runs import Caller, Cluster, call_as_caller
from protofed.studies.reproduce.studies import STUDIES
from protofed.studies.side_by_side import call_all
from test_cli import protofed as command  # noqa: F401
from test_reproduce import TINY
from test_sweep import becomes_true


class LostError(Exception):
    """What Ray raises if a worker is lost."""


class TaskError(LostError):
    """What Ray raises if a task raises an error."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class StandIn:
    """Ray's functions in this process. `lost`: calls, by number, of which the worker is lost; `stuck`: never answered."""

    exceptions = types.SimpleNamespace(RayError=LostError, RayTaskError=TaskError)

    def __init__(self, lost: tuple[int, ...] = (), stuck: tuple[int, ...] = ()) -> None:
        self.lost, self.stuck, self.calls, self.cancelled, self.ended = lost, stuck, 0, 0, False

    def remote(self, **options):
        assert options == {"num_cpus": 1, "max_retries": 2}
        return lambda function: types.SimpleNamespace(remote=lambda *parts: self.called(function, parts))

    def called(self, function, parts):
        self.calls += 1
        answer: Future = Future()
        if self.calls in self.lost:
            answer.set_exception(LostError("The worker died."))
        elif self.calls not in self.stuck:
            try:
                answer.set_result(function(*parts))
            except Exception as problem:
                answer.set_exception(TaskError(problem))
        return types.SimpleNamespace(future=lambda: answer)

    def put(self, value):
        return value

    def cluster_resources(self):
        return {"CPU": 3.0}

    def cancel(self, call, force):
        self.cancelled += force

    def shutdown(self):
        self.ended = True


@pytest.fixture(autouse=True)
def calls_hold_what_they_refer_to(monkeypatch):
    """In this process; workers of Ray itself fetch it."""
    monkeypatch.setattr(ray_runs, "fetched", lambda call: call[0])


@pytest.fixture
def on_stand_in(monkeypatch, tmp_path):
    """Makes calls on a stand-in, and returns it with what was reported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROTOFED_DATA", "data")  # is set again by every call

    def make(task, arguments, at_a_time=0, **options):
        stand_in, reported = StandIn(**options), {}
        monkeypatch.setattr(ray_runs, "connected_ray", lambda *_: (stand_in, True))
        problem = None
        try:
            names = [f"run {number}" for number in range(len(arguments))]
            cluster = Cluster("auto", Path("out"))
            call_all(task, arguments, names, at_a_time, reported.__setitem__, cluster=cluster)
        except Exception as raised:
            problem = raised
        assert stand_in.ended
        assert list(Path("out").iterdir()) == []  # no marker is left
        return stand_in, reported, problem

    return make


def test_all_calls_are_made_and_reported(on_stand_in):
    stand_in, reported, problem = on_stand_in(divmod, [(7, 2), (9, 4), (5, 5), (1, 1)])
    assert problem is None
    assert reported == {0: (3, 1), 1: (2, 1), 2: (1, 0), 3: (1, 0)}
    assert (stand_in.calls, stand_in.cancelled) == (4, 0)


@pytest.mark.parametrize(("at_a_time", "most"), [(0, 3), (2, 2)])
def test_no_more_calls_are_handed_out_than_there_are_cores_or_were_asked_for(at_a_time, most, on_stand_in, monkeypatch):
    def stopped_at_second_look(pending, *_):
        raise KeyError(len(pending))

    monkeypatch.setattr("protofed.studies.side_by_side.wait", stopped_at_second_look)
    stand_in, _, problem = on_stand_in(divmod, [(1, 1)] * 9, at_a_time)
    assert problem.args == (most,)
    assert stand_in.cancelled == most


def test_cores_that_join_later_are_used(on_stand_in, monkeypatch):
    numbers = iter([1, 1, 2, 2, 2, 9])
    monkeypatch.setattr(StandIn, "cluster_resources", lambda self: {"CPU": next(numbers, 9)})
    handed_out = []

    def all_answer(pending, *_):
        handed_out.append(len(pending))
        return set(pending), set()

    monkeypatch.setattr("protofed.studies.side_by_side.wait", all_answer)
    _, reported, problem = on_stand_in(divmod, [(1, 1)] * 6)
    assert problem is None
    assert handed_out == [1, 2, 3]
    assert len(reported) == 6


def refuse(first, second):
    raise UserError("train.lr: got -1.")


def test_an_error_names_its_run_and_ends_the_others(on_stand_in):
    stand_in, _, problem = on_stand_in(refuse, [(1, 1), (2, 2)], stuck=(1,))
    assert isinstance(problem, UserError)
    assert str(problem) == "run 1: train.lr: got -1."
    assert stand_in.cancelled == 2


def test_another_error_is_raised_as_it_is_with_the_name_of_the_run(on_stand_in):
    _, _, problem = on_stand_in(divmod, [(1, 0)])
    assert type(problem) is ZeroDivisionError
    assert problem.__notes__ == ["This happened in run 0."]
    assert isinstance(problem.__cause__, TaskError)


def test_a_run_that_always_loses_its_worker_is_said(on_stand_in):
    _, reported, problem = on_stand_in(divmod, [(1, 1), (1, 1)], at_a_time=1, lost=(2,))
    assert reported == {0: (1, 0)}
    assert isinstance(problem, UserError)
    assert str(problem).startswith("run 1: its worker of Ray was lost 3 times, perhaps because memory ran out. Run the")


def test_a_machine_that_does_not_see_the_folder_or_has_another_version_is_said(tmp_path):
    caller = Caller(__version__, tmp_path / "runs" / "marker", tmp_path, None, False)
    with pytest.raises(UserError, match=f"--ray: the machine .* does not see the folder {tmp_path / 'runs'}, in which"):
        call_as_caller(caller, [])
    with pytest.raises(UserError, match=rf"has protofed {__version__}, but this command is of protofed 0\.0\.1\. Inst"):
        call_as_caller(caller._replace(version="0.0.1"), [])


def test_a_sweep_from_the_command_line_on_a_stand_in(command, tmp_path, monkeypatch):  # noqa: F811
    stand_in = StandIn()
    asked = []

    def connected(*parts):
        asked.append(parts[::2])
        return stand_in, False

    monkeypatch.setattr(ray_runs, "connected_ray", connected)
    words = ["sweep", "--grid", "method.pull=0,2", "--seeds", "1", "--set", "run.rounds=1", "--set", "data.clients=3"]
    code, out, err = command(*words, "--ray", "10.0.0.1:6379", "--out", "s")
    assert code == 0, err
    assert "2 runs, 2 to do, one per core of the cluster at a time" in out
    assert "2/2" in out
    assert asked == [("10.0.0.1:6379", "--ray")]
    assert stand_in.calls == 2
    assert not stand_in.ended  # the connection was there before
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        "method.pull=0",
        "method.pull=2",
        "plan.json",
        "sweep.json",
        "sweep.png",
    ]
    code, _, err = command(*words, "--set", "engine.name=ray", "--ray", "auto", "--out", "t")
    assert code == 2
    assert '--ray gives complete runs to the cluster, engine.name = "ray" the clients of each run. Use one of' in err


def test_a_study_from_the_command_line_on_a_stand_in(command, tmp_path, monkeypatch):  # noqa: F811
    stand_in = StandIn()
    monkeypatch.setattr(ray_runs, "connected_ray", lambda *_: (stand_in, True))
    monkeypatch.setitem(STUDIES, "tiny", TINY)
    code, out, err = command("reproduce", "tiny", "--quick", "--seeds", "1", "--ray", "auto", "--out", "r")
    assert code == 0, err
    assert "2 runs, 2 to do, one per core of the cluster at a time" in out
    assert stand_in.calls == 2
    assert stand_in.ended
    assert (tmp_path / "r" / "tiny-quick.json").exists()


def test_without_the_package_it_is_said_what_to_install(command, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["--grid", "method.pull=0,2", "--set", "run.rounds=1", "--set", "data.clients=3", "--out", "s"]
    code, _, err = command("sweep", *words, "--ray", "auto")
    assert (code, err) == (2, 'protofed: --ray: Ray needs another package: pip install "protofed[ray]".\n')


@pytest.mark.parametrize("port", [1, 99999])
def test_an_address_at_which_nobody_listens_is_said_at_once(port, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # so that what is set here is taken back
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with pytest.raises(UserError, match=f"--ray: nobody answers at 127.0.0.1:{port}: .*docs/cluster.md says how"):
        connected_ray(f"127.0.0.1:{port}", 2, "--ray")


def of_this_cluster(token: str) -> set[int]:
    """The processes that were started with this token."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if token.encode() in file.read_bytes():
                found.add(int(file.parent.name))
    return found


def end_with_the_tests() -> None:
    """Let the first process of a cluster end, and the others with it, also if the tests are killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@pytest.fixture
def cluster():
    """A Ray cluster of two cores on this machine: its address, the environment of its users, and its folder."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder, token = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")), secrets.token_hex(32)  # sockets need short paths
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    words = ["start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2"]
    words += ["--include-dashboard=false", "--object-store-memory=100000000", f"--temp-dir={folder}"]
    environment = {**os.environ, **settings, "RAY_agent_register_timeout_ms": "300000"}
    log = (folder / "log").open("w")
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", *words],
        env=environment,
        stdout=log,
        stderr=log,
        preexec_fn=end_with_the_tests,
    )
    try:
        started = becomes_true(lambda: "Ray runtime started" in (folder / "log").read_text(), 200)
        assert started, (folder / "log").read_text()
        yield f"127.0.0.1:{port}", environment, token
    finally:
        head.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(40)  # Ray gives its processes 30 seconds
        for process in of_this_cluster(token):
            os.kill(process, signal.SIGKILL)
        head.wait()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
    assert becomes_true(lambda: not of_this_cluster(token), 20), of_this_cluster(token)


@pytest.mark.slow
def test_two_sweeps_at_once_over_a_cluster_give_the_bits_of_local_ones_also_if_a_worker_is_killed(cluster, tmp_path):
    address, environment, token = cluster
    grids = {"pull": "method.pull=0,2", "name": "method.name=fedavg,fednh"}
    call = [sys.executable, "-c", "from protofed.cli import entry; entry()"]

    def begun(name: str, out: str, *words: str) -> subprocess.Popen[str]:
        sets = ["--set", "data.clients=4", "--set", "run.rounds=12", "--seeds", "1", "--out", out]
        return subprocess.Popen(
            [*call, "sweep", "--grid", grids[name], *sets, *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    sweeps = [begun(name, name, "--ray", address, "--jobs", "1") for name in grids]
    try:
        assert becomes_true(lambda: all(any((tmp_path / name).glob("*/*/rounds.jsonl")) for name in grids), 120)
        assert all(sweep.poll() is None for sweep in sweeps)  # both have a run that goes on
        os.kill(min(pid for pid in of_this_cluster(token) if is_working(pid)), signal.SIGKILL)
        sweeps += [begun(name, f"local-{name}", "--jobs", "1") for name in grids]
        outputs = [sweep.communicate(timeout=200)[0] for sweep in sweeps]
    finally:
        for sweep in sweeps:
            sweep.kill()
            sweep.wait()
    assert [sweep.returncode for sweep in sweeps] == [0] * 4, outputs
    assert "A worker died or was killed" in outputs[0] + outputs[1]
    assert becomes_true(lambda: not any(is_working(pid) for pid in of_this_cluster(token)), 30)
    for name in grids:
        local, other = tmp_path / f"local-{name}", tmp_path / name
        assert (local / "sweep.json").read_text() == (other / "sweep.json").read_text()
        runs = [path.relative_to(local) for path in local.glob("*/*")]
        assert len(runs) == 2
        for run in runs:
            first, second = (
                [{**json.loads(row), "seconds": 0} for row in (folder / run / "rounds.jsonl").read_text().splitlines()]
                for folder in (local, other)
            )
            assert len(first) == 12
            assert first == second


def is_working(pid: int) -> bool:
    """Whether this process of Ray makes a run; Ray names its processes by what they do."""
    with contextlib.suppress(OSError):
        return b"call_as_caller" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
