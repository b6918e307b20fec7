"""The ledger of a client: every message that leaves its machine, written down before it leaves."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

from safetensors.torch import save

from protofed.engines.flower.wire import content_hash
from protofed.experiment.folder import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

LEDGER_FILE = "sent.jsonl"


class Ledger:
    """The file sent.jsonl of a client, and with `keep` the content of each message in sent/."""

    def __init__(self, folder: Path, keep: bool) -> None:
        self.folder, self.keep = folder, keep

    def record(self, kind: str, tensors: Mapping[str, Tensor], figures: Mapping[str, Any]) -> int:
        """Write down a message, which may leave only after this has returned. Returns its bytes."""
        if not re.fullmatch("[a-z]+", kind):  # it is a part of the name of a file
            raise ValueError(f"the kind of a message is {kind!r}; must have only lower-case letters")
        digest = content_hash(tensors, figures)
        text = json.dumps(dict(figures), sort_keys=True)
        size = len(text) + sum(value.numel() * value.element_size() for value in tensors.values())
        content = None
        if self.keep:
            content = f"sent/{kind}-{figures.get('round', 0):06d}-{digest[:16]}.safetensors"
            (self.folder / "sent").mkdir(exist_ok=True)
            independent = {name: value.clone() for name, value in tensors.items()}  # safetensors refuses shared memory
            write_atomically(self.folder / content, save(independent, {"figures": text}))
        line = {
            "time": time.time(),
            "run": figures.get("run", ""),
            "round": figures.get("round"),
            "kind": kind,
            "tensors": [
                {"name": name, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
                for name, value in tensors.items()
            ],
            "figures": dict(figures),
            "bytes": size,
            "sha256": digest,
            "content": content,
        }
        path = self.folder / LEDGER_FILE
        torn = path.exists() and not _ends_with_newline(path)  # the machine died while it wrote a line
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{chr(10) if torn else ''}{json.dumps(line)}\n")
            file.flush()
            os.fsync(file.fileno())
        return size


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() in (b"", b"\n")


def read_ledger(folder: Path) -> list[dict[str, Any]]:
    """The lines of a client's ledger. A line that was not written completely is of the kind "unreadable"."""
    path, lines = folder / LEDGER_FILE, []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            lines.append({"kind": "unreadable", "round": None, "tensors": [], "figures": {}, "bytes": 0, "sha256": ""})
    return lines


def sent_uploads(folder: Path, run: str, is_masked: bool = False) -> dict[int, set[str]]:
    """The hashes of a client's uploads of a run that have left, by round; masked ones of a round count as one."""
    uploads: dict[int, set[str]] = {}
    for line in read_ledger(folder):
        if line["kind"] == "train" and line["run"] == run:
            uploads.setdefault(line["round"], set()).add("" if is_masked else line["sha256"])
    return uploads
