"""MLflow gets the options of a run and the numbers of rounds.jsonl, in a local file store; a resumed run continues."""

from __future__ import annotations

import builtins

import pytest

from protofed import run
from protofed.errors import UserError
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
