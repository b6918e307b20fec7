"""The run folder: all files that are needed to resume a run bit for bit, draw its pictures and check its numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from filelock import FileLock, Timeout

from protofed.errors import UserError
from protofed.experiment.links import remove_link
from protofed.experiment.reading import read_client_rows, read_json, recreated_by_resume

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from protofed.prototypes import Prototypes

LOCK = ".lock"
"""The name of the lock file in a run folder."""


def json_value(value: Any) -> Any:
    """A value for JSON, in which numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it has either its old content or its complete new content."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        remove_link(temporary)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)  # the disk may be full
        problem.filename = str(path)
        raise
    if os.name == "posix":  # so that the new name survives a power failure, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended, so that no write is left half done."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals only in the main thread
        yield
        return
    caught: list[int] = []
    previous_handler = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    if caught:
        signal.raise_signal(caught[0])


class Folder:
    """The files of one run. `create` makes the folder of a new run, `existing` opens that of an earlier one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.traces = path / "trace"

    @classmethod
    @contextmanager
    def create(cls, path: Path) -> Iterator[Folder]:
        """An empty folder for a new run, locked. A folder that is not empty is left unchanged and is an error."""
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file, not a folder. Give another --out.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"{path} cannot be created: {problem.strerror}. Give another --out.") from problem
        cls(path)._require_empty()  # before the lock is written, so that a folder of something else stays unchanged
        with cls(path).locked() as folder:
            folder._require_empty()  # another run may have used it in between
            yield folder

    def _require_empty(self) -> None:
        leftovers = {LOCK, ".config.toml.new"}  # of a run that was killed before it wrote its config.toml
        if {file.name for file in self.path.iterdir()} - leftovers:
            advice = (
                "Continue that run with --resume (in Python: resume=True), or give"
                if (self.path / "config.toml").exists()
                else "Give"
            )
            raise UserError(f"{self.path} already exists and is not empty. {advice} another --out.")

    @classmethod
    def existing(cls, path: Path) -> Folder:
        """The folder of an earlier run; an error if it is not a run folder."""
        if not (path / "config.toml").is_file():
            problem = f"{path} is not a run folder: it has no config.toml" if path.is_dir() else f"{path} is a file"
            problem = problem if path.exists() else f"There is no folder {path}"
            raise UserError(f"{problem}. Give the --out of an earlier `protofed run`.")
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[Folder]:
        """This folder, locked against other runs. The lock ends with the block, and also when the process dies."""
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=1)  # another process may only have a look at it, which takes the lock for a moment
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

    def is_in_use(self) -> bool:
        """Whether a run holds the lock of this folder now."""
        try:
            with FileLock(self.path / LOCK, blocking=False) if (self.path / LOCK).exists() else nullcontext():
                return False
        except Timeout:
            return True
        except OSError:  # a folder that cannot be written to
            return False

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.toml: the experiment, with its defaults."""
        write_atomically(self.path / "config.toml", tomli_w.dumps(config).encode())

    def write_partition(self, partition: Mapping[str, Any]) -> None:
        """Write partition.json: the examples of each client."""
        write_atomically(self.path / "partition.json", json.dumps(partition).encode())

    def partition(self) -> dict[str, Any] | None:
        """The content of partition.json; None if the run was stopped before it was written."""
        path = self.path / "partition.json"
        return read_json(path, "sha256") if path.exists() else None

    def write_rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rounds.jsonl again, with these rows."""
        write_atomically(
            self.path / "rounds.jsonl", "".join(f"{json.dumps(json_value(dict(row)))}\n" for row in rows).encode()
        )

    def add_round(self, row: Mapping[str, Any]) -> None:
        """Append a row to rounds.jsonl."""
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(json_value(dict(row)))}\n")
            file.flush()
            os.fsync(file.fileno())

    def rounds(self, up_to_damage: bool = False) -> list[dict[str, Any]]:
        """The rows of rounds.jsonl. A last line without its end, which is being written or was cut, is left out.

        Any other line that is not a row is an error or, with `up_to_damage`, the end of the rows.
        """
        path, rows = self.path / "rounds.jsonl", []
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("not a table")
            except (ValueError, RecursionError):
                if up_to_damage or not line.endswith("\n"):
                    break
                raise UserError(
                    f"{path}, line {number} is damaged: it is not the row of a round. {recreated_by_resume(path)}"
                ) from None
            rows.append(row)
        return rows

    def has_rounds(self) -> bool:
        """Whether a round has been written."""
        path = self.path / "rounds.jsonl"
        return path.is_file() and path.stat().st_size > 0

    def write_trace(self, rounds: int, prototypes: Prototypes) -> None:
        """Write the server's prototypes after this number of rounds."""
        from protofed.messages import to_bytes

        self.traces.mkdir(exist_ok=True)
        write_atomically(self.traces / f"{rounds:06d}.safetensors", to_bytes(prototypes))

    def traced_rounds(self) -> list[int]:
        """The rounds (from 1) with prototypes in trace/."""
        return sorted(int(path.stem) for path in self.traces.glob("*.safetensors") if path.stem.isdecimal())

    def remove_traces(self, rounds: Iterable[int]) -> None:
        """Delete the prototypes of these rounds."""
        for number in rounds:
            (self.traces / f"{number:06d}.safetensors").unlink()

    def trace(self) -> list[tuple[int, Prototypes]]:
        """The server's prototypes in trace/, each with its round (from 1); see `run.trace_every`."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        from protofed.prototypes import Prototypes

        prototypes = []
        for number in self.traced_rounds():
            path = self.traces / f"{number:06d}.safetensors"
            try:
                prototypes.append((number, Prototypes.unpack(load(path.read_bytes()))))
            except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError, IndexError) as problem:
                raise UserError(f"{path} cannot be read: {problem}. Delete it; no other round needs it.") from problem
        return prototypes

    def remove_results(self) -> None:
        """Delete the results of a run that continues."""
        for name in ("result.json", "clients.csv", "unknown.json", "reach.json"):  # reach.json: of earlier versions
            (self.path / name).unlink(missing_ok=True)

    def write_results(
        self, result: Mapping[str, Any], clients: Sequence[Mapping[str, Any]], unknown_rules: Mapping[str, Any]
    ) -> None:
        """Write clients.csv, unknown.json and, as the last file of a run, result.json."""
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, list(clients[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(clients)
        write_atomically(self.path / "clients.csv", text.getvalue().encode())
        write_atomically(self.path / "unknown.json", json.dumps(json_value(dict(unknown_rules))).encode())
        write_atomically(self.path / "result.json", (json.dumps(json_value(dict(result)), indent=2) + "\n").encode())

    def result(self) -> dict[str, Any]:
        """The content of result.json; an error if the run has not finished."""
        path = self.path / "result.json"
        if not path.exists():
            self.existing(self.path)
            raise UserError(
                f"{self.path} has no result.json: its run has not finished. "
                f"Continue it with `protofed run --resume --out {self.path}`."
            )
        return read_json(path, "method", "dataset", "seed", "rounds", "accuracy", "global", "cost", "seconds")

    def clients(self) -> list[dict[str, Any]]:
        """The rows of clients.csv."""
        return read_client_rows(self.path / "clients.csv")

    def unknown_rules(self) -> dict[str, Any]:
        """The content of unknown.json, by client. Runs of earlier versions have reach.json and no rule."""
        path = self.path / "unknown.json"
        return {} if not path.exists() and (self.path / "reach.json").exists() else read_json(path)


def must_be_new(path: Path, replaceable: bool = False) -> None:
    """Raise an error instead of overwriting a file. `replaceable`: the caller has an option `force`."""
    if path.exists():
        other = ", or replace it (--force, in Python force=True)" if replaceable else ""
        raise UserError(f"{path} already exists. Give another name{other}.")
