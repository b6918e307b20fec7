"""A database of states in one SQLite file: checkpoints, and of each client the versions that the checkpoints need.

Every write is one transaction, so that a process that is killed leaves the state before or after it. Everything that is
read back is compared with its checksum, so that damage is found. States are safetensors bytes; nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from protofed.errors import UserError

STORE_FILE = "states.sqlite"
"""The name of the database in a folder."""
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS checkpoints (rounds INTEGER PRIMARY KEY, digest BLOB, about TEXT, server BLOB)",
    "CREATE TABLE IF NOT EXISTS clients "
    "(client INTEGER, version INTEGER, digest BLOB, state BLOB, PRIMARY KEY (client, version))",
    "CREATE INDEX IF NOT EXISTS by_version ON clients (version)",
    "CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, digest BLOB, line TEXT)",
)
PAGE_BYTES = 16384
"""Bytes per page of the database: states are large compared with SQLite's default of 4096."""
_SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # messages may have bytes of a damaged file
_WAL_LIMIT = 64 << 20
"""Bytes to which the write-ahead log is cut after its content was moved to the database."""


class DamageError(Exception):
    """The database, or an entry of it, is not what was written."""


class StoredState(NamedTuple):
    """A client's state, and its checksum as a number."""

    client: int
    digest: int
    content: bytes


class Store:
    """The database in a file. It is opened for writing by `open_to_write`, otherwise read-only when it is first used.

    A checkpoint after n rounds has the newest version of each client's state up to n.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._is_temporary = False

    @classmethod
    def temporary(cls) -> Store:
        """A database that is deleted with this object."""
        folder = tempfile.mkdtemp(prefix="protofed-")
        store = cls(Path(folder) / STORE_FILE)
        weakref.finalize(store, shutil.rmtree, folder, ignore_errors=True)
        store.open_to_write(durable=False)
        store._is_temporary = True
        return store

    def exists(self) -> bool:
        """Whether the file exists. A replacement that was complete when the process died takes its place now."""
        self._finish_replacement()
        return self.path.exists()

    def open_to_write(self, durable: bool = True) -> None:
        """Open the file for writing, and create it if it does not exist. `durable`: it survives a power failure."""
        self.close()
        self._finish_replacement()
        with _explained(self.path):
            connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._connection = connection
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
            with self.transaction():
                for statement in _SCHEMA:
                    connection.execute(statement)

    @property
    def connection(self) -> sqlite3.Connection:
        """The open database; read-only if it was not opened for writing."""
        if self._connection is None:
            address = self.path.resolve().as_uri()
            try:
                connection = sqlite3.connect(f"{address}?mode=ro", uri=True, check_same_thread=False)
                connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            except sqlite3.OperationalError:  # a log is missing or empty, and the disk is read-only
                connection = sqlite3.connect(f"{address}?immutable=1", uri=True, check_same_thread=False)
            self._connection = connection
        return self._connection

    def close(self) -> None:
        """Close the file. If it was written to, it is complete afterwards, without a log next to it."""
        if self._connection is None or self._is_temporary:
            return
        with suppress(*_SQLITE_ERRORS):
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()
        self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A block in which everything or nothing is written."""
        with _explained(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(*_SQLITE_ERRORS):  # after some errors SQLite has rolled back already
                    self.connection.execute("ROLLBACK")
                raise

    def empty_log(self) -> None:
        """Move the content of the log to the database."""
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # ---- writing, within a transaction ----

    def put_states(self, version: int, states: Iterable[tuple[int, bytes]]) -> int:
        """Write a version of these clients' states. Returns how the exclusive or of all newest checksums changes."""
        changed = 0
        for client, content in states:
            digest = _keyed_hash(f"client {client} {version}", content)
            before = self.connection.execute(
                "SELECT digest FROM clients WHERE client = ? ORDER BY version DESC LIMIT 1", (client,)
            ).fetchone()
            changed ^= int.from_bytes(digest) ^ (int.from_bytes(before[0]) if before else 0)
            self.connection.execute(
                "INSERT OR REPLACE INTO clients VALUES (?, ?, ?, ?)", (client, version, digest, content)
            )
        return changed

    def put_checkpoint(self, rounds: int, about: str, server: bytes) -> None:
        """Write a checkpoint."""
        digest = _keyed_hash(f"checkpoint {rounds} {about}", server)
        self.connection.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", (rounds, digest, about, server)
        )

    def put_lines(self, lines: Mapping[int, str]) -> None:
        """Write the lines of these rounds (from 1) of rounds.jsonl."""
        for number, line in lines.items():
            digest = _keyed_hash(f"round {number}", line.encode())
            self.connection.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", (number, digest, line))

    def remove_after(self, rounds: int) -> None:
        """Delete everything that is newer than the checkpoint after this number of rounds."""
        for table, column in (("checkpoints", "rounds"), ("clients", "version"), ("rounds", "round")):
            self.connection.execute(f"DELETE FROM {table} WHERE {column} > ?", (rounds,))

    def remove_before(self, rounds: int) -> None:
        """Delete the checkpoints before this one, and the versions of states that only those need."""
        oldest = self.connection.execute("SELECT MIN(rounds) FROM checkpoints").fetchone()[0]
        if oldest is None or oldest >= rounds:
            return
        self.connection.execute("DELETE FROM checkpoints WHERE rounds < ?", (rounds,))
        newer = self.connection.execute(
            "SELECT client, MAX(version) FROM clients WHERE version > ? AND version <= ? GROUP BY client",
            (oldest, rounds),
        ).fetchall()
        self.connection.executemany("DELETE FROM clients WHERE client = ? AND version < ?", newer)

    # ---- reading ----

    def is_sound(self) -> bool:
        """Whether the file is a database without contradictions, so that it can be written to."""
        with suppress(*_SQLITE_ERRORS):
            return bool(self.connection.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",))
        return False

    def checkpoints(self) -> list[int]:
        """The numbers of rounds of all checkpoints, the newest first; [] in a database that was never written to."""
        with _damage():
            tables = self.connection.execute("SELECT name FROM sqlite_master WHERE name = 'checkpoints'").fetchall()
            query = "SELECT rounds FROM checkpoints ORDER BY rounds DESC"
            found = self.connection.execute(query).fetchall() if tables else []
            return [int(rounds) for (rounds,) in found]

    def checkpoint(self, rounds: int) -> tuple[str, bytes]:
        """What is written about the checkpoint after this number of rounds, and the state of the server."""
        with _damage():
            row = self.connection.execute(
                "SELECT digest, about, server FROM checkpoints WHERE rounds = ?", (rounds,)
            ).fetchone()
            if row is None or row[0] != _keyed_hash(f"checkpoint {rounds} {row[1]}", row[2]):
                raise DamageError(f"the checkpoint after {rounds} rounds")
        return row[1], row[2]

    def state(self, client: int, rounds: int) -> bytes:
        """The state of a client in the checkpoint after this number of rounds."""
        with _damage():
            row = self.connection.execute(
                "SELECT version, digest, state FROM clients WHERE client = ? AND version <= ? "
                "ORDER BY version DESC LIMIT 1",
                (client, rounds),
            ).fetchone()
            if row is None or row[1] != _keyed_hash(f"client {client} {row[0]}", row[2]):
                raise DamageError(f"the state of client {client}")
            content: bytes = row[2]
        return content

    def states(self, rounds: int) -> Iterator[StoredState]:
        """The states of all clients in the checkpoint after this number of rounds, one after the other."""
        with _damage():
            for client, version, digest, content in self.connection.execute(
                "SELECT client, version, digest, state FROM clients JOIN "
                "(SELECT client AS c, MAX(version) AS v FROM clients WHERE version <= ? GROUP BY client) "
                "ON client = c AND version = v",
                (rounds,),
            ):
                if digest != _keyed_hash(f"client {client} {version}", content):
                    raise DamageError(f"the state of client {client}")
                yield StoredState(client, int.from_bytes(digest), content)

    def lines(self, rounds: int) -> list[str]:
        """The lines of rounds.jsonl of this number of rounds."""
        with _damage():
            found = self.connection.execute(
                "SELECT round, digest, line FROM rounds WHERE round <= ? ORDER BY round", (rounds,)
            ).fetchall()
            intact = [
                number for number, digest, line in found if digest == _keyed_hash(f"round {number}", line.encode())
            ]
            if intact != list(range(1, rounds + 1)):
                raise DamageError("the rows of rounds")
        return [line for _, _, line in found]

    # ---- replacing the file ----

    def delete(self) -> None:
        """Delete the file and its logs."""
        self.close()
        for path in (self.path, self._log("wal"), self._log("shm")):
            path.unlink(missing_ok=True)

    def replaced_by(self, other: Path) -> None:
        """Put another database, which is closed, in the place of this one. It survives a kill at any moment."""
        self.close()
        other.replace(self._replacement())
        self._finish_replacement()

    def _finish_replacement(self) -> None:
        if self._replacement().exists():
            for suffix in ("wal", "shm"):  # a log of the old database must never be applied to the new one
                self._log(suffix).unlink(missing_ok=True)
            self._replacement().replace(self.path)

    def _replacement(self) -> Path:
        return self.path.with_name(f"{self.path.name}.replacement")

    def _log(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{suffix}")


def _keyed_hash(name: str, content: bytes) -> bytes:
    """The checksum of an entry. It covers the entry's name, too."""
    checksum = hashlib.sha256(name.encode() + b"\0")
    checksum.update(content)
    return checksum.digest()


@contextmanager
def _damage() -> Iterator[None]:
    """Report what SQLite, or a value of another type, says about damage."""
    try:
        yield
    except (sqlite3.Error, TypeError, AttributeError, ValueError) as problem:
        raise DamageError(str(problem)) from problem


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into those that a file would give."""
    try:
        yield
    except sqlite3.Error as problem:
        if getattr(problem, "sqlite_errorname", "") == "SQLITE_FULL":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from problem
        if isinstance(problem, sqlite3.DataError) or "too big" in str(problem):
            raise UserError(
                f"{path}: a state has more than 1 GB, the largest entry of SQLite. Use a smaller net."
            ) from problem
        raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} ({problem})", str(path)) from problem
