"""Damage to the database of a run folder, as disks and people cause it."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

from protofed.experiment.store import STORE_FILE


def stored_blob(folder: Path, query: str) -> bytes:
    """One value in the database of a run folder."""
    connection = sqlite3.connect(folder / "checkpoint" / STORE_FILE)
    try:
        (value,) = connection.execute(query).fetchone()
        return value if isinstance(value, bytes) else value.encode()
    finally:
        connection.close()


def flip_newest(folder: Path, what: str = "server") -> None:
    """Flip a bit of the newest checkpoint on the disk: of the state of the server, or of a client of the last round."""
    query = {
        "server": "SELECT server FROM checkpoints ORDER BY rounds DESC LIMIT 1",
        "client": "SELECT state FROM clients ORDER BY version DESC LIMIT 1",
        "about": "SELECT about FROM checkpoints ORDER BY rounds DESC LIMIT 1",
    }[what]
    flip_content(folder, stored_blob(folder, query))


def flip_content(folder: Path, content: bytes) -> None:
    """Flip a bit in this content, wherever it is in the file."""
    path = folder / "checkpoint" / STORE_FILE
    file = bytearray(path.read_bytes())
    pieces = (content[end - 48 : end] for end in range(len(content), 48, -16))
    place = next(file.find(piece) for piece in pieces if file.count(piece) == 1)
    file[place + 20] ^= 1
    path.write_bytes(file)


def truncate_store(folder: Path, draw: random.Random) -> None:
    """Cut the database off at a random byte."""
    path = folder / "checkpoint" / STORE_FILE
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content))])


def stored_states(folder: Path) -> dict[str, bytes]:
    """The newest states in the database: every byte of the server's and of each client's."""
    connection = sqlite3.connect(folder / "checkpoint" / STORE_FILE)
    try:
        server = connection.execute("SELECT server FROM checkpoints ORDER BY rounds DESC LIMIT 1").fetchone()[0]
        query = "SELECT client, state, MAX(version) FROM clients GROUP BY client"
        return {"server": server, **{str(client): state for client, state, _ in connection.execute(query)}}
    finally:
        connection.close()
