"""Watching a run: the server of the live page, and the request to stop."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import protofed
from protofed.experiment.folder import Folder
from protofed.experiment.stop_request import ask_to_stop, was_asked_to_stop
from protofed.report.live import LivePage

CONFIG = {
    "run": {"rounds": 4, "trace_every": 1},
    "data": {"clients": 3},
    "partition": {"name": "nway", "ways": 3, "shots": 4, "test": 5},
    "net": {"name": "mlp", "hidden": [8], "dim": 6},
}


class Going:
    """A run folder that looks like that of a run that is going on: locked, with three of four rounds."""

    def __init__(self, folder: Path) -> None:
        protofed.run(CONFIG, folder)
        for name in ("result.json", "clients.csv"):
            (folder / name).unlink()
        self.folder, self.rows = folder, (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        self.write(3)
        self.lock = FileLock(folder / ".lock", thread_local=False)
        self.lock.acquire()

    def write(self, rounds: int) -> None:
        (self.folder / "rounds.jsonl").write_text("".join(self.rows[:rounds]))


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Going]:
    going = Going(tmp_path / "run")
    yield going
    going.lock.release(force=True)


def events(address: str) -> Iterator[tuple[str, Any]]:
    """The events of a live page, as they come."""
    with urllib.request.urlopen(address.replace("/?", "/events?"), timeout=20) as stream:
        name = ""
        for line in stream:
            key, _, value = line.decode().rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                yield name, json.loads(value)


def rounds_done(message: Any) -> int:
    return message["content"]["runs"][0]["done"]


def test_a_watcher_sees_earlier_rounds_at_once_and_new_ones_as_they_come(going: Going) -> None:
    page = LivePage([going.folder])
    waiting = threading.Thread(target=page.wait)
    waiting.start()
    first, second = events(page.address), events(page.address)
    assert [rounds_done(next(stream)[1]) for stream in (first, second)] == [3, 3]
    going.write(4)
    assert [rounds_done(next(stream)[1]) for stream in (first, second)] == [4, 4]
    going.lock.release(force=True)
    assert [name for name, _ in first] == ["content", "end"]
    assert [name for name, _ in second] == ["content", "end"]
    waiting.join(10)
    assert not waiting.is_alive()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(page.server.server_address, 1):
        pass


def test_without_the_token_or_with_another_host_nothing_is_shown(going: Going) -> None:
    page = LivePage([going.folder])
    try:
        with urllib.request.urlopen(page.address) as answer:
            assert b"fedproto (running, round 3 of 4) on digits" in answer.read()
        for address, headers in (
            (page.address[:-1], {}),
            (page.address.partition("?")[0], {}),
            (page.address, {"Host": "example.org"}),
            (page.address.replace("/?", "/events?")[:-3], {}),
        ):
            with pytest.raises(urllib.error.HTTPError) as problem:
                urllib.request.urlopen(urllib.request.Request(address, headers=headers))
            with problem.value as refusal:
                assert refusal.code == 403
    finally:
        page.close()


def test_a_silent_connection_does_not_keep_a_run_from_ending(going: Going, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protofed.report.live._SILENT", 0.2)
    page = LivePage([going.folder])
    with socket.create_connection(page.server.server_address, 5):
        time.sleep(0.1)  # until the server has taken the connection
        closing = threading.Thread(target=page.close)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()


def test_a_run_that_ends_before_its_first_round_is_said(going: Going) -> None:
    going.write(0)
    page = LivePage([going.folder])
    page.ended.set()
    try:
        with pytest.raises(urllib.error.HTTPError) as problem:
            urllib.request.urlopen(page.address)
        with problem.value as answer:
            assert (answer.code, str(going.folder) in answer.read().decode()) == (503, True)
    finally:
        page.close()


def test_a_request_that_came_too_late_does_not_stop_the_next_run(tmp_path: Path) -> None:
    protofed.run({**CONFIG, "run": {"rounds": 2}}, tmp_path / "run")
    ask_to_stop(tmp_path / "run")
    assert len(protofed.run({**CONFIG, "run": {"rounds": 4}}, tmp_path / "run", resume=True).rounds) == 4


def test_the_stop_button_leaves_a_request_in_the_run_folder(going: Going) -> None:
    page = LivePage([going.folder])
    try:
        request = urllib.request.Request(page.address.replace("/?", "/stop?"), method="POST")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 202
        assert was_asked_to_stop(going.folder)
        assert not was_asked_to_stop(going.folder)
    finally:
        page.close()


def test_a_run_that_is_asked_to_stop_ends_after_a_checkpoint_and_continues_exactly(tmp_path: Path) -> None:
    class Asking(protofed.Watcher):
        def round(self, row: dict[str, Any]) -> None:
            if row["round"] == 1:
                ask_to_stop(tmp_path / "stopped")

    config = {**CONFIG, "run": {"rounds": 5, "checkpoint_every": 2}}
    with pytest.raises(KeyboardInterrupt):
        protofed.run(config, tmp_path / "stopped", watchers=[Asking()])
    assert len(Folder(tmp_path / "stopped").rounds()) == 2
    resumed = protofed.run(config, tmp_path / "stopped", resume=True)
    whole = protofed.run(config, tmp_path / "whole")
    assert resumed.summary["accuracy"] == whole.summary["accuracy"]
    assert [row["loss"] for row in resumed.rounds] == [row["loss"] for row in whole.rounds]
