"""MLflow gets the options of a run and the numbers of rounds.jsonl, in a local file store; a resumed run continues."""

from __future__ import annotations

import builtins
import sys
from types import ModuleType

import pytest

from protofed import run
from protofed.errors import UserError
from protofed.experiment.mlflow import MLflow
from protofed.experiment.tensorboard import scalars

TABLE = {"data": {"clients": 3}, "method": {"pull": 0.5}}


def rounds(number: int) -> dict:
    return {**TABLE, "run": {"rounds": number, "watchers": ["mlflow"]}}


def test_without_mlflow_a_run_says_so_before_it_begins(tmp_path, monkeypatch):
    def missing(name: str, *args: object, **more: object) -> object:
        if name == "mlflow":
            raise ImportError(name)
        return imported(name, *args, **more)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"pip install 'protofed\[mlflow\]'"):
        run(rounds(1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run(rounds(1))  # without a folder there is nothing to watch


@pytest.mark.slow  # importing MLflow takes seconds
@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_mlflow_has_the_numbers_of_the_rounds_each_once(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'protofed[mlflow]' to test it")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run(rounds(2), tmp_path / "first")
    result = run(rounds(4), tmp_path / "first", resume=True)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("mine")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("first", "FINISHED")
    assert (found.data.params["method.pull"], found.data.params["run.rounds"]) == ("0.5", "2")
    for name, _ in scalars(result.rounds[-1]):
        history = [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name)]
        assert history == [(row["round"], pytest.approx(dict(scalars(row))[name])) for row in result.rounds], name


class Server:
    """A tracking server that is away from time to time, as MLflow's client shows it."""

    class AwayError(Exception):
        pass

    def __init__(self) -> None:
        self.is_away, self.steps, self.status = False, [], "RUNNING"

    def log_batch(self, run_id: str, metrics: list) -> None:
        self._answer()
        self.steps += [metric[3] for metric in metrics]

    def set_terminated(self, run_id: str, status: str) -> None:
        self._answer()
        self.status = status

    def _answer(self) -> None:
        if self.is_away:
            raise self.AwayError("connection refused")


@pytest.fixture
def watcher(tmp_path, monkeypatch):
    """A watcher of a run that has started, without MLflow itself."""
    modules = {"mlflow.exceptions": {"MlflowException": Server.AwayError}, "mlflow.entities": {"Metric": lambda *a: a}}
    for name, content in {"mlflow": {}, **modules}.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    watcher = MLflow(tmp_path)
    watcher.client, watcher.run_id = Server(), "7"
    return watcher


def test_rounds_during_an_outage_are_stored_after_it_in_order(watcher):
    server = watcher.client
    watcher.round({"round": 1, "seconds": 0.5})
    server.is_away = True
    with pytest.warns(RuntimeWarning, match="MLflow cannot store round 2 now: connection refused. The run continues"):
        watcher.round({"round": 2, "seconds": 0.5})
    watcher.round({"round": 3, "seconds": 0.5})  # one warning is enough; a second one would be an error here
    assert server.steps == [1]
    server.is_away = False
    watcher.round({"round": 4, "seconds": 0.5})
    assert server.steps == [1, 2, 3, 4]
    watcher.finished(None)
    watcher.closed()
    assert server.status == "FINISHED"


@pytest.mark.parametrize("is_finished", [True, False])
def test_an_outage_at_the_end_leaves_the_result_alone(is_finished, watcher):
    watcher.client.is_away = True
    with pytest.warns(RuntimeWarning, match="MLflow cannot store round 1 now"):
        watcher.round({"round": 1, "seconds": 0.5})
    if is_finished:
        watcher.finished(None)
        watcher.client.is_away = False  # it is back when the run is closed
    watcher.closed()
    assert (watcher.client.steps, watcher.client.status) == (([1], "FINISHED") if is_finished else ([], "RUNNING"))
