"""The engine on Ray: jobs, lost actors and errors with a stand-in for Ray, and everything again on Ray itself if it is there."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import threading
import types
from pathlib import Path

import cloudpickle
import pytest
import torch

import protofed
from protofed.engines import ray_pool
from protofed.engines.loop import Loop
from protofed.engines.ray_pool import RayPool
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.experiment.config import Config
from test_ray_runs import of_this_cluster
from test_sweep import becomes_true
from toys import config, everything, federation, net, played_on, pool_of

SMALL = {"run": {"rounds": 3, "sample": 4}, "data": {"clients": 8}, "net": {"hidden": [8], "dim": 4}}


class LostError(Exception):
    """What Ray raises if an actor is lost."""


class StandIn:
    """Ray's functions in this process. `loses`: the calls of `work`, by number, in which the actor is lost."""

    exceptions = types.SimpleNamespace(RayError=LostError)

    def __init__(self, loses: tuple[int, ...] = ()) -> None:
        self.loses, self.calls, self.started, self.killed = loses, 0, 0, 0

    def remote(self, **_):
        return lambda kind: types.SimpleNamespace(remote=lambda *parts: self.actor(kind, parts))

    def actor(self, kind, parts):
        self.started += 1
        worker = kind(*parts)
        return types.SimpleNamespace(
            work=types.SimpleNamespace(remote=lambda *job: self.called(worker, job)),
            ready=types.SimpleNamespace(remote=lambda: lambda: worker.ready()),
        )

    def called(self, worker, job):
        self.calls += 1
        if self.calls in self.loses:
            return lambda: (_ for _ in ()).throw(LostError())
        return lambda: worker.work(*job)

    def wait(self, refs, num_returns):
        return refs[-num_returns:], refs[:-num_returns]  # the newest first: the order must not matter

    def get(self, ref):
        return [one() for one in ref] if isinstance(ref, list) else ref()

    def kill(self, actor):
        self.killed += 1


def on_stand_in(inner, stand_in, monkeypatch, workers=2):
    monkeypatch.setattr(ray_pool, "connected_ray", lambda address, workers: (stand_in, False))

    def make(members, method, training, seed):
        def engine():
            return inner(members, method, training, seed)

        sizes = [len(train) for train in members.train]
        return RayPool(engine(), method.types(), sizes, workers, engine, "")

    return make


@pytest.mark.parametrize("inner", [Loop, Stacked])
@pytest.mark.parametrize("method", ["fedproto", "fedavg"])
def test_actors_give_the_bits_of_the_pool(inner, method, monkeypatch):
    members = federation(nets=[net()] * 6)
    pool = played_on(pool_of(inner, 2), config(method), members)
    ray = played_on(on_stand_in(inner, StandIn(), monkeypatch), config(method), members)
    torch.testing.assert_close(everything(ray), everything(pool), rtol=0, atol=0)
    assert [{**row, "seconds": 0} for row in ray.rounds] == [{**row, "seconds": 0} for row in pool.rounds]


def test_a_lost_actor_is_replaced_and_its_job_done_again(monkeypatch):
    members = federation(nets=[net()] * 6)
    plain = played_on(Loop, config("fedproto"), members)
    stand_in = StandIn(loses=(2, 3, 9))
    ray = played_on(on_stand_in(Loop, stand_in, monkeypatch), config("fedproto"), members)
    torch.testing.assert_close(everything(ray), everything(plain), rtol=0, atol=0)
    assert (stand_in.started, stand_in.killed) == (2 + 3, 2)


def test_a_job_that_always_loses_its_actor_ends_the_run(monkeypatch):
    stand_in = StandIn(loses=tuple(range(1, 100)))
    with pytest.raises(UserError, match="A worker process died 3 times while it worked on clients"):
        played_on(on_stand_in(Loop, stand_in, monkeypatch), config("fedproto"), federation())


def test_ray_without_the_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r'engine.address: Ray needs another package: pip install "protofed\[ray\]"'):
        protofed.run({**SMALL, "engine": {"name": "ray"}})


def test_data_that_were_given_in_python_are_refused():
    own = protofed.Federation([(torch.arange(80.0).reshape(20, 4).numpy(), [0, 1] * 10)] * 2)
    with pytest.raises(UserError, match='"ray" needs data and nets that are named in the experiment'):
        protofed.run({"run": {"rounds": 1}, "engine": {"name": "ray"}}, federation=own)


STUCK = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from protofed.methods.fedproto import FedProto

HERE = Path(__file__).parent

@dataclass(frozen=True)
class Stuck(FedProto):
    def upload(self, trained):
        if (HERE / "armed").exists():
            try:
                (HERE / "claimed").touch(exist_ok=False)
            except FileExistsError:  # only one worker gets stuck, and only once
                return super().upload(trained)
            (HERE / ".pid").write_text(str(os.getpid()))
            (HERE / ".pid").rename(HERE / "pid")
            time.sleep(600)
        return super().upload(trained)
"""


def test_own_code_is_sent_to_ray_by_its_name(tmp_path):
    (tmp_path / "stuck.py").write_text(STUCK)
    made = Config.of({"method": {"name": f"{tmp_path / 'stuck.py'}:Stuck"}})
    sent = cloudpickle.dumps(made)  # as Ray does it
    assert type(made.method).__module__.encode() not in sent  # which only this process has
    assert cloudpickle.loads(sent) == made


@pytest.mark.slow
def test_ray_itself_gives_the_bits_of_the_pool_also_if_actors_are_killed_in_a_job_and_between_rounds(
    tmp_path, monkeypatch
):
    if importlib.util.find_spec("ray") is None:  # an import would read the environment before protofed sets it
        pytest.skip("Ray is not installed")
    token = secrets.token_hex(32)
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)  # by which the processes of this Ray are found
    (tmp_path / "stuck.py").write_text(STUCK)
    table = {
        "run": {"rounds": 4, "sample": 6},
        "data": {"clients": 8},
        "net": [{"hidden": [8], "dim": 4}, {"hidden": [9], "dim": 4}],  # two kinds, so two jobs per round at least
        "method": {"name": f"{tmp_path / 'stuck.py'}:Stuck"},
    }
    expected = protofed.run({**table, "engine": {"workers": 2}}, tmp_path / "pool")
    pools: list[RayPool] = []
    repeated: list[tuple[str, int, int]] = []
    make = RayPool.__init__

    def remembered(self, *parts):
        pools.append(self)
        make(self, *parts)

    def recorded(job, tries):
        repeated.append((job.kind, job.round, tries))

    def kill_the_stuck_one():
        if becomes_true((tmp_path / "pid").exists, 120):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    class Trouble(protofed.Watcher):
        """In the second round, an actor is killed in the middle of a job; after it, one that has nothing to do."""

        def round(self, row):
            if row["round"] == 1:
                (tmp_path / "armed").touch()
            if row["round"] == 2:
                others = set(pools[0].pids) - {int((tmp_path / "pid").read_text())}
                os.kill(min(others), signal.SIGKILL)

    monkeypatch.setattr(RayPool, "__init__", remembered)
    monkeypatch.setattr(ray_pool, "check_tries", recorded)
    killer = threading.Thread(target=kill_the_stuck_one)
    killer.start()
    found = protofed.run({**table, "engine": {"name": "ray", "workers": 2}}, tmp_path / "ray", watchers=[Trouble()])
    killer.join()
    assert int((tmp_path / "pid").read_text()) in pools[0].pids  # a worker of Ray was stuck in a job ...
    assert repeated == [("train", 1, 1), ("train", 2, 1)]  # ... of the second round, which another one did again
    assert [{**row, "seconds": 0} for row in found.rounds] == [{**row, "seconds": 0} for row in expected.rounds]
    for client in range(8):
        torch.testing.assert_close(found.state.kept[client], expected.state.kept[client], rtol=0, atol=0)
    torch.testing.assert_close(found.state.server, expected.state.server, rtol=0, atol=0)
    assert becomes_true(lambda: not of_this_cluster(token), 30), of_this_cluster(token)


def test_the_table_of_ray_is_what_was_measured():
    top = Path(__file__).parents[1] / "docs"
    page = (top / "performance.md").read_text(encoding="utf-8")
    kept = json.loads((top / "results" / "data" / "cluster.json").read_text(encoding="utf-8"))
    assert kept["pool"]["loss"] == kept["ray"]["loss"]
    for name, run in kept.items():
        cells = [f"{run['memory_mb']:,.0f}", f"{run['round_seconds']:.2f}", f"{run['start_seconds']:.0f}"]
        assert f"| `{name}` | {' | '.join(cells)} | {run['load']:.0f} |" in page
