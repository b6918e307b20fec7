"""Stacks, workers and the rule that chooses: what they share, what they survive, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import protofed
from protofed.core import KeptModel, Method, Params, Phase, average
from protofed.engines.choice import choose_workers, make_engine
from protofed.engines.loop import Loop
from protofed.engines.pool import Pool
from protofed.engines.stack_training import narrowing_width
from protofed.engines.stacked import LARGEST_STACK, Stacked
from protofed.engines.trees import StackedTrees
from protofed.errors import UserError
from protofed.experiment import checkpoint
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.run import resolve_engine
from protofed.experiment.runner import Runner
from protofed.methods.local import Local
from toys import config, everything, federation, net, played_on, pool_of

SMALL = {"run": {"rounds": 3}, "data": {"clients": 6}}


def same(kind, experiment, members, **tolerance):
    spec, runner = (played_on(one, experiment, members) for one in (Loop, kind))
    torch.testing.assert_close(everything(runner), everything(spec), **(tolerance or {"rtol": 1e-4, "atol": 1e-4}))
    for row, reference in zip(runner.rounds, spec.rounds, strict=True):
        assert row["loss"] == pytest.approx(reference["loss"], rel=1e-3, abs=1e-4)


# Stacks


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_stacks_are_the_loop_whatever_the_training(optimiser, drop_last):
    training = {
        "optimiser": optimiser,
        "drop_last": drop_last,
        "lr": 0.02,
        "weight_decay": 0.01,
        "clip": 0.5,
        "epochs": 3,
        "decay": 0.7,
    }
    same(Stacked, config("fedproto", rounds=3, train=training), federation(nets=[net(dropout=0.4)] * 6))


STEEP = {"schedule": "polynomial", "decay_rounds": 2, "decay_power": 3.0, "schedule_by": "step", "warmup": 0.5}
"""A learning rate that changes in every step."""


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("patience", [0, 30])
def test_stacks_are_the_loop_with_a_learning_rate_per_step(optimiser, patience):
    """Also if a step is recorded at once and then replayed: the recording must not keep the rate of its first step."""

    def stacked(*parts):
        return Stacked(*parts, patience=patience)

    training = {"optimiser": optimiser, "lr": 0.2, "weight_decay": 0.1, "epochs": 3, "batch": 3, **STEEP}
    slow = {"slow": 0.5}  # clients of one stack with different numbers of steps
    experiment = config("fedproto", rounds=2, train=training, system=slow)
    same(stacked, experiment, federation())
    constant = config("fedproto", rounds=2, train={**training, "schedule_by": "round", "warmup": 0.0}, system=slow)
    by_step, by_round = (everything(played_on(Stacked, one, federation())) for one in (experiment, constant))
    assert any(not torch.allclose(value, by_round[name], rtol=1e-3) for name, value in by_step.items())


def test_workers_have_the_learning_rates_per_step():
    experiment = config("fedproto", rounds=2, train={"lr": 0.2, "epochs": 3, "batch": 3, **STEEP}, system={"slow": 0.5})
    one, two = (everything(played_on(kind, experiment, federation())) for kind in (Stacked, pool_of(Stacked, 2)))
    torch.testing.assert_close(two, one, rtol=0, atol=0)


def test_stacks_are_the_loop_with_a_learning_rate_per_step_over_several_phases():
    class Twice(Local):
        def phases(self, epochs):
            return Phase(2, ("head",)), Phase(1, ("body",)), Phase(1)

    same(Stacked, config(Twice(), train={"lr": 0.2, **STEEP}), federation())


def test_stacks_are_the_loop_with_phases_that_train_parts():
    class Twice(Local):
        def phases(self, epochs):
            return Phase(2, ("head",)), Phase(1, ("body",)), Phase(1)

    same(Stacked, config(Twice()), federation(nets=[net(dropout=0.4)] * 6))


def test_stacks_are_the_loop_with_phases_that_differ_only_in_what_is_clipped_separately():
    class Separately(Local):
        def phases(self, epochs):
            return Phase(1), Phase(1, clipped_separately=("head.",)), Phase(1, clipped_separately=("body.",))

    class Together(Local):
        def phases(self, epochs):
            return Phase(1), Phase(1), Phase(1)

    training = {"clip": 0.05, "momentum": 0.0}
    same(Stacked, config(Separately(), train=training), federation())
    separately, together = (
        everything(played_on(Stacked, config(method, train=training), federation()))
        for method in (Separately(), Together())
    )
    assert any(not torch.allclose(value, together[name], rtol=1e-3) for name, value in separately.items())


def test_stacks_are_the_loop_with_augmented_images_and_own_constants():
    sections = {
        "data": {"clients": 4, "normalise": "client"},
        "net": {"name": "convnet", "channels": [3]},
        "train": {"augment": ["crop", "flip"]},
        "run": {"rounds": 2},
    }
    made = Config.of(sections)
    same(Stacked, made, Members.of(made))


def test_stacks_are_the_loop_on_data_that_lie_in_one_array():
    made = Config.of({"run": {"rounds": 3}, "data": {"clients": 5}, "train": {"batch": 5}, "net": {"dropout": 0.3}})
    same(Stacked, made, Members.of(made))


def test_a_value_that_is_no_number_stays_with_its_client(tmp_path):
    """What fills a short batch up is a client's own: 0 times NaN would be NaN."""
    x, y = np.random.RandomState(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    np.savez(tmp_path / "x.npz", x=x, y=y)
    table = {
        "run": {"rounds": 1},
        "data": {"name": "npz", "root": str(tmp_path / "x.npz"), "clients": 4},
        "partition": {"name": "iid"},
        "method": {"name": "fedavg"},
        "train": {"batch": 7},
    }
    rejected = []
    for name in ("loop", "stacked"):
        chosen = protofed.Config.of({**table, "engine": {"name": name, "workers": 1}})
        members = Members.of(chosen)
        first = members.train[1]
        first.x[first.index[0], 0] = np.nan  # a file with it would be refused
        rejected.append(Runner(chosen, members, None).one_round(0)["rejected"].keys())
    assert rejected[0] == rejected[1]
    assert len(rejected[0]) == 1


class Normed(torch.nn.Module):
    """Not called batch norm, but it is."""

    def forward(self, x):
        return (x - x.mean(0)) / (x.std(0, correction=0) + 1) if self.training else x


@pytest.mark.parametrize("layer", [Normed, lambda: torch.nn.InstanceNorm1d(2, track_running_stats=True)])
def test_nets_whose_examples_depend_on_each_other_are_not_stacked(layer):
    with torch.random.fork_rng(devices=[]):
        first = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Unflatten(1, (2, 2)), layer(), torch.nn.Flatten())
        body = torch.nn.Sequential(torch.nn.Linear(4, 4), Normed()) if layer is Normed else first
        module = torch.nn.Sequential(*body, torch.nn.Linear(4, 3))
        own = protofed.Federation(
            [(np.random.RandomState(n).normal(size=(9 + n, 4)), np.arange(9 + n) % 3) for n in range(3)], nets=[module]
        )
    members = own.members(Config.of({}))
    assert members.nets[0].trains_alone
    made = own.config(config("fedproto"))
    same(Stacked, made, members, rtol=0, atol=0)


def test_nets_with_batch_norm_are_trained_alone_and_exactly():
    members = federation(nets=[net(norm=True)] * 6)
    same(Stacked, config("fedproto"), members, rtol=0, atol=0)


def test_observed_is_of_the_last_epoch_for_everyone():
    same(Stacked, config("fedproto", train={"epochs": 3, "batch": 2}), federation(nets=[net(dropout=0.3)] * 6))


def test_stacks_have_up_to_ten_clients_large_and_small_mixed():
    labels = [[0, 1, 2] * (1 + number) for number in range(25)]
    members = federation(labels)
    stacked = Stacked(members, Local(), config("local").train, 0)
    groups = stacked.groups(0, dict.fromkeys(range(25), ()))
    assert sorted(number for group in groups for number in group) == list(range(25))
    assert [len(group) for group in groups] == [9, 8, 8]
    assert max(map(len, groups)) <= LARGEST_STACK
    work = [sum(len(members.train[number]) for number in group) for group in groups]
    assert max(work) < 1.25 * min(work)


def test_clients_with_different_nets_or_messages_are_not_stacked():
    small, large = net(), net(hidden=8)
    members = federation(nets=[small, large, small, large, small, small])
    stacked = Stacked(members, Local(), config("local").train, 0)
    groups = stacked.groups(0, dict.fromkeys(range(6), ()))
    assert sorted(map(sorted, groups)) == [[0, 2, 4, 5], [1, 3]]


def test_one_and_the_same_message_is_shared():
    one = KeptModel({"a": torch.ones(3), "b": torch.zeros(2)})
    assert StackedTrees([one, one]).dims == [None, None]
    other = KeptModel({"b": torch.ones(2), "a": one.params["a"]})
    assert StackedTrees([one, other]).dims == [0, 0]  # whatever the single tensors are: a wire would not keep that
    assert StackedTrees([one, other]).leaves[1].tolist() == [[0, 0], [1, 1]]


def test_the_finished_leave_now_and_then():
    assert [narrowing_width(width) for width in (1, 2, 3, 4, 10, 20)] == [0, 1, 2, 3, 7, 15]


@pytest.mark.parametrize("method", ["fedproto", "local"])
def test_those_that_have_finished_move_no_more_while_the_others_go_on(method):
    """Too few have finished for the stack to get smaller, so that steps are taken in their places, too."""
    labels = [[0, 1, 2] * 8] * 6 + [[0, 1, 2] * 4, [1, 2]]
    experiment = config(method, train={"epochs": 2, "momentum": 0.9})
    stacked, loop = (played_on(engine, experiment, federation(labels)) for engine in (Stacked, Loop))
    torch.testing.assert_close(everything(stacked), everything(loop), rtol=1e-4, atol=1e-5)
    assert [row["loss"] for row in stacked.rounds] == [pytest.approx(row["loss"], rel=1e-4) for row in loop.rounds]


# Workers


class Message(NamedTuple):
    params: Params
    mark: torch.Tensor


class Marked(Method[Message, Message, Message, KeptModel]):
    """Passes one tensor on in several places: down, kept and up share memory."""

    needs = "equal nets"

    def start(self, site):
        return Message(site.net.init(site.generator("init")), torch.zeros(1))

    def broadcast(self, server, client):
        return Message(server.params, torch.full((1,), float(client)))

    def join(self, client):
        return KeptModel(client.fresh_params())

    def receive(self, kept, down):
        return down.params

    def keep(self, trained):
        return KeptModel(trained.down.params if trained.client % 2 else trained.params)

    def upload(self, trained):
        return Message(trained.params, trained.params["head.bias"])

    def aggregate(self, site, server, uploads):
        params = average([upload.message.params for upload in uploads], [1] * len(uploads))
        return Message(params, params["head.bias"])


@pytest.mark.parametrize("inner", [Loop, Stacked])
def test_tensors_that_are_in_several_places_travel_and_are_stored(inner, tmp_path):
    one = played_on(inner, config(Marked()), federation())
    two = played_on(pool_of(inner, 2), config(Marked()), federation())
    torch.testing.assert_close(everything(two), everything(one), rtol=0, atol=0)
    checkpoints = checkpoint.Checkpoints(tmp_path, Marked(), "x")
    checkpoints.start()
    checkpoints.write(one.server, [], 2, one.engine.state())
    checkpoints.close()
    stored = checkpoint.latest_checkpoint(tmp_path, Marked(), "x")
    assert torch.equal(stored.server.mark, one.server.mark)


def test_a_pool_is_closed_by_an_error_and_says_what_it_was():
    class Talking(Local):
        def upload(self, trained):
            return "text"

    with pytest.raises(UserError, match=r"Talking\.upload returned a str; must consist of tensors"):
        played_on(pool_of(Loop, 2), config(Talking()), federation())


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_changes_no_bit(workers, tmp_path):
    table = {**SMALL, "engine": {"name": "stacked", "workers": workers}}
    result = protofed.run(table, tmp_path / "run")
    reference = protofed.run({**SMALL, "engine": {"name": "stacked", "workers": 1}})
    rows, expected = ([{**row, "seconds": 0} for row in one.rounds] for one in (result, reference))
    assert rows == expected
    assert protofed.Result.load(tmp_path / "run").unknown == reference.unknown


class Fragile(Local):
    """Its worker dies, once, in the middle of round 2."""

    marker: Path

    def upload(self, trained):
        if trained.round == 1 and trained.client == 3 and not self.marker.exists():
            self.marker.write_text("dying")
            os.kill(os.getpid(), signal.SIGKILL)
        return ()


@pytest.mark.parametrize("inner", [Loop, Stacked])
def test_a_worker_that_dies_is_replaced_and_its_clients_done_again(inner, tmp_path, monkeypatch):
    monkeypatch.setattr(Fragile, "marker", tmp_path / "died", raising=False)
    expected = played_on(inner, config(Local()), federation())
    got = played_on(pool_of(inner, 2), config(Fragile()), federation())
    assert (tmp_path / "died").exists()
    torch.testing.assert_close(everything(got), everything(expected), rtol=0, atol=0)


def test_workers_do_not_free_what_belongs_to_their_parent(tmp_path):
    """An inference session that waited to be collected froze workers: its threads do not exist there."""

    class Session:
        def __init__(self):
            self.cycle, self.owner = self, os.getpid()

        def __del__(self):
            (tmp_path / ("freed here" if os.getpid() == self.owner else "freed by a worker")).touch()

    class Collecting(Local):
        def upload(self, trained):
            gc.collect()
            return ()

    gc.disable()
    try:
        Session()
        played_on(pool_of(Loop, 2), config(Collecting()), federation())
        assert not gc.isenabled()
        assert not list(tmp_path.iterdir())
    finally:
        gc.enable()
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["freed here"]


def test_a_worker_that_always_dies_is_given_up():
    class Hopeless(Local):
        def upload(self, trained):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UserError, match="A worker process died 3 times while it worked on clients"):
        played_on(pool_of(Loop, 2), config(Hopeless()), federation())


def test_problems_of_a_worker_are_told_here():
    class Wrong(Local):
        def upload(self, trained):
            raise UserError("mend this")

    class Broken(Local):
        def upload(self, trained):
            raise ZeroDivisionError

    with pytest.raises(UserError, match=r"^mend this$"):
        played_on(pool_of(Loop, 2), config(Wrong()), federation())
    with pytest.raises(UserError, match=r"line \d+: Broken\.upload failed with ZeroDivisionError\.$"):
        played_on(pool_of(Loop, 2), config(Broken()), federation())


def test_a_bug_of_our_own_in_a_worker_keeps_its_traceback(monkeypatch):
    def broken(self, trained):
        raise ZeroDivisionError

    monkeypatch.setattr(Local, "upload", broken)
    with pytest.raises(RuntimeError, match=r"in a worker process:\n(.|\n)*ZeroDivisionError"):
        played_on(pool_of(Loop, 2), config(Local()), federation())


def alive(pids: list[int]) -> list[int]:
    def there(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return [pid for pid in pids if there(pid)]


SCRIPT = """
import sys, protofed, torch
from protofed.experiment.watchers import Watcher
class Tell(Watcher):
    def round(self, row):
        import multiprocessing
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
        if sys.argv[1] == "exception": raise RuntimeError("stop")
protofed.run({"run": {"rounds": 10_000}, "data": {"clients": 4}, "engine": {"workers": 2}}, watchers=[Tell()])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    "how", ["kill", *(pytest.param(how, marks=pytest.mark.slow) for how in ("ctrl-c", "exception"))]
)
def test_no_worker_outlives_its_parent(how):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background would be deaf to it
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        if how != "exception":
            process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
        process.wait(timeout=30)
        process.stdout.close()
    finally:
        signal.signal(signal.SIGINT, before)
    for _ in range(100):
        if not alive(pids):
            break
        time.sleep(0.05)
    assert alive(pids) == []


# The rule


@pytest.mark.parametrize(
    ("shape", "sections", "name"),
    [
        ((1, 28, 28), {"net": {"name": "cnn"}, "train": {"batch": 8}}, "stacked"),
        ((64,), {"net": {"name": "mlp"}, "train": {"batch": 32}}, "stacked"),
        ((784,), {"net": {"name": "mlp", "hidden": [128], "dim": 64}, "train": {"batch": 32}}, "stacked"),
        ((784,), {"net": {"name": "mlp", "hidden": [256], "dim": 128}, "train": {"batch": 32}}, "loop"),
        ((3, 32, 32), {"net": {"name": "cnn_fednh"}, "train": {"batch": 64}}, "loop"),
        ((3, 32, 32), {"net": {"name": "resnet18", "norm": "group"}, "train": {"batch": 32}}, "loop"),
        ((3, 32, 32), {"net": {"name": "convnet", "norm": "batch", "channels": [2]}, "train": {"batch": 2}}, "loop"),
        ((64,), {"run": {"sample": 1}}, "loop"),
    ],
)
def test_auto_chooses_by_the_net_the_clients_and_the_batch(shape, sections, name):
    data = [(np.zeros((4, *shape), np.float32), np.arange(4))] * 3
    wish = Config.of({**sections, "engine": {"name": "auto"}})
    members = protofed.Federation(data, test=[None] * 3).members(wish)
    chosen = resolve_engine(wish, members)
    assert chosen.engine.name == name
    assert chosen.engine.reason.startswith("auto: ")
    assert resolve_engine(chosen, members) == chosen


@pytest.mark.parametrize(("sizes", "per_round", "name"), [([4, 4, 4], 2, "stacked"), ([40, 4, 4], 3, "loop")])
def test_auto_stacks_no_round_that_one_client_dominates(sizes, per_round, name):
    """A round of [40, 4, 4] has 48 examples, less than twice those of the largest client; one of [4, 4] has twice."""
    data = [(np.zeros((size, 64), np.float32), np.arange(size) % 4) for size in sizes]
    wish = Config.of({"run": {"sample": per_round}, "engine": {"name": "auto"}})
    chosen = resolve_engine(wish, protofed.Federation(data, test=[None] * 3).members(wish))
    assert chosen.engine.name == name
    assert ("83% of all examples" in chosen.engine.reason) == (name == "loop")


def test_the_choice_is_written_down(tmp_path):
    protofed.run({**SMALL, "engine": {"name": "auto"}}, tmp_path / "run")
    stored = Config.load(tmp_path / "run" / "config.toml").engine
    assert stored.name == "stacked"
    assert "training them together is faster" in stored.reason
    protofed.run(
        {**SMALL, "run": {"rounds": 4}, "engine": {"name": "auto", "workers": 2}}, tmp_path / "run", resume=True
    )


def test_workers_are_hired_where_there_is_enough_to_do():
    small = Config.of(SMALL)
    members = Members.of(small)
    assert choose_workers(members.nets, members.train, small.train.epochs, len(members)) == 1
    costly = (replace_cost(members.nets[0], 1e9),) * len(members)
    most = min(len(os.sched_getaffinity(0)), len(members))
    assert choose_workers(costly, members.train, small.train.epochs, len(members)) == most
    made = make_engine("loop", 2, members, small.method, small.train, 0)
    assert isinstance(made, Pool)
    made.close()


def replace_cost(one, cost):
    from copy import copy

    made = copy(one)
    made.cost = cost
    return made


def test_the_cost_of_a_net_by_hand():
    from protofed.nets import NETS, make_net

    cnn = make_net("cnn", NETS["cnn"](), (1, 28, 28), 10)
    assert cnn.cost == 24 * 24 * 10 * 25 + 8 * 8 * 20 * 250 + 320 * 50 + 50 * 10
