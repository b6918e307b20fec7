"""A run is a folder: complete enough to resume bit for bit, to redraw every picture and to check every number."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load

from protofed.errors import UserError
from protofed.messages import to_bytes
from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LOCK = ".lock"


def json_value(value: Any) -> Any:
    """A value as JSON has it: what is not a finite number is null."""
    if isinstance(value, dict):
        return {key: json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is, at any moment, either the old one or the new one, whole."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as problem:
        beside.unlink(missing_ok=True)  # a full disk needs the room
        problem.filename = str(path)
        raise
    if os.name == "posix":  # the new name, too, is to outlast a power cut
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block has ended: a write is not left half done."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught:
        signal.raise_signal(caught[0])


class Folder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.traces = path / "trace"

    @classmethod
    @contextmanager
    def new(cls, path: Path) -> Iterator[Folder]:
        """An empty folder for a new run, locked; one that has something in it is left alone."""
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file, not a folder. Give another --out.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"{path} cannot be made: {problem.strerror}. Give another --out.") from problem
        cls(path).must_be_empty()  # so that nothing is put into a stranger's folder, not even a lock
        with cls(path).locked() as folder:
            folder.must_be_empty()  # another run may have come and gone
            yield folder

    def must_be_empty(self) -> None:
        begun = {LOCK, ".config.toml.new"}  # all that a run leaves which was killed before it had begun
        if {inside.name for inside in self.path.iterdir()} - begun:
            way = (
                "Continue that run with --resume (in Python: resume=True), or give"
                if (self.path / "config.toml").exists()
                else "Give"
            )
            raise UserError(f"{self.path} is there already and not empty. {way} another --out.")

    @classmethod
    def old(cls, path: Path) -> Folder:
        """The folder of an earlier run."""
        if not (path / "config.toml").is_file():
            raise UserError(
                f"{path} is not a run folder: it has no config.toml. Give the --out of an earlier `protofed run`."
            )
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[Folder]:
        """This folder, for as long as nobody else may use it; the lock ends with the process, however that ends."""
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"{self.path} is in use by another run. Wait until it has ended, or give another --out."
            ) from None
        except OSError as problem:
            raise UserError(
                f"{self.path} cannot be written to: {problem.strerror}. Make it writable, or give another --out."
            ) from problem
        try:
            yield self
        finally:
            lock.release()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Everything that was asked for, defaults included."""
        write_atomically(self.path / "config.toml", tomli_w.dumps(config).encode())

    def write_partition(self, partition: Mapping[str, Any]) -> None:
        """Who holds what."""
        write_atomically(self.path / "partition.json", json.dumps(partition).encode())

    def partition(self) -> dict[str, Any] | None:
        """Who holds what; None if the run was stopped before it was written."""
        path = self.path / "partition.json"
        return read_json(path, "sha256") if path.exists() else None

    def write_rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """All rounds so far, in place of whatever is there."""
        write_atomically(
            self.path / "rounds.jsonl", "".join(f"{json.dumps(json_value(dict(row)))}\n" for row in rows).encode()
        )

    def add_round(self, row: Mapping[str, Any]) -> None:
        """One more line."""
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(json_value(dict(row)))}\n")
            file.flush()
            os.fsync(file.fileno())

    def rounds(self) -> list[dict[str, Any]]:
        """The rounds that are there, up to the first line that is not whole."""
        rows = []
        if (self.path / "rounds.jsonl").exists():
            for line in (self.path / "rounds.jsonl").read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError:
                    break
        return rows

    def write_trace(self, rounds: int, prototypes: Prototypes) -> None:
        """The server's prototypes after so many rounds."""
        self.traces.mkdir(exist_ok=True)
        write_atomically(self.traces / f"{rounds:06d}.safetensors", to_bytes(prototypes))

    def traced(self) -> list[int]:
        """The rounds (from 1) whose prototypes were kept."""
        return sorted(int(path.stem) for path in self.traces.glob("*.safetensors") if path.stem.isdecimal())

    def remove_traces(self, rounds: Iterable[int]) -> None:
        """Take away the prototypes of these rounds."""
        for number in rounds:
            (self.traces / f"{number:06d}.safetensors").unlink()

    def trace(self) -> list[tuple[int, Prototypes]]:
        """The server's prototypes over the rounds (from 1) that `run.trace_every` kept."""
        found = []
        for number in self.traced():
            path = self.traces / f"{number:06d}.safetensors"
            try:
                found.append((number, Prototypes.unpack(load(path.read_bytes()))))
            except (OSError, SafetensorError, KeyError, ValueError) as problem:
                raise UserError(
                    f"{path} cannot be read: {problem}. Take it away: the other rounds stand without it."
                ) from problem
        return found

    def remove_results(self) -> None:
        """Take away the final figures of a run that goes on."""
        for name in ("result.json", "clients.csv", "reach.json"):
            (self.path / name).unlink(missing_ok=True)

    def finish(self, result: Mapping[str, Any], clients: Sequence[Mapping[str, Any]], reach: Mapping[str, Any]) -> None:
        """The final figures; result.json is the last: a run that has it has all."""
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, list(clients[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(clients)
        write_atomically(self.path / "clients.csv", text.getvalue().encode())
        write_atomically(self.path / "reach.json", json.dumps(json_value(dict(reach))).encode())
        write_atomically(self.path / "result.json", (json.dumps(json_value(dict(result)), indent=2) + "\n").encode())

    def result(self) -> dict[str, Any]:
        """The final figures of a finished run."""
        path = self.path / "result.json"
        if not path.exists():
            what = (
                "has not finished: continue it with --resume"
                if (self.path / "config.toml").exists()
                else "is not a run folder"
            )
            raise UserError(f"{self.path} {what} (it has no result.json).")
        return read_json(path, "method", "dataset", "seed", "rounds", "accuracy", "global", "cost", "seconds")

    def clients(self) -> list[dict[str, Any]]:
        """The rows of clients.csv."""

        def value(key: str, text: str) -> Any:
            if key.startswith(("accuracy_", "personal_")):
                return float(text) if text else None
            return int(text) if key in ("client", "train", "test") else text

        with (self.path / "clients.csv").open(encoding="utf-8", newline="") as file:
            return [{key: value(key, text) for key, text in row.items()} for row in csv.DictReader(file)]

    def reach(self) -> dict[str, Any]:
        """How far examples of each class were from its prototype, for each client."""
        return read_json(self.path / "reach.json")


_ANEW = "Take it away; `protofed run --resume --out` that folder writes it anew."


def must_be_new(path: Path) -> None:
    """Refuse to write over a file."""
    if path.exists():
        raise UserError(f"{path} is there already. Give another name.")


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """A JSON object that has these keys."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        content = {}
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} cannot be read: {problem}. {_ANEW}") from problem
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing or not isinstance(content, dict):
        raise UserError(f"{path} is missing or not a whole one{f': no {missing[0]}' if missing else ''}. {_ANEW}")
    return content
