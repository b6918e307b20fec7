"""Runs that are killed, damaged, locked, interrupted or out of room go on, bit for bit."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import protofed
from damage import flip_content, flip_newest, stored_blob, stored_states, truncate_store
from protofed.errors import UserError
from protofed.experiment import checkpoint
from protofed.experiment.config import Config
from protofed.experiment.folder import LOCK, Folder, uninterrupted, write_atomically
from protofed.experiment.run import run
from protofed.experiment.store import STORE_FILE, Store
from protofed.experiment.watchers import Watcher
from protofed.messages import to_bytes
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
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"]
    return stored_states(out), rows, (out / "clients.csv").read_text() + (out / "unknown.json").read_text()


def flip_server(out: Path, draw: random.Random) -> None:
    flip_newest(out, "server")


def flip_client(out: Path, draw: random.Random) -> None:
    flip_newest(out, "client")


def flip_anywhere(out: Path, draw: random.Random) -> None:
    path = draw.choice(sorted(out.glob("checkpoint/*sqlite*")))
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def without_log(out: Path, draw: random.Random) -> None:
    (out / "checkpoint" / f"{STORE_FILE}-wal").unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "recovers"),
    [
        (None, True),
        (flip_server, True),
        (flip_client, True),
        (flip_anywhere, False),
        (truncate_store, False),
        (without_log, False),
    ],
    ids=["killed", "flipped-server", "flipped-client", "flipped", "truncated", "log-lost"],
)
def test_killed_at_30_random_moments_and_resumed_it_is_the_uninterrupted_run(damage, recovers, tmp_path):
    """If the damage is more than the newest checkpoint, the run may also say that no checkpoint is left."""
    began = time.perf_counter()
    go(tmp_path / "whole")
    took = time.perf_counter() - began
    expected, draw, damaged, begun, lost = end(tmp_path / "whole"), random.Random(7), 0, 0, 0
    for moment in range(30):
        out = tmp_path / str(moment)
        killed_after(draw.uniform(0, took), out)
        begun += (out / "checkpoint").exists()
        if damage and len(checkpoint.checkpoint_names(out / "checkpoint")) > 1:
            damage(out, draw)
            damaged += 1
        if draw.random() < 0.5:  # and once more, somewhere in the rest
            killed_after(draw.uniform(0, took), out)
        reason = ""
        try:
            go(out)
        except UserError as problem:
            reason = str(problem)
            lost += 1
        none_left = "None of the checkpoints in" in reason or "checkpoint is empty, but" in reason
        assert not reason or (not recovers and none_left)
        assert reason or end(out) == expected, moment
    assert begun > 15
    assert damaged > 5 or not damage
    assert lost < damaged or not damage  # often a state is left


def tiny(tmp_path: Path) -> tuple[Path, Config]:
    run({**TABLE, "run": {"rounds": 1}, "net": {"hidden": [2], "dim": 2}}, tmp_path / "run")
    return tmp_path / "run", Config.load(tmp_path / "run" / "config.toml")


def test_one_flipped_bit_anywhere_in_the_database_never_gives_another_state(tmp_path):
    out, config = tiny(tmp_path)
    path = out / "checkpoint" / STORE_FILE
    whole, draw, outcomes = path.read_bytes(), random.Random(3), {"newest": 0, "before": 0, "none": 0}

    def states(found: checkpoint.Checkpoint) -> tuple[bytes, dict[int, bytes]]:
        return to_bytes({"": found.server}), {client: to_bytes({"": state}) for client, state in found.kept.items()}

    expected = states(checkpoint.latest_checkpoint(out / "checkpoint", config.method, config.digest()))
    for _ in range(100):
        place = draw.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :])
        try:
            found = checkpoint.latest_checkpoint(out / "checkpoint", config.method, config.digest())
        except UserError:
            outcomes["none"] += 1
            continue
        assert (found.rounds, found.damaged) in [(1, []), (0, ["000001"])]
        assert found.rounds == 0 or states(found) == expected
        outcomes["newest" if found.rounds else "before"] += 1
    assert min(outcomes["newest"], outcomes["before"]) > 0


@pytest.mark.parametrize("what", ["server", "client", "about"])
def test_a_flipped_bit_in_the_newest_checkpoint_goes_back_by_one(what, tmp_path):
    out, config = tiny(tmp_path)
    flip_newest(out, what)
    found = checkpoint.latest_checkpoint(out / "checkpoint", config.method, config.digest())
    assert (found.rounds, found.damaged, len(found.kept)) == (0, ["000001"], 0)


def test_a_state_that_is_missing_is_noticed(tmp_path):
    out, config = tiny(tmp_path)
    connection = sqlite3.connect(out / "checkpoint" / STORE_FILE, isolation_level=None)
    connection.execute("DELETE FROM clients WHERE client = 3")
    connection.close()
    assert checkpoint.latest_checkpoint(out / "checkpoint", config.method, config.digest()).damaged == ["000001"]


def test_rows_that_are_damaged_come_from_the_other_copy(tmp_path):
    """The rows of rounds are in rounds.jsonl and in the database."""
    table = {**TABLE, "run": {"rounds": 3}}
    run({**TABLE, "run": {"rounds": 4}}, tmp_path / "whole")
    for name in ("file", "database"):
        run(table, tmp_path / name)
    (tmp_path / "file" / "rounds.jsonl").write_text("damaged\n")
    flip_content(tmp_path / "database", stored_blob(tmp_path / "database", "SELECT line FROM rounds WHERE round = 2"))
    for name in ("file", "database"):
        run({**TABLE, "run": {"rounds": 4}}, tmp_path / name, resume=True)
        assert end(tmp_path / name) == end(tmp_path / "whole")


@pytest.mark.parametrize("moved", [0, 2])
def test_a_lost_log_is_told(moved, tmp_path):
    """Rounds that are only in the write-ahead log are lost with it: those after `moved`, and never round 0."""
    out, notes = tmp_path / "run", []

    class Observer(Watcher):
        def started(self, config, members, rounds, said):
            notes.append([len(rounds), *said])

        def round(self, row):
            if row["round"] == moved:
                with closing(sqlite3.connect(out / "checkpoint" / STORE_FILE)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(FULL)")
            if row["round"] == 4 and not (tmp_path / "killed").exists():
                shutil.copytree(out, tmp_path / "killed")

    run(TABLE, out, watchers=[Observer()])
    killed = tmp_path / "killed"
    without_log(killed, random.Random(0))
    run(TABLE, killed, resume=True, watchers=[Observer()])
    assert notes[1] == [
        moved,
        f"the newest {4 - moved} of 4 rounds are not in checkpoint/states.sqlite and are computed again: "
        "states.sqlite-wal is missing or damaged",
    ]
    assert end(killed) == end(out)


def test_run_folders_of_the_former_format_are_read_and_continued(tmp_path):
    """`as_former` writes the files that earlier versions wrote, one of tensors and one of JSON per checkpoint."""
    table = {"run": {"rounds": 2, "sample": 2}, "data": {"clients": 4}, "net": {"hidden": [2], "dim": 2}}
    run({**table, "run": {"rounds": 4, "sample": 2}}, tmp_path / "whole")
    out = tmp_path / "run"
    run(table, out)
    as_former(out)
    loaded = protofed.Result.load(out)
    assert loaded.rounds[-1]["round"] == 2
    run({**table, "run": {"rounds": 4, "sample": 2}}, out, resume=True)
    assert end(out) == end(tmp_path / "whole")
    assert [path.name for path in (out / "checkpoint").iterdir()] == [STORE_FILE]


def test_a_damaged_checkpoint_of_the_former_format_goes_back_by_one(tmp_path):
    table = {"run": {"rounds": 2, "sample": 2}, "data": {"clients": 4}, "net": {"hidden": [2], "dim": 2}}
    run(table, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    as_former(tmp_path / "run")
    path = tmp_path / "run" / "checkpoint" / "000002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    run(table, tmp_path / "run", resume=True)
    assert end(tmp_path / "run") == end(tmp_path / "whole")


def as_former(out: Path) -> None:
    """Write the checkpoints of a run folder as earlier versions did, instead of the database."""
    where, config = out / "checkpoint", Config.load(out / "config.toml")
    for name in checkpoint.checkpoint_names(where):
        found = checkpoint.read_checkpoint(where, name, config.method, config.digest())
        kept = {str(client): state for client, state in found.kept.items()}
        content = to_bytes({"server": found.server, "kept": kept})
        about = {"rounds": found.rounds, "clients": sorted(found.kept), "experiment": config.digest()}
        about["sha256"] = hashlib.sha256(content).hexdigest()
        check = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        (where / f"{name}.safetensors").write_bytes(content)
        (where / f"{name}.json").write_text(json.dumps({**about, "check": check}))
    (where / STORE_FILE).unlink()


def test_the_first_round_too_has_a_state_to_go_back_to(tmp_path):
    run({**TABLE, "run": {"rounds": 1}}, tmp_path / "run")
    assert checkpoint.checkpoint_names(tmp_path / "run" / "checkpoint") == ["000001", "000000"]


@pytest.mark.parametrize("content", [None, b"", "tables"])
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(content, tmp_path):
    out, table = tmp_path / "run", {**TABLE, "run": {"rounds": 1}}
    run(table, tmp_path / "whole")
    (out / "checkpoint").mkdir(parents=True)
    shutil.copy(tmp_path / "whole" / "config.toml", out)
    if content == "tables":
        store = Store(out / "checkpoint" / STORE_FILE)
        store.open_to_write()
        store.close()
    elif content is not None:
        (out / "checkpoint" / STORE_FILE).write_bytes(content)
    run(table, out, resume=True)
    assert end(out) == end(tmp_path / "whole")


def test_a_replacement_of_the_database_that_was_interrupted_is_finished(tmp_path):
    """A run that was killed while it replaced a damaged database: the new one is complete, the old log is still there."""
    out, where = tmp_path / "run", tmp_path / "run" / "checkpoint"
    run({**TABLE, "run": {"rounds": 2}}, out)
    run({**TABLE, "run": {"rounds": 3}}, tmp_path / "whole")
    (where / STORE_FILE).rename(where / f"{STORE_FILE}.replacement")
    (where / STORE_FILE).write_bytes(b"the damaged one")
    (where / f"{STORE_FILE}-wal").write_bytes(b"its log")
    (where / f"{STORE_FILE}.new").write_bytes(b"half")
    run({**TABLE, "run": {"rounds": 3}}, out, resume=True)
    assert end(out) == end(tmp_path / "whole")


def test_after_a_run_there_is_one_file_without_a_log(tmp_path):
    run({**TABLE, "run": {"rounds": 2}}, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoint").iterdir()] == [STORE_FILE]


def test_a_database_on_a_read_only_disk_can_be_read(tmp_path):
    out, config = tiny(tmp_path)
    (out / "checkpoint" / STORE_FILE).chmod(0o444)
    (out / "checkpoint").chmod(0o555)
    try:
        assert checkpoint.latest_checkpoint(out / "checkpoint", config.method, config.digest()).rounds == 1
    finally:
        (out / "checkpoint").chmod(0o755)


def test_only_clients_that_changed_are_written_and_one_version_before_is_kept(tmp_path):
    table = {**TABLE, "run": {"rounds": 6, "sample": 2}}
    run(table, tmp_path / "run")
    connection = sqlite3.connect(tmp_path / "run" / "checkpoint" / STORE_FILE)
    versions = dict(connection.execute("SELECT client, GROUP_CONCAT(version) FROM clients GROUP BY client"))
    connection.close()
    rounds = {}
    for row in Folder(tmp_path / "run").rounds():
        for client in row["clients"]:
            rounds.setdefault(client, []).append(row["round"])
    assert len(rounds) < 6  # some have never trained
    expected = {client: done[-2:] if done[-1] == 6 else done[-1:] for client, done in rounds.items()}
    assert {client: sorted(map(int, str(text).split(","))) for client, text in versions.items()} == expected


def test_states_that_exceed_the_memory_budget_change_nothing(tmp_path):
    small = {**TABLE, "run": {**TABLE["run"], "checkpoint_every": 3}, "engine": {"memory": 1e-4}}
    plain = {**small, "engine": {"memory": 1.0}}
    frugal = run(small, tmp_path / "small")
    run(plain, tmp_path / "plain")
    assert end(tmp_path / "small") == end(tmp_path / "plain")
    assert 0 < frugal.state.kept.trained.in_memory() < 0.4e6  # one state has 0.15 MB
    without_folder = run(small)
    torch.testing.assert_close(without_folder.state.kept[0].params, frugal.state.kept[0].params, rtol=0, atol=0)


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
    os.kill(process.pid, signal.SIGSTOP)  # so that it does not end meanwhile
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
    flip_newest(tmp_path / "run")
    run({**TABLE, "run": {"rounds": 6, "checkpoint_every": 6}}, tmp_path / "run", resume=True)
    assert checkpoint.checkpoint_names(where) == ["000006", "000004"]


def test_a_run_killed_before_it_had_begun_can_be_started_again(tmp_path):
    (tmp_path / "run").mkdir()
    for name in (LOCK, ".config.toml.new"):
        (tmp_path / "run" / name).write_text("half")
    run({**TABLE, "run": {"rounds": 1}}, tmp_path / "run")


def test_a_full_disk_leaves_the_last_good_state_and_the_run_goes_on_later(tmp_path, monkeypatch):
    out, table = tmp_path / "run", {**TABLE, "run": {**TABLE["run"], "rounds": 2}}
    run(TABLE, tmp_path / "whole")
    run(table, out)
    put, opened = Store.put_checkpoint, Store.open_to_write

    def with_little_room(self, durable=True):
        opened(self, durable)
        (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
        self.connection.execute(f"PRAGMA max_page_count = {pages + 40}")

    def put_and_more(self, rounds, about, server):
        put(self, rounds, about, server)
        if rounds == 4:  # the disk is full in the middle of the transaction of round 4
            self.connection.execute("INSERT INTO rounds VALUES (99, x'', zeroblob(4000000))")

    monkeypatch.setattr(Store, "open_to_write", with_little_room)
    monkeypatch.setattr(Store, "put_checkpoint", put_and_more)
    with pytest.raises(OSError, match="No space left") as full:
        run(TABLE, out, resume=True)
    assert full.value.filename == str(out / "checkpoint" / STORE_FILE)
    monkeypatch.undo()
    assert checkpoint.checkpoint_names(out / "checkpoint") == ["000003", "000002"]
    run(TABLE, out, resume=True)
    assert end(out) == end(tmp_path / "whole")


@pytest.mark.slow
def test_a_full_disk_is_told_with_the_way_to_go_on(tmp_path):
    words = [sys.executable, "-c", "from protofed.cli import entry; entry()", "run"]
    (tmp_path / "run").mkdir(parents=True)
    (tmp_path / "run" / ".partition.json.new").symlink_to("/dev/full")
    config = Config.of({"run": {"rounds": 2, "eval_every": 1}, "data": {"clients": 3}, "engine": {"name": "loop"}})
    Folder(tmp_path / "run").write_config(config.table())
    ended = subprocess.run(
        [*words, "--quiet", "--resume", "--out", "run"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (
        1,
        "protofed: No space left on device: run/partition.json.\nContinue with: protofed run --resume --out run\n",
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


@pytest.mark.slow
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
    flip_newest(tmp_path / "run", "client")
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


@pytest.mark.parametrize("every", [1, 2])
def test_a_round_that_becomes_the_last_one_is_tested_and_traced(every, tmp_path):
    class Stop(Watcher):
        def round(self, row):
            if row["round"] == 3:
                raise KeyboardInterrupt

    def table(rounds: int) -> dict:
        keys = {"rounds": rounds, "eval_every": every, "trace_every": 2}
        attack = {"share": 0.5, "kind": "sign_flip"}
        return {"run": keys, "data": {"clients": 4}, "method": {"name": "fednh"}, "attack": attack}

    with pytest.raises(KeyboardInterrupt):
        run(table(8), tmp_path / "short", watchers=[Stop()])
    whole, ended = run(table(3), tmp_path / "whole"), run(table(3), tmp_path / "short", resume=True)
    assert end(tmp_path / "short") == end(tmp_path / "whole")
    assert ended.summary["global"] == whole.summary["global"]
    assert ended.summary["global"]["accuracy"] is not None
    assert Folder(tmp_path / "short").traced_rounds() == [2, 3]
    longer = run(table(5), tmp_path / "short", resume=True)
    assert (longer.rounds[2]["accuracy_head"] is None) == (every == 2)
    assert Folder(tmp_path / "short").traced_rounds() == [2, 4, 5]


def test_fewer_rounds_are_refused_if_a_round_that_is_over_should_have_been_tested(tmp_path):
    class Stop(Watcher):
        def round(self, row):
            if row["round"] == 3:
                raise KeyboardInterrupt

    def table(rounds: int) -> dict:
        return {**TABLE, "run": {"rounds": rounds, "eval_every": 5, "eval_last": 2}}

    with pytest.raises(KeyboardInterrupt):
        run(table(7), tmp_path / "run", watchers=[Stop()])
    with pytest.raises(UserError, match=r"run\.eval_last tests the last 2 rounds\. Round 3 is over.* Use 7 or more"):
        run(table(4), tmp_path / "run", resume=True)
    again, whole = run(table(5), tmp_path / "run", resume=True), run(table(5), tmp_path / "whole")
    tested = [[row["accuracy_head"] for row in result.rounds] for result in (again, whole)]
    assert tested[0] == tested[1]
    assert [value is not None for value in tested[0]] == [False, False, False, True, True]
