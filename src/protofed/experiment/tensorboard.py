"""The numbers of rounds.jsonl for TensorBoard, each as a scalar per round (extra `protofed[tensorboard]`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofed.errors import UserError
from protofed.experiment.folder import json_value
from protofed.experiment.watchers import Watcher

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.experiment.config import Config
    from protofed.experiment.members import Members
    from protofed.experiment.results import RoundRow


def scalars(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The names and values of all numbers in a line of rounds.jsonl, without lists and missing values.

    >>> dict(scalars({"round": 3, "loss": {"pull": 0.5}, "accuracy_global": None, "clients": [0, 1], "up_params": 7}))
    {'loss/pull': 0.5, 'up_params': 7}
    """
    for key, value in row.items():
        if key == "loss":
            yield from scalars(value, "loss/")
        elif isinstance(value, int | float) and key != "round":
            yield f"{prefix}{key}", value


class TensorBoard(Watcher):
    """Writes event files to tensorboard/ in the run folder. A resumed run writes those of its earlier rounds again."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "tensorboard"
        self.writer: Any = None  # until the run starts: a run that is refused leaves earlier files alone

    @classmethod
    def require(cls) -> None:
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            raise UserError(
                "run.watchers: TensorBoard is not installed. Run pip install 'protofed[tensorboard]', or leave it out: "
                "rounds.jsonl has the same numbers."
            ) from None

    def started(self, config: Config, members: Members, rounds: Sequence[RoundRow], notes: Sequence[str]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self.files.exists():
            shutil.rmtree(self.files)
        self.writer = SummaryWriter(str(self.files))
        for row in rounds:
            self.round(row)

    def round(self, row: RoundRow) -> None:
        for name, value in scalars(json_value(dict(row))):
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()

    def closed(self) -> None:
        if self.writer:
            self.writer.close()
