"""A run is a folder: complete enough to resume bit for bit, to redraw every picture and to check every number."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def plain(value: Any) -> Any:
    """A value as JSON has it: what is not a finite number is null."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, content: bytes) -> None:
    """Write a file so that it is, at any moment, either the old one or the new one, whole."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


class Folder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"

    @classmethod
    def new(cls, path: Path, config: Mapping[str, Any], partition: Mapping[str, Any]) -> Folder:
        """An empty folder for a new run; one that has something in it is left alone."""
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file, not a folder. Give another --out.")
        if path.exists() and any(path.iterdir()):
            way = "Continue that run with --resume, or give" if (path / "config.toml").exists() else "Give"
            raise UserError(f"{path} is there already and not empty. {way} another --out.")
        try:
            (path / "checkpoint").mkdir(parents=True)
        except OSError as problem:
            raise UserError(f"{path} cannot be made: {problem.strerror}. Give another --out.") from problem
        folder = cls(path)
        folder.write_config(config)
        folder.write_partition(partition)
        return folder

    @classmethod
    def old(cls, path: Path) -> Folder:
        """The folder of an earlier run."""
        if not (path / "config.toml").is_file():
            raise UserError(
                f"{path} is not a run folder: it has no config.toml. Give the --out of an earlier `protofed run`."
            )
        return cls(path)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Everything that was asked for, defaults included."""
        write(self.path / "config.toml", tomli_w.dumps(config).encode())

    def write_partition(self, partition: Mapping[str, Any]) -> None:
        """Who holds what."""
        write(self.path / "partition.json", json.dumps(partition).encode())

    def partition_hash(self) -> str | None:
        """Which partition it is; None if the run was stopped before it was written."""
        path = self.path / "partition.json"
        try:
            return str(json.loads(path.read_text())["sha256"]) if path.exists() else None
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path} is damaged. Start a new run.") from None

    def write_rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """All rounds so far, in place of whatever is there."""
        write(self.path / "rounds.jsonl", "".join(f"{json.dumps(plain(dict(row)))}\n" for row in rows).encode())

    def add_round(self, row: Mapping[str, Any]) -> None:
        """One more line."""
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(plain(dict(row)))}\n")
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

    def unfinish(self) -> None:
        """Take away the final figures of a run that goes on."""
        for name in ("result.json", "clients.csv"):
            (self.path / name).unlink(missing_ok=True)

    def finish(self, result: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> None:
        """The final figures."""
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, list(clients[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(clients)
        write(self.path / "clients.csv", text.getvalue().encode())
        write(self.path / "result.json", (json.dumps(plain(dict(result)), indent=2) + "\n").encode())

    def result(self) -> dict[str, Any]:
        """The final figures of a finished run."""
        try:
            return dict(json.loads((self.path / "result.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            what = (
                "has not finished: continue it with --resume"
                if (self.path / "config.toml").exists()
                else "is not a run folder"
            )
            raise UserError(f"{self.path} {what} (it has no result.json).") from None
        except (OSError, ValueError) as problem:
            raise UserError(f"{self.path / 'result.json'} cannot be read: {problem}.") from problem
