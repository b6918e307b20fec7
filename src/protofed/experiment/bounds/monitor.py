"""The bounds of the papers during a run, or during its repetition. They change no bit of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.core import AnyMethod
from protofed.experiment.bounds.of_fednh import FEDNH_BOUNDS
from protofed.experiment.bounds.of_fedproto import FEDPROTO_BOUNDS
from protofed.experiment.bounds.of_mpfedcl import MPFEDCL_BOUNDS
from protofed.experiment.bounds.paper import BoundRow, PaperBounds
from protofed.experiment.bounds.probe import Moment, probe_round
from protofed.experiment.folder import json_value, write_atomically
from protofed.experiment.watchers import Watcher
from protofed.methods import METHODS
from protofed.methods.fednh import FedNH
from protofed.methods.fedproto import FedProto
from protofed.methods.mpfedcl import MpFedCL
from protofed.plugins import label

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.folder import Folder
    from protofed.experiment.members import Members
    from protofed.experiment.results import RoundRow
    from protofed.experiment.runner import Runner

BOUNDS_FILE = "bounds.jsonl"
"""The file of a run folder that the monitor writes: a line per client and monitored round."""
_BOUNDS_BY_METHOD: dict[type[AnyMethod], PaperBounds[Any]] = {
    FedProto: FEDPROTO_BOUNDS,
    FedNH: FEDNH_BOUNDS,
    MpFedCL: MPFEDCL_BOUNDS,
}
METHODS_WITH_BOUNDS = [name for name, kind in METHODS.items() if kind in _BOUNDS_BY_METHOD]


def bounds_of(method: AnyMethod) -> PaperBounds[Any] | None:
    """The bounds of the method's paper; None if no paper proves any for it."""
    return next((bounds for kind, bounds in _BOUNDS_BY_METHOD.items() if isinstance(method, kind)), None)


def why_not_monitored(config: Config, folder: Folder | None) -> str:
    """Why a run with `run.monitor` is not monitored; "" if it is."""
    if not bounds_of(config.method):
        return f"no paper proves a bound for {label(config.method_name)}, so nothing is monitored"
    if config.privacy.is_on and config.privacy.encoder != "none":
        return f"no bound holds for training with privacy.encoder = {config.privacy.encoder}, so nothing is monitored"
    return "" if folder else "without a run folder (out) there is no bounds.jsonl to write"


def read_bounds(folder: Path) -> list[BoundRow]:
    """The rows of bounds.jsonl; [] if the run was not monitored."""
    path = folder / BOUNDS_FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


class BoundsMonitor(Watcher):
    """After every `every`-th round, repeats the round of each of its clients and computes the bounds.

    `folder`: the run folder that gets bounds.jsonl; None: the rows are only in `rows`.
    """

    def __init__(self, runner: Runner, every: int, folder: Path | None = None) -> None:
        self.runner, self.every, self.folder = runner, every, folder
        self.rows: list[BoundRow] = []
        self.before: Moment | None = None  # the moment before a round that is monitored

    def started(self, config: Config, members: Members, rounds: Sequence[RoundRow], notes: Sequence[str]) -> None:
        if self.folder:
            self.rows = [row for row in read_bounds(self.folder) if row["round"] <= len(rounds)]
            self._write()
        self._remember(len(rounds) + 1)

    def round(self, row: RoundRow) -> None:
        if self.before:
            self.rows += json_value(self._rows(row, self.before, self._moment()))
            self._write()
        self._remember(row["round"] + 1)

    def _moment(self) -> Moment:
        return Moment(self.runner.server, dict(self.runner.engine.state()))

    def _remember(self, next_round: int) -> None:
        self.before = self._moment() if next_round % self.every == 0 else None

    def _rows(self, row: Mapping[str, Any], before: Moment, after: Moment) -> list[BoundRow]:
        config, members = self.runner.config, self.runner.safeguards.members  # attackers with the data they train on
        slow = row.get("slow", {})
        work = {client: slow.get(str(client), config.train.work) for client in row["clients"]}
        number = row["round"] - 1
        method, bounds = config.method, bounds_of(config.method)
        assert bounds is not None
        probes = probe_round(method, members, config.run.seed, number, work, config.train, before, after)
        return [{"round": row["round"], **found} for found in bounds.rows(method, probes)] if probes else []

    def _write(self) -> None:
        if self.folder:
            lines = "".join(f"{json.dumps(row)}\n" for row in self.rows)
            write_atomically(self.folder / BOUNDS_FILE, lines.encode())
