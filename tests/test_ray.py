"""The engine on Ray: jobs, lost actors and errors with a stand-in for Ray, and everything again on Ray itself if it is there."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import types
from pathlib import Path

import pytest
import torch

import protofed
from protofed.engines import ray_pool
from protofed.engines.loop import Loop
from protofed.engines.ray_pool import RayPool
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
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
    monkeypatch.setattr(ray_pool, "_connected", lambda address, workers: (stand_in, False))

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
    with pytest.raises(UserError, match=r'"ray" needs another package: pip install "protofed\[ray\]"'):
        protofed.run({**SMALL, "engine": {"name": "ray"}})


def test_data_that_were_given_in_python_are_refused():
    own = protofed.Federation([(torch.arange(80.0).reshape(20, 4).numpy(), [0, 1] * 10)] * 2)
    with pytest.raises(UserError, match='"ray" needs data and nets that are named in the experiment'):
        protofed.run({"run": {"rounds": 1}, "engine": {"name": "ray"}}, federation=own)


@pytest.mark.slow
def test_ray_itself_gives_the_bits_of_the_pool_also_if_an_actor_is_killed(tmp_path):
    if importlib.util.find_spec("ray") is None:  # an import would read the environment before protofed sets it
        pytest.skip("Ray is not installed")
    expected = protofed.run({**SMALL, "engine": {"workers": 2}}, tmp_path / "pool")

    class Kill(protofed.Watcher):
        """Kills an actor after the first round."""

        def round(self, row):
            if row["round"] == 1:
                os.kill(started[0].pids[0], signal.SIGKILL)

    started: list[RayPool] = []
    make = RayPool.__init__

    def remembered(self, *parts):
        started.append(self)
        make(self, *parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayPool, "__init__", remembered)
        found = protofed.run({**SMALL, "engine": {"name": "ray", "workers": 2}}, tmp_path / "ray", watchers=[Kill()])
    assert [{**row, "seconds": 0} for row in found.rounds] == [{**row, "seconds": 0} for row in expected.rounds]
    for client in range(8):
        torch.testing.assert_close(found.state.kept[client], expected.state.kept[client], rtol=0, atol=0)


def test_the_table_of_ray_is_what_was_measured():
    top = Path(__file__).parents[1] / "docs"
    page = (top / "performance.md").read_text(encoding="utf-8")
    kept = json.loads((top / "results" / "data" / "cluster.json").read_text(encoding="utf-8"))
    assert kept["pool"]["loss"] == kept["ray"]["loss"]
    for name, run in kept.items():
        cells = [f"{run['memory_mb']:,.0f}", f"{run['round_seconds']:.2f}", f"{run['start_seconds']:.0f}"]
        assert f"| `{name}` | {' | '.join(cells)} | {run['load']:.0f} |" in page
