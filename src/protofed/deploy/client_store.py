"""What a client keeps on its own disk: per round its state and the upload that it made, in one file.

A file is written in one atomic step, after training and before the upload leaves. So a message that is delivered twice,
or again after a crash, gets the stored upload, and the client trains once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from protofed.engines.flower.wire import content_hash
from protofed.errors import UserError
from protofed.experiment.folder import write_atomically
from protofed.messages import flatten, group_by_first_name, unflatten

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from protofed.core import AnyMethod


_MESSAGE_FILE = "message.safetensors"


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

    def rounds(self) -> list[int]:
        """The rounds that are stored, the newest first."""
        names = (path.stem for path in self.folder.glob("*.safetensors"))
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def newest(self, before: int) -> StoredRound | None:
        """The newest intact round below `before`; None if there is none. Damaged files are skipped."""
        return next((stored for number in self.rounds() if number < before and (stored := self.read(number))), None)

    def answer(self, round: int, message: str) -> StoredRound | None:
        """The stored answer to this message, if the client has trained on it before."""
        stored = self.read(round) if round in self.rounds() else None
        return stored if stored and stored.message == message else None

    def read(self, round: int) -> StoredRound | None:
        """A stored round; None if its file is damaged."""
        try:
            tensors, about = _read(self._path(round))
            check = about.pop("check")
            if check != content_hash(tensors, about) or about["round"] != round:
                return None
            parts = group_by_first_name(tensors)
            kept = unflatten(self.method.types()["kept"], parts.get("kept", {}))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            return None
        return StoredRound(round, about["message"], kept, parts.get("upload", {}), about["figures"])

    def write(self, stored: StoredRound, oldest: int) -> None:
        """Store a round. Later rounds are deleted, because they started from another state.

        Earlier rounds are kept if the server can go back to them: its oldest checkpoint is of `oldest` rounds.
        """
        for number in self.rounds():
            if number > stored.round:
                self._path(number).unlink()
        tensors = {f"kept/{name}": value.clone() for name, value in flatten(stored.kept).items()}
        tensors |= {f"upload/{name}": value.clone() for name, value in stored.upload.items()}
        about = {"round": stored.round, "message": stored.message, "figures": stored.figures}
        text = json.dumps({**about, "check": content_hash(tensors, about)})
        write_atomically(self._path(stored.round), save(tensors, {"about": text}))
        superseded = [number for number in self.rounds() if number < oldest][
            1:
        ]  # the first one is the state at `oldest`
        for number in superseded:
            self._path(number).unlink()

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
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            problem = str(error)
        raise UserError(f"{path} cannot be read: {problem}. Let the client take part in a round.")

    def _path(self, round: int) -> Path:
        return self.folder / f"{round:06d}.safetensors"


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
