"""The fault table: what goes wrong in a federation, and the condition under which a run passes.

A bad upload is refused with a reason, and the run is bit for bit that of a federation in which this upload never came:
the server's state, what honest clients keep, their accuracies, and the loss. It is counted as sent.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from rich.console import Console

import protofed
from grid import LocalGrid, deploy, federate
from grid import toy_config as deployed_config
from protofed.cli.screen import Screen
from protofed.core import Upload
from protofed.engines.engine import Report
from protofed.engines.loop import Loop
from protofed.errors import StoppedRunError
from protofed.experiment.config import Config
from protofed.experiment.runner import Runner
from protofed.experiment.wording import void_text
from protofed.messages import flatten
from protofed.methods.parts.model_with_prototypes import ModelWithPrototypes
from protofed.prototypes import Prototypes
from protofed.trust.guard import Expected, part_norms, sift
from toys import config, federation, played, runner_of

MEMBERS = federation([[0, 1, 2] * 2] * 7 + [[0, 1] * 2] * 3)
"""Seven clients with all classes, three with two of them."""
Fault = Callable[[Upload], list[Upload]]


def on_message(change: Callable[[ModelWithPrototypes], Any]) -> Fault:
    """A fault that replaces the message."""
    return lambda upload: [upload._replace(message=change(upload.message))]


def with_mean(change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    def changed(message: ModelWithPrototypes) -> ModelWithPrototypes:
        return message._replace(prototypes=message.prototypes._replace(mean=change(message.prototypes.mean.clone())))

    return on_message(changed)


def with_support(change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    def changed(message: ModelWithPrototypes) -> ModelWithPrototypes:
        return message._replace(prototypes=message.prototypes._replace(support=change(message.prototypes.support)))

    return on_message(changed)


def with_params(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Fault:
    return on_message(lambda message: message._replace(params=change(dict(message.params))))


def put(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """The tensor with one other value."""
    tensor = tensor.clone()
    tensor.view(-1)[0] = value
    return tensor


def one_value(value: float) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Parameters with one other value in the first of them."""
    return lambda params: {name: put(one, value) if name == min(params) else one for name, one in params.items()}


FAULTS: dict[str, tuple[Fault, str]] = {
    "nan in a prototype": (with_mean(lambda mean: put(mean, math.nan)), "prototypes/mean is not finite"),
    "infinite weight": (with_params(one_value(math.inf)), "is not finite"),
    "negative support": (with_support(lambda support: put(support, -1.0)), "negative support"),
    "infinite support": (with_support(lambda support: put(support, math.inf)), "prototypes/support is not finite"),
    "too many examples behind prototypes": (with_support(lambda support: 100 * support), "counts"),
    "another embedding size": (with_mean(lambda mean: mean[..., :-1]), "prototypes does not have the names or shapes"),
    "another type": (with_mean(lambda mean: mean.double()), "prototypes does not have the names or shapes"),
    "support of another shape": (with_support(lambda support: support[:-1]), "shapes that do not match"),
    "a missing weight": (
        with_params(lambda params: {name: value for name, value in params.items() if name != min(params)}),
        "does not have the names or shapes",
    ),
    "an unknown weight": (
        with_params(lambda params: params | {"extra": torch.zeros(1)}),
        "params/extra does not have the names or shapes",
    ),
    "a weight of another shape": (
        with_params(lambda params: {name: value[..., None] for name, value in params.items()}),
        "does not have the names or shapes",
    ),
    "no message": (on_message(lambda message: ()), "does not have the names or shapes"),
    "text": (on_message(lambda message: "hello"), "the message cannot be read"),
    "huge weights": (
        with_params(lambda params: {name: value * 1e9 for name, value in params.items()}),
        "times the median of the round",
    ),
    "huge prototypes": (with_mean(lambda mean: mean * 1e9), "prototypes has a norm"),
    "negative number of examples": (lambda upload: [upload._replace(num_examples=-3)], "num_examples is -3"),
    "another number of examples": (lambda upload: [upload._replace(num_examples=1000)], "num_examples is 1000"),
    "negative steps": (lambda upload: [upload._replace(steps=-1)], "steps is -1"),
    "infinite work": (lambda upload: [upload._replace(work=math.inf)], "work inf"),
    "another round": (lambda upload: [upload._replace(round=7)], "it answered round 8 in round"),
    "two uploads": (lambda upload: [upload, upload], "it sent 2 uploads in one round"),
}
"""Each bad upload, and words of the reason. The method is fednh, whose clients send weights and prototypes."""


def with_faults(faults: dict[int, Fault], rounds: int = 2, **sections: Any) -> Runner:
    """A run in which these clients send bad uploads. A fault that returns [] is an upload that never comes."""
    runner = runner_of(config("fednh", rounds=rounds, engine={"name": "loop", "workers": 1}, **sections), MEMBERS)
    train = runner.engine.train

    def faulty(*arguments: Any) -> list[Report]:
        reports = []
        for report in train(*arguments):
            fault = faults.get(report.upload.client)
            uploads = fault(report.upload) if fault else [report.upload]
            reports += [report._replace(upload=upload) for upload in uploads]
        return reports

    runner.engine.train = faulty  # type: ignore[method-assign]
    runner.go()
    return runner


def lost(upload: Upload) -> list[Upload]:
    return []


@cache
def without_uploads_of(*clients: int) -> Runner:
    """The run in which the uploads of these clients never come."""
    return with_faults(dict.fromkeys(clients, lost))


def must_be_equal(runner: Runner, reference: Runner, bad: set[int]) -> None:
    """The pass condition of a refused upload."""
    server, expected = flatten(runner.server), flatten(reference.server)
    assert server.keys() == expected.keys()
    assert all(torch.equal(server[name], expected[name]) for name in server)
    kept, expected_kept = runner.engine.state(), reference.engine.state()
    for client in kept.keys() - bad:
        mine, other = flatten(kept[client]), flatten(expected_kept[client])
        assert all(torch.equal(mine[name], other[name]) for name in mine | other)
    for one, other in zip(runner.evaluations, reference.evaluations, strict=True):
        assert one == other or one.client in bad
    for row, expected_row in zip(runner.rounds, reference.rounds, strict=True):
        for key in ("loss", "accuracy_global"):
            assert row[key] == expected_row[key], key
        for key in ("up_bytes", "up_params"):  # a rejected upload was sent; one that cannot be read is not counted
            assert row[key] >= expected_row[key], key


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_upload_alone(name):
    fault, words = FAULTS[name]
    runner = with_faults({4: fault})
    for row in runner.rounds:
        assert list(row["rejected"]) == ["4"]
        assert words in row["rejected"]["4"]
    reference, unreadable = without_uploads_of(4), name in ("text", "no message")
    for row, expected_row in zip(runner.rounds, reference.rounds, strict=True):
        assert (row["up_bytes"] == expected_row["up_bytes"]) == unreadable
    must_be_equal(runner, without_uploads_of(4), {4})


def test_a_class_that_a_client_does_not_have():
    """Clients 7 to 9 have the classes 0 and 1. Client 8 sends what it has of class 0 as class 2."""

    def third_class(message: ModelWithPrototypes) -> ModelWithPrototypes:
        order = [2, 1, 0]
        return message._replace(prototypes=Prototypes(*(part[order] for part in message.prototypes)))

    runner = with_faults({8: on_message(third_class)})
    assert runner.rounds[0]["rejected"] == {"8": "prototypes has the class number 2, which it does not have"}
    must_be_equal(runner, without_uploads_of(8), {8})


@pytest.mark.parametrize("first", range(0, len(FAULTS), 3))
def test_bad_uploads_mixed_at_30_percent(first):
    """Three of ten clients, each bad in another way."""
    chosen = dict(zip((1, 4, 6), list(FAULTS.values())[first : first + 3], strict=True))
    runner = with_faults({client: fault for client, (fault, _) in chosen.items()})
    for row in runner.rounds:
        assert list(row["rejected"]) == [str(client) for client in chosen]
        assert all(words in row["rejected"][str(client)] for client, (_, words) in chosen.items())
    must_be_equal(runner, without_uploads_of(*chosen), set(chosen))
    assert sum(len(row["rejected"]) for row in runner.rounds) == 6


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.4, 0.5])
def test_drop_outs(share):
    """The round goes on with those who are left, and every client is tested."""
    gone = dict.fromkeys(range(round(10 * share)), lost)
    runner = with_faults(gone)
    assert all(math.isfinite(row["loss"]["supervised"]) for row in runner.rounds)
    assert len(runner.evaluations) == 10
    assert all(torch.isfinite(value).all() for value in flatten(runner.server).values())
    late = played(config("fednh", rounds=2, system={"slow": share, "late": "drop"}), MEMBERS)
    assert all(len(row["clients"]) == 10 - round(10 * share) for row in late.rounds)


# ---- the guard alone ----


def test_honest_uploads_are_the_same_objects_in_the_same_order():
    """The guard changes no bit of an honest run."""
    runner = played(config("fednh", rounds=1), MEMBERS)
    engine = Loop(MEMBERS, runner.method, runner.config.train, 0)
    uploads = [report.upload for report in engine.train(0, runner._messages(range(10)))]
    accepted, rejected = sift(uploads, runner.safeguards.expected, 1e6)
    assert rejected == {}
    assert all(a is b for a, b in zip(accepted, uploads, strict=True))


def test_the_norm_of_a_part_by_hand():
    """Of prototypes the largest norm of a row with support; of parameters the norm of all together; no counters."""
    prototypes = Prototypes(
        torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]], [[90.0, 0.0]]]), torch.tensor([[1.0], [1.0], [0.0]])
    )
    params = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([2.0]), "count": torch.tensor(1000)}
    assert part_norms(ModelWithPrototypes(params, prototypes)) == {"params": 3.0, "prototypes": 5.0}


def test_the_cap_is_a_multiple_of_the_median():
    """Norms 1, 1, 2, 4: the median is 1.5, and a cap of 2 allows 3."""
    uploads = [
        Upload(client, 1, 1, 1.0, {"w": torch.tensor([size])}, 0) for client, size in enumerate((1.0, 1.0, 2.0, 4.0))
    ]
    accepted, rejected = sift(uploads, norm_cap=2.0)
    assert [upload.client for upload in accepted] == [0, 1, 2]
    assert rejected == {3: "w has a norm 2.67 times the median of the round"}
    assert sift(uploads, norm_cap=3.0)[1] == {}
    assert sift(uploads)[1] == {}


def test_a_client_that_is_not_known_is_refused():
    upload = Upload(5, 1, 1, 1.0, {"w": torch.ones(1)}, 0)
    expected = Expected(0, 2, lambda client: 1, lambda client: None)
    assert sift([upload], expected)[1] == {5: "there is no client 5"}


# ---- quorum ----


def test_below_the_quorum_a_round_is_void_and_the_server_unchanged():
    """Four of ten uploads are bad in every round: a quorum of 0.6 holds, one of 0.7 does not."""
    bad = dict.fromkeys((0, 2, 5, 9), FAULTS["nan in a prototype"][0])
    held = with_faults(bad, trust={"quorum": 0.6})
    assert [row["void"] for row in held.rounds] == [False, False]
    must_be_equal(held, with_faults(bad), set())
    missed = with_faults(bad, trust={"quorum": 0.7})
    assert [row["void"] for row in missed.rounds] == [True, True]
    start = flatten(missed.method.start(MEMBERS.server(0, 0)))
    assert all(torch.equal(value, start[name]) for name, value in flatten(missed.server).items())
    assert len(missed.rounds[0]["rejected"]) == 4


def test_a_void_round_is_followed_by_others():
    """Bad uploads in the first round only: the second one starts from the state before the first."""

    def bad_at_first(upload: Upload) -> list[Upload]:
        return FAULTS["infinite weight"][0](upload) if upload.round == 0 else [upload]

    runner = with_faults(dict.fromkeys(range(6), bad_at_first), trust={"quorum": 0.5})
    assert [row["void"] for row in runner.rounds] == [True, False]
    assert runner.rounds[1]["rejected"] == {}


def test_all_uploads_rejected_stops_a_run_without_a_quorum():
    everyone = dict.fromkeys(range(10), FAULTS["infinite weight"][0])
    with pytest.raises(StoppedRunError, match="all 10 uploads were rejected"):
        with_faults(everyone)
    assert [row["void"] for row in with_faults(everyone, trust={"quorum": 0.1}).rounds] == [True, True]


def test_a_missed_quorum_on_flower_is_that_of_a_run(tmp_path, monkeypatch):
    """Client b of three does not answer in round 1: with a quorum of 1 the round is void."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    table = deployed_config("fedproto", rounds=2, trust={"quorum": 1.0})
    members = deploy(tmp_path, table)
    result = federate(tmp_path, LocalGrid(tmp_path, faults={("b", "train", 1): lambda message, reply: []}))
    assert [row["void"] for row in result.rounds] == [True, False]
    assert list(result.rounds[0]["rejected"]) == ["1"]
    runner = runner_of(Config.of(table), members)
    train = runner.engine.train
    runner.engine.train = lambda number, *more: [
        report for report in train(number, *more) if number or report.upload.client != 1
    ]
    runner.go()
    assert [row["void"] for row in runner.rounds] == [True, False]
    server, expected = flatten(result.state.server), flatten(runner.server)
    assert all(torch.equal(value, expected[name]) for name, value in server.items())


def test_attackers_and_robust_averages_on_flower_are_those_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)
    table = deployed_config(
        "fednh", attack={"share": 0.34}, trust={"weights": "median", "prototypes": "median", "assumed": 0.0}
    )
    members = deploy(tmp_path, table)
    result, runner = federate(tmp_path), played(Config.of(table), members)
    server, expected = flatten(result.state.server), flatten(runner.server)
    assert all(torch.equal(value, expected[name]) for name, value in server.items())
    assert [row["honest"] for row in result.rounds] == [row["honest"] for row in runner.rounds]
    assert result.summary["attack"]["success"] is None


def test_attacks_on_data_are_refused_on_flower(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)
    deploy(tmp_path, deployed_config("fedproto", attack={"share": 0.34, "kind": "label_flip"}))
    with pytest.raises(protofed.UserError, match="stay on their own machines"):
        federate(tmp_path)


# ---- disks and clocks ----

SMALL = {
    "run": {"rounds": 3},
    "data": {"clients": 3},
    "partition": {"shots": 3, "test": 3},
    "train": {"epochs": 1},
    "engine": {"workers": 1},
    "eval": {"unknown": "none"},
}


def rows_of(folder) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.mark.parametrize("after", [4, 7, 12])
def test_a_disk_that_is_full_loses_no_finished_round(after, tmp_path, monkeypatch):
    """Writing fails from some moment on. When there is space again, the resumed run is the uninterrupted one."""
    protofed.run(SMALL, tmp_path / "whole", progress=False)
    fsync, written = os.fsync, 0

    def full(file: int) -> None:
        nonlocal written
        written += 1
        if written > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        protofed.run(SMALL, tmp_path / "run", progress=False)
    monkeypatch.setattr("os.fsync", fsync)
    protofed.run(SMALL, tmp_path / "run", resume=True, progress=False)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    """For a user who may write everywhere (root), the error of the operating system is made here."""
    folder = tmp_path / "locked"
    folder.mkdir()

    def read_only(*_: object, **__: object) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system", str(folder / "run"))

    with monkeypatch.context() as patch:
        if os.geteuid() == 0:
            patch.setattr("pathlib.Path.mkdir", read_only)
        else:
            folder.chmod(0o500)
        with pytest.raises(protofed.UserError, match=r"run cannot be created: .*\. Give another --out\."):
            protofed.run(SMALL, folder / "run", progress=False)
    assert list(folder.iterdir()) == []


def test_a_clock_that_jumps_changes_no_result(tmp_path, monkeypatch):
    """The time of day jumps by a year back and forth; on Flower, an hour passes at every message."""
    protofed.run(SMALL, tmp_path / "steady", progress=False)
    now, calls = time.time(), 0

    def jumping() -> float:
        nonlocal calls
        calls += 1
        return now + (-1) ** calls * 3e7

    with monkeypatch.context() as patch:
        patch.setattr("time.time", jumping)
        protofed.run(SMALL, tmp_path / "jumping", progress=False)
    assert rows_of(tmp_path / "jumping") == rows_of(tmp_path / "steady")


def test_a_clock_that_jumps_on_flower(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)
    table = deployed_config("fedproto")
    members = deploy(tmp_path, table)
    grid, now = LocalGrid(tmp_path), time.time()
    jumps = iter(range(10**6))
    monkeypatch.setattr("protofed.deploy.status.time.time", lambda: now + (-1) ** next(jumps) * 3e7)
    result = federate(tmp_path, grid)
    runner = played(Config.of(table), members)
    assert [row["rejected"] for row in result.rounds] == [{}, {}]
    assert [row["loss"] for row in result.rounds] == [row["loss"] for row in runner.rounds]


def test_void_rounds_and_attackers_are_shown():
    """On the screen, and in the log of a deployed federation's server."""
    assert void_text({"round": 3, "void": True}).startswith("round 3 is void: too few usable uploads (trust.quorum)")
    assert void_text({"round": 3, "void": False}) == void_text({"round": 3}) == ""
    console = Console(file=io.StringIO(), width=200)
    screen = Screen(console)
    runner = with_faults(dict.fromkeys(range(6), lost), trust={"quorum": 0.5}, attack={"share": 0.2})
    screen.started(runner.config, MEMBERS, [], runner.notes)
    for row in runner.rounds:
        screen.round(row)
    text = console.file.getvalue()
    assert "attack.kind = sign_flip: 2 attackers, clients " in text
    assert "round 2 is void" in text


def test_a_resumed_run_with_attackers_is_the_uninterrupted_one(tmp_path):
    """Round 1 was tested only because it was to be the last one."""
    table = {
        **SMALL,
        "trust": {"quorum": 0.5, "prototypes": "median", "assumed": 0.0},
        "attack": {"share": 0.34},
        "partition": {"name": "iid"},
        "data": {"clients": 3, "limit": 30},
    }
    runs = {name: {**table, "run": {"rounds": rounds, "eval_every": 3}} for name, rounds in (("short", 1), ("long", 3))}
    protofed.run(runs["long"], tmp_path / "whole", progress=False)
    protofed.run(runs["short"], tmp_path / "run", progress=False)
    protofed.run(runs["long"], tmp_path / "run", resume=True, progress=False)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")
    assert [bool(row["honest"]) for row in rows_of(tmp_path / "run")] == [False, False, True]
