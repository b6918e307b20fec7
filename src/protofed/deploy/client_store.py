"""What a client keeps on its own disk: per round its state and the upload that it made, in a database.

A round is written in one transaction, after training and before the upload leaves. So a message that is delivered
twice, or again after a crash, gets the stored upload, and the client trains once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from protofed.engines.flower.wire import content_hash
from protofed.errors import UserError
from protofed.experiment.folder import write_atomically
from protofed.experiment.kept_states import state_bytes
from protofed.experiment.store import STORE_FILE, DamageError, Store
from protofed.messages import group_by_first_name, unflatten

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from protofed.core import AnyMethod


_MESSAGE_FILE = "message.safetensors"
_SELF = 0
"""The number of the only client in the database."""
DAMAGED = (
    DamageError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    RuntimeError,
    SafetensorError,
)
"""The errors of reading a file that is damaged, or that somebody else has written."""


class StoredRound(NamedTuple):
    """A client's round: the message that it answered, what it kept, and its answer."""

    round: int
    message: str  # the hash of the server's message
    kept: Any
    upload: dict[str, Tensor]
    figures: dict[str, Any]


class ClientStore:
    """The rounds of one run in which this client trained. Only one process at a time works with it."""

    def __init__(self, folder: Path, run: str, method: AnyMethod) -> None:
        self.folder, self.method = folder / run, method
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(self.folder / ".lock")
        self.store = Store(self.folder / STORE_FILE)

    def rounds(self) -> list[int]:
        """The rounds that are stored, the newest first; [] if the database cannot be read."""
        try:
            return self.store.checkpoints() if self.store.exists() else []
        except DamageError:
            return []
        finally:
            self.store.close()

    def newest(self, before: int) -> StoredRound | None:
        """The newest intact round below `before`; None if there is none. Damaged rounds are skipped."""
        return next((stored for number in self.rounds() if number < before and (stored := self.read(number))), None)

    def answer(self, round: int, message: str) -> StoredRound | None:
        """The stored answer to this message, if the client has trained on it before."""
        stored = self.read(round) if round in self.rounds() else None
        return stored if stored and stored.message == message else None

    def read(self, round: int) -> StoredRound | None:
        """A stored round; None if it is damaged."""
        try:
            text, upload = self.store.checkpoint(round)
            about, flat = json.loads(text), load(self.store.state(_SELF, round))
            kept = unflatten(self.method.types()["kept"], group_by_first_name(flat).get("kept", {}))
            return StoredRound(round, str(about["message"]), kept, load(upload), dict(about["figures"]))
        except DAMAGED:
            return None
        finally:
            self.store.close()

    def write(self, stored: StoredRound, oldest: int) -> None:
        """Store a round. Later rounds are deleted, because they started from another state.

        Earlier rounds are kept if the server can go back to them: its oldest checkpoint is of `oldest` rounds. A
        database that is damaged as a whole is replaced by an empty one.
        """
        if self.store.exists() and not self.store.is_sound():
            self.store.delete()
        about = json.dumps({"message": stored.message, "figures": stored.figures})
        upload = save({name: value.clone() for name, value in stored.upload.items()})
        self.store.open_to_write()
        try:
            with self.store.transaction():
                self.store.remove_after(stored.round)
                self.store.put_states(stored.round, [(_SELF, state_bytes(stored.kept))])
                self.store.put_checkpoint(stored.round, about, upload)
                before = [number for number in self.store.checkpoints() if number < oldest]
                if before:  # the first one is the state at `oldest`
                    self.store.remove_before(before[0])
        finally:
            self.store.close()

    def write_message(self, task: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Store the server's newest message, with which the client's model predicts."""
        down = {name: value.clone() for name, value in tensors.items() if name.startswith("down/")}
        about = json.dumps({"task": task, "check": content_hash(down, task)})
        write_atomically(self.folder / _MESSAGE_FILE, save(down, {"about": about}))

    def message(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The server's newest message: what the client was to do, and the tensors. An error if there is none."""
        path = self.folder / _MESSAGE_FILE
        try:
            tensors, about = _read(path)
            if about["check"] == content_hash(tensors, about["task"]):
                return about["task"], tensors
            problem = "it is damaged"
        except DAMAGED as error:
            problem = str(error)
        raise UserError(f"{path} cannot be read: {problem}. Let the client take part in a round.")


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and what it says about them."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["about"])


def newest_run(folder: Path) -> str:
    """The run in which a client took part last, from its store."""
    messages = sorted(folder.glob(f"*/{_MESSAGE_FILE}"), key=lambda path: path.stat().st_mtime)
    if not messages:
        raise UserError(f"{folder} has no round of a federation. Let the client take part in one.")
    return messages[-1].parent.name
