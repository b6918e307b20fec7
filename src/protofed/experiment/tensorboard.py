"""TensorBoard's copy of rounds.jsonl: every number of a round as a scalar (extra `protofed[tensorboard]`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.experiment.folder import json_value


def require_tensorboard() -> None:
    """Is TensorBoard installed?"""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise UserError(
            "run.tensorboard: TensorBoard is not installed. pip install 'protofed[tensorboard]', or leave it out: "
            "rounds.jsonl has the same numbers."
        ) from None


def scalars(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a line of rounds.jsonl by name; lists and what was not measured are left out.

    >>> dict(scalars({"round": 3, "loss": {"pull": 0.5}, "accuracy_global": None, "clients": [0, 1], "up_params": 7}))
    {'loss/pull': 0.5, 'up_params': 7}
    """
    for key, value in row.items():
        if key == "loss":
            yield from scalars(value, "loss/")
        elif isinstance(value, int | float) and key != "round":
            yield f"{above}{key}", value


class TensorBoard:
    """The event files in a folder, made anew from the rounds so far, so that a resumed run has no round twice."""

    def __init__(self, folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if folder.exists():
            shutil.rmtree(folder)
        self.writer = SummaryWriter(str(folder))
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """One more round."""
        for name, value in scalars(json_value(dict(row))):
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
