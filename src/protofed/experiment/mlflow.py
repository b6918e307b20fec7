"""The numbers of rounds.jsonl for MLflow, each as a metric per round (extra `protofed[mlflow]`).

They go where MLflow is set up to store them: $MLFLOW_TRACKING_URI and $MLFLOW_EXPERIMENT_NAME, or else MLflow's default
and the experiment "protofed". The options of the experiment are parameters of the MLflow run.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.errors import UserError
from protofed.experiment.folder import json_value, write_atomically
from protofed.experiment.tensorboard import scalars
from protofed.experiment.watchers import Watcher

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.members import Members
    from protofed.experiment.results import Result, RoundRow

_PARAMS_PER_CALL = 100
"""MLflow takes no more parameters at once."""


class MLflow(Watcher):
    """Writes one MLflow run per run folder. A resumed run continues it: mlflow.txt in the run folder has its number.

    A tracking server that is away does not end the run: rounds that could not be stored are stored with a later one.
    """

    def __init__(self, folder: Path) -> None:
        self.run_folder, self.id_file = folder, folder / "mlflow.txt"
        self.client: Any = None  # until the run starts
        self.run_id, self.logged, self.status = "", 0, "KILLED"
        self.waiting: dict[int, list[Any]] = {}  # the metrics of rounds that are not stored yet
        self.has_warned = False

    @classmethod
    def require(cls) -> None:
        try:
            import mlflow  # noqa: F401
        except ImportError:
            raise UserError(
                "run.watchers: MLflow is not installed. Run pip install 'protofed[mlflow]', or leave it out: "
                "rounds.jsonl has the same numbers."
            ) from None

    def started(self, config: Config, members: Members, rounds: Sequence[RoundRow], notes: Sequence[str]) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._open(config)
        except MlflowException as problem:
            raise UserError(f"run.watchers: MLflow cannot store the run: {problem}") from problem
        for row in rounds:
            self.round(row)

    def _open(self, config: Config) -> None:
        """Start an MLflow run, or continue that of the run folder."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient()
        if self.id_file.exists():
            self.run_id = self.id_file.read_text(encoding="utf-8").strip()
            history = self.client.get_metric_history(self.run_id, "seconds")
            self.logged = max((metric.step for metric in history), default=0)
            self.client.update_run(self.run_id, "RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "protofed")
            experiment = self.client.get_experiment_by_name(name)
            number = experiment.experiment_id if experiment else self.client.create_experiment(name)
            run = self.client.create_run(
                number, run_name=self.run_folder.name, tags={"protofed.folder": str(self.run_folder.resolve())}
            )
            self.run_id = run.info.run_id
            write_atomically(self.id_file, f"{self.run_id}\n".encode())
            params = [Param(key, str(value)[:500]) for key, value in _flat(config.table())]
            for first in range(0, len(params), _PARAMS_PER_CALL):
                self.client.log_batch(self.run_id, params=params[first : first + _PARAMS_PER_CALL])

    def round(self, row: RoundRow) -> None:
        from mlflow.entities import Metric

        if row["round"] <= self.logged:
            return
        now = int(time.time() * 1000)
        metrics = [Metric(key, float(value), now, row["round"]) for key, value in scalars(json_value(dict(row)))]
        self.waiting[row["round"]] = metrics
        self._store()

    def finished(self, result: Result) -> None:
        self.status = "FINISHED"

    def closed(self) -> None:
        if self.client and self.run_id:
            self._store(is_last=True)

    def _store(self, is_last: bool = False) -> None:
        """Store the rounds that are waiting, in order, and at the end how the run ended. The first failure is shown."""
        from mlflow.exceptions import MlflowException

        try:
            for number in list(self.waiting):
                self.client.log_batch(self.run_id, metrics=self.waiting[number])
                del self.waiting[number]
            if is_last:
                self.client.set_terminated(self.run_id, self.status)
        except (MlflowException, OSError) as problem:
            if not self.has_warned:
                self.has_warned = True
                what = f"round {min(self.waiting)}" if self.waiting else "the end of the run"
                warnings.warn(
                    f"MLflow cannot store {what} now: {problem}. The run continues; what is missing is stored when the "
                    "server answers again, or by protofed run --resume. rounds.jsonl has the same numbers.",
                    RuntimeWarning,
                    stacklevel=2,
                )


def _flat(table: dict[str, Any]) -> list[tuple[str, Any]]:
    """The options as "section.key" and value; of several [[net]] tables all together, as one value."""
    sections = {name: keys if isinstance(keys, dict) else {"": keys} for name, keys in table.items()}
    return [(f"{name}.{key}".rstrip("."), value) for name, keys in sections.items() for key, value in keys.items()]
