"""Runs that are killed, damaged, locked, interrupted or out of room go on, bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock
from safetensors.torch import load

from protofed.errors import UserError
from protofed.experiment import checkpoint
from protofed.experiment.config import Config
from protofed.experiment.folder import LOCK, Folder, uninterrupted, write_atomically
from protofed.experiment.run import run
from protofed.experiment.watchers import Watcher
from protofed.methods import METHODS

TABLE = {
    "run": {"rounds": 8, "sample": 0.7},
    "data": {"clients": 6},
    "train": {"clip": 1.0},
    "net": {"dropout": 0.2, "hidden": [200]},
}
FORK = multiprocessing.get_context("fork")


def go(out: Path) -> None:
    """What `protofed run` does in a process of its own: begin, or continue what was begun."""
    run(TABLE, out, resume=(out / "config.toml").exists())


def killed_after(seconds: float, out: Path) -> None:
    """Start the run, or go on with it, and kill -9 it after a while."""
    process = FORK.Process(target=go, args=(out,))
    process.start()
    process.join(seconds)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def end(out: Path) -> tuple[dict[str, bytes], list[dict], str]:
    """Every byte of the final parameters, and rounds.jsonl but for the seconds."""
    newest = out / "checkpoint" / f"{checkpoint.checkpoint_names(out / 'checkpoint')[0]}.safetensors"
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"]
    tensors = {name: value.numpy().tobytes() for name, value in load(newest.read_bytes()).items()}
    return tensors, rows, (out / "clients.csv").read_text() + (out / "unknown.json").read_text()


def truncate(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content))])


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [None, truncate, flip], ids=["killed", "truncated", "flipped"])
def test_killed_at_30_random_moments_and_resumed_it_is_the_uninterrupted_run(damage, tmp_path):
    began = time.perf_counter()
    go(tmp_path / "whole")
    took = time.perf_counter() - began
    expected, draw, damaged, begun = end(tmp_path / "whole"), random.Random(7), 0, 0
    for moment in range(30):
        out = tmp_path / str(moment)
        killed_after(draw.uniform(0, took), out)
        begun += (out / "checkpoint").exists()
        names = checkpoint.checkpoint_names(out / "checkpoint")
        if damage and len(names) > 1:
            damage(out / "checkpoint" / f"{names[0]}.{draw.choice(['safetensors', 'safetensors', 'json'])}", draw)
            damaged += 1
        if draw.random() < 0.5:  # and once more, somewhere in the rest
            killed_after(draw.uniform(0, took), out)
        go(out)
        assert end(out) == expected, moment
    assert begun > 15
    assert damaged > 10 or not damage


def test_one_flipped_bit_anywhere_in_a_checkpoint_is_noticed(tmp_path):
    run({**TABLE, "run": {"rounds": 1}, "net": {"hidden": [2], "dim": 2}}, tmp_path / "run")
    where = tmp_path / "run" / "checkpoint"
    config = Config.load(tmp_path / "run" / "config.toml")
    assert checkpoint.latest_checkpoint(where, config.method, config.digest()).rounds == 1
    path = where / "000001.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = checkpoint.latest_checkpoint(where, config.method, config.digest())
        assert (found.rounds, found.damaged) == (0, ["000001"])


def test_the_first_round_too_has_a_state_to_go_back_to(tmp_path):
    run({**TABLE, "run": {"rounds": 1}}, tmp_path / "run")
    assert checkpoint.checkpoint_names(tmp_path / "run" / "checkpoint") == ["000001", "000000"]


def test_files_of_an_interrupted_write_are_cleared_away(tmp_path):
    where = tmp_path / "run" / "checkpoint"
    run({**TABLE, "run": {"rounds": 2}}, tmp_path / "run")
    (where / "000009.safetensors").write_bytes(b"half")  # its JSON never came
    run({**TABLE, "run": {"rounds": 3}}, tmp_path / "run", resume=True)
    assert sorted(path.name for path in where.iterdir()) == [
        "000002.json",
        "000002.safetensors",
        "000003.json",
        "000003.safetensors",
    ]


def test_a_checkpoint_every_few_rounds_and_always_at_the_end(tmp_path):
    run({**TABLE, "run": {"rounds": 5, "checkpoint_every": 2}}, tmp_path / "run")
    assert checkpoint.checkpoint_names(tmp_path / "run" / "checkpoint") == ["000005", "000004"]
    run({**TABLE, "run": {"rounds": 7, "checkpoint_every": 1}}, tmp_path / "run", resume=True)
    assert checkpoint.checkpoint_names(tmp_path / "run" / "checkpoint") == ["000007", "000006"]


@pytest.mark.parametrize(("keep", "names"), [(0, ["000003", "000002", "000001", "000000"]), (1, ["000003"])])
def test_more_or_fewer_checkpoints_can_be_kept(keep, names, tmp_path):
    run({**TABLE, "run": {"rounds": 3, "keep_checkpoints": keep}}, tmp_path / "run")
    assert checkpoint.checkpoint_names(tmp_path / "run" / "checkpoint") == names


def test_a_folder_in_use_is_refused_and_free_again_afterwards(tmp_path):
    table = {**TABLE, "run": {"rounds": 2}}
    run(table, tmp_path / "run")
    with Folder.existing(tmp_path / "run").locked(), pytest.raises(UserError) as refused:
        run(table, tmp_path / "run", resume=True)
    assert str(refused.value) == (
        f"{tmp_path / 'run'} is in use by another run. Wait until it has ended, or give another --out."
    )
    run(table, tmp_path / "run", resume=True)


def test_a_second_run_on_a_running_folder_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    process = FORK.Process(target=go, args=(tmp_path / "run",))
    process.start()
    while not (tmp_path / "run" / "config.toml").exists():
        time.sleep(0.001)
    with pytest.raises(UserError, match="in use by another run"):
        run(TABLE, tmp_path / "run", resume=True)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (tmp_path / "run" / LOCK).exists()
    go(tmp_path / "run")


def test_a_run_that_came_and_went_while_this_one_waited_for_the_lock_is_left_alone(tmp_path, monkeypatch):
    table, acquire = {**TABLE, "run": {"rounds": 1}}, FileLock.acquire

    def another_first(self, **how):
        monkeypatch.setattr(FileLock, "acquire", acquire)
        run(table, tmp_path / "run")
        return acquire(self, **how)

    monkeypatch.setattr(FileLock, "acquire", another_first)
    with pytest.raises(UserError, match="already exists and is not empty"):
        run({**table, "train": {"lr": 0.7}}, tmp_path / "run")
    assert run(table, tmp_path / "run", resume=True).summary["rounds"] == 1


def test_a_run_that_goes_on_is_not_finished_meanwhile(tmp_path):
    class Stop(Watcher):
        def started(self, *_):
            raise KeyboardInterrupt

        def round(self, row): ...

    run({**TABLE, "run": {"rounds": 1}}, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run({**TABLE, "run": {"rounds": 3}}, tmp_path / "run", resume=True, watchers=[Stop()])
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_damaged_checkpoint_does_not_crowd_out_a_whole_one(tmp_path):
    where = tmp_path / "run" / "checkpoint"
    run({**TABLE, "run": {"rounds": 5, "checkpoint_every": 2}}, tmp_path / "run")
    truncate(where / "000005.safetensors", random.Random(1))
    run({**TABLE, "run": {"rounds": 6, "checkpoint_every": 6}}, tmp_path / "run", resume=True)
    assert checkpoint.checkpoint_names(where) == ["000006", "000004"]


def test_a_run_killed_before_it_had_begun_can_be_started_again(tmp_path):
    (tmp_path / "run").mkdir()
    for name in (LOCK, ".config.toml.new"):
        (tmp_path / "run" / name).write_text("half")
    run({**TABLE, "run": {"rounds": 1}}, tmp_path / "run")


def test_a_full_disk_leaves_the_last_good_state_and_the_run_goes_on_later(tmp_path):
    out, table = tmp_path / "run", {**TABLE, "run": {**TABLE["run"], "rounds": 2}}
    run(TABLE, tmp_path / "whole")
    run(table, out)
    beside = out / "checkpoint" / ".000004.safetensors.new"
    beside.symlink_to("/dev/full")  # a real "no space left on device" in the middle of round 4
    with pytest.raises(OSError, match="No space left"):
        run(TABLE, out, resume=True)
    assert not beside.is_symlink()
    assert checkpoint.checkpoint_names(out / "checkpoint") == ["000003", "000002"]
    run(TABLE, out, resume=True)
    assert end(out) == end(tmp_path / "whole")


def test_a_full_disk_is_told_with_the_way_to_go_on(tmp_path):
    words = [sys.executable, "-c", "from protofed.cli import entry; entry()", "run"]
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint" / ".000001.json.new").symlink_to("/dev/full")
    (tmp_path / "run" / "config.toml").write_text("[run]\nrounds = 2\n[data]\nclients = 3\n[engine]\nname = 'loop'\n")
    ended = subprocess.run(
        [*words, "--quiet", "--resume", "--out", "run"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (
        1,
        "protofed: No space left on device: run/checkpoint/000001.json.\n"
        "Continue with: protofed run --resume --out run\n",
    )


@pytest.fixture
def _ctrl_c():
    """Ctrl-C as at a terminal: a shell that starts a job in the background makes it deaf."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_waits_for_the_write():
    done = []

    def interrupted() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("the write")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["the write"]
    with uninterrupted():
        pass  # and without one nothing is raised


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_in_a_real_run_says_how_to_go_on_and_it_does(tmp_path):
    words = [sys.executable, "-c", "from protofed.cli import entry; entry()", "run"]
    process = subprocess.Popen(
        [*words, "--out", "run", "--set", "run.rounds=400"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("round 3/") for line in lines)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "\nInterrupted.\nContinue with: protofed run --resume --out run\n"
    newest = int(checkpoint.checkpoint_names(tmp_path / "run" / "checkpoint")[0])
    rows = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert len(rows) == newest >= 3


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    write_atomically(tmp_path / "a", b"old")
    (tmp_path / ".a.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("protofed.experiment.folder.FileLock.acquire", refuse)
    with pytest.raises(UserError) as refused:
        run(TABLE, tmp_path)
    assert str(refused.value) == (
        f"{tmp_path} cannot be written to: Permission denied. Make it writable, or give another --out."
    )


def test_the_data_may_move_between_a_run_and_its_continuation(tmp_path):
    run({**TABLE, "run": {"rounds": 1}}, tmp_path / "run")
    moved = {**TABLE, "run": {"rounds": 2}, "data": {"clients": 6, "root": "elsewhere"}}
    assert run(moved, tmp_path / "run", resume=True).summary["rounds"] == 2


def test_a_damaged_checkpoint_is_told(tmp_path):
    told = []

    class Listening(Watcher):
        def started(self, config, members, rounds, notes):
            told.extend([len(rounds), *notes])

        def round(self, row): ...

    run({**TABLE, "run": {"rounds": 3}}, tmp_path / "run")
    truncate(tmp_path / "run" / "checkpoint" / "000003.safetensors", random.Random(1))
    run({**TABLE, "run": {"rounds": 3}}, tmp_path / "run", resume=True, watchers=[Listening()])
    assert told == [2, "damaged and computed again: checkpoint 000003"]


def test_a_state_of_another_version_of_the_method_is_told(tmp_path):
    out = tmp_path / "run"
    run({"run": {"rounds": 1}, "data": {"clients": 3}}, out)
    config = Config.load(out / "config.toml")
    assert checkpoint.latest_checkpoint(out / "checkpoint", config.method, config.digest())
    with pytest.raises(UserError, match="was written by another version of the method"):
        checkpoint.latest_checkpoint(
            out / "checkpoint", METHODS["fednh"](), config.digest()
        )  # its server keeps other things
