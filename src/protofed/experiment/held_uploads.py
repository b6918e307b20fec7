"""The uploads of a round: in memory up to a budget, the others in a temporary file, each read when it is looked at."""

from __future__ import annotations

import tempfile
import weakref
from typing import IO, Any, NamedTuple

from safetensors.torch import load

from protofed.core import Upload
from protofed.engines.engine import Report
from protofed.messages import group_by_first_name, message_size, to_bytes, unflatten


class _Place(NamedTuple):
    """Where a message is in the file of the uploads of a round."""

    held: HeldUploads
    start: int
    length: int


class StoredUpload(Upload[Any]):
    """An upload with its message in a file. Every look at the message reads it, unless it was replaced by another."""

    @property
    def message(self) -> Any:
        stored: Any = self[4]
        return stored.held.read(stored) if isinstance(stored, _Place) else stored


class HeldUploads:
    """What holds the uploads of one round. `declared`: the type of a message; `budget`: bytes of messages in memory."""

    def __init__(self, declared: Any, budget: float) -> None:
        self.declared, self.budget = declared, budget
        self.in_memory = 0
        self.file: IO[bytes] | None = None

    def hold(self, report: Report) -> Report:
        """The report, with its upload in the file if there is no room in memory."""
        upload = report.upload
        size = message_size(upload.message).bytes
        if self.in_memory + size <= self.budget:
            self.in_memory += size
            return report
        if self.file is None:
            self.file = tempfile.TemporaryFile(prefix="protofed-")  # noqa: SIM115
            weakref.finalize(self, self.file.close)  # with the last upload of the round
        content = to_bytes({"up": upload.message})
        place = _Place(self, self.file.seek(0, 2), len(content))
        self.file.write(content)
        return report._replace(upload=StoredUpload(*upload[:4], place, upload.round))

    def read(self, place: _Place) -> Any:
        """The message at a place in the file."""
        assert self.file is not None
        self.file.seek(place.start)
        flat = load(self.file.read(place.length))
        return unflatten(self.declared, group_by_first_name(flat).get("up", {}))
