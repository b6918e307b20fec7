"""Prototypes kept over the rounds: they are the server's, cost no bit of the result, and outlast crashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from damage import flip_newest, stored_states
from protofed import run
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder
from protofed.experiment.watchers import Watcher

TABLE = {"run": {"rounds": 5, "trace_every": 2, "sample": 0.7}, "data": {"clients": 5}}


def table(method: str = "fedproto", **keys: int) -> dict:
    return {**TABLE, "run": {**TABLE["run"], **keys}, "method": {"name": method}}


def kept(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "trace").iterdir()}


class Stop(Watcher):
    """Somebody who pulls the plug after a round."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.notes: list[str] = []

    def started(self, config, members, done, notes):
        self.notes += notes

    def round(self, row):
        if row["round"] == self.after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.set_num_threads(1)
    return run(table(), tmp_path_factory.mktemp("runs") / "whole")


def test_it_has_the_servers_prototypes_every_so_many_rounds_and_at_the_end(whole):
    trace = Folder(whole.folder).trace()
    assert [number for number, _ in trace] == [2, 4, 5]
    assert torch.equal(trace[-1][1].mean, whole.prototypes.mean)
    assert torch.equal(trace[-1][1].support, whole.prototypes.support)
    earlier = run(table(rounds=4)).prototypes
    assert torch.equal(trace[1][1].mean, earlier.mean)
    assert not torch.equal(earlier.mean, whole.prototypes.mean)


def test_anybody_can_read_the_files(whole):
    found = load_file(whole.folder / "trace" / "000004.safetensors")
    assert sorted(found) == ["mean", "rows", "shape", "support"]
    assert found["shape"].tolist() == [10, 1, 50]


def test_keeping_them_changes_no_number(whole, tmp_path):
    without = run(table(trace_every=0), tmp_path / "without")
    assert not (tmp_path / "without" / "trace").exists()
    rows = [[{**row, "seconds": 0} for row in result.rounds] for result in (whole, without)]
    assert rows[0] == rows[1]
    assert stored_states(whole.folder) == stored_states(without.folder)
    assert Config.of(table()).digest() == Config.of(table(trace_every=0)).digest()


def test_a_run_that_goes_on_has_the_trace_of_one_that_never_stopped(whole, tmp_path):
    run(table(rounds=3), tmp_path / "run")
    assert sorted(kept(tmp_path / "run")) == ["000002.safetensors", "000003.safetensors"]
    run(table(), tmp_path / "run", resume=True)
    assert kept(tmp_path / "run") == kept(whole.folder)


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_rounds_that_are_done_again_overwrite_theirs(whole, tmp_path, after):
    with pytest.raises(KeyboardInterrupt):
        run(table(checkpoint_every=5), tmp_path / "run", watchers=[Stop(after)])
    for path in (tmp_path / "run").glob("trace/*"):
        path.write_bytes(b"half")
    run(table(checkpoint_every=5), tmp_path / "run", resume=True)
    assert kept(tmp_path / "run") == kept(whole.folder)


def test_a_last_round_that_is_done_again_and_is_no_longer_the_last_leaves_nothing(tmp_path):
    run(table(rounds=7), tmp_path / "whole")
    run(table(), tmp_path / "run")
    flip_newest(tmp_path / "run")
    run(table(rounds=7), tmp_path / "run", resume=True)
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")


def test_a_trace_may_be_begun_and_ended_in_the_middle(tmp_path):
    run(table(rounds=2, trace_every=0), tmp_path / "run")
    run(table(rounds=4, trace_every=1), tmp_path / "run", resume=True)
    run(table(rounds=5, trace_every=0), tmp_path / "run", resume=True)
    assert [number for number, _ in Folder(tmp_path / "run").trace()] == [3, 4]


def test_a_method_without_prototypes_says_so_and_keeps_nothing(tmp_path):
    listener = Stop(after=-1)
    run(table("fedavg"), tmp_path / "run", watchers=[listener])
    assert listener.notes == ["run.trace_every: fedavg has no prototypes to write to trace/"]
    assert Folder(tmp_path / "run").trace() == []


def test_several_prototypes_per_class_and_unseen_classes_come_back(tmp_path):
    result = run({**table("mpfedcl", rounds=1), "partition": {"ways": 2}}, tmp_path / "run")
    ((_, found),) = Folder(tmp_path / "run").trace()
    assert found.mean.shape[1] > 1
    assert torch.equal(found.mean, result.prototypes.mean)
    assert torch.equal(found.support, result.prototypes.support)


@pytest.mark.parametrize("content", [b"", b"half", None], ids=["empty", "cut", "another"])
def test_a_damaged_file_is_said(whole, tmp_path, content):
    (tmp_path / "trace").mkdir()
    other = stored_states(whole.folder)["server"]
    (tmp_path / "trace" / "000002.safetensors").write_bytes(other if content is None else content)
    with pytest.raises(UserError, match=r"000002.safetensors cannot be read: .*\. Delete it"):
        Folder(tmp_path).trace()


def test_attention_is_not_stored_twice(tmp_path):
    run(table("protomargin", rounds=2), tmp_path / "run")
    assert "attention" in json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    assert sorted(load_file(tmp_path / "run" / "trace" / "000002.safetensors")) == ["mean", "rows", "shape", "support"]
