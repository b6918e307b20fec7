"""Read-outs that make methods comparable: heads among a client's own classes, and the server's model on all data."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import toys
from protofed.core import Batch, Loss, Method, Net, Params, Scores
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked
from protofed.experiment.provenance import _commit, versions_and_processor
from protofed.experiment.server_model import mean_cross_entropy, server_columns


@dataclass(frozen=True)
class Fixed(Method[tuple[()], tuple[()], tuple[()], dict[str, torch.Tensor]]):
    """A method that scores class 0 highest, class 1 next and class 2 lowest, whatever the input."""

    def join(self, client):
        return client.fresh_params()

    def receive(self, kept, down) -> Params:
        return kept

    def keep(self, trained):
        return trained.params

    def loss(self, net: Net, params: Params, batch: Batch, down, kept) -> Loss:
        return Loss(zero=0 * net(params, batch.x)[1].sum())

    def predict(self, net: Net, params: Params, x, down, kept) -> Scores:
        return {"head": torch.tensor([3.0, 2.0, 1.0]).expand(len(x), 3)}


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_head_own_chooses_among_the_classes_that_the_client_trains_on(engine):
    members = toys.federation([[0, 1, 2], [1, 2], [2, 2], []])
    runner = toys.played_on(engine, toys.config(Fixed(), rounds=1), members)
    correct = [evaluation.correct for evaluation in runner.evaluations]
    # each test set has one example per class: class 0 always wins among all, the first class it holds among its own
    assert [counts.get("head", 0) for counts in correct] == [1, 1, 1, 0]
    assert [counts.get("head_own", 0) for counts in correct] == [1, 1, 1, 0]
    labels = [[0, 0, 0], [1, 1], [2, 2, 1]]
    members = toys.federation(labels)
    tests = tuple(toys.examples(own, 100 + seed) for seed, own in enumerate(([0, 0, 2], [1, 1, 0], [2, 1, 1])))
    members = members.__class__(**{**members.__dict__, "test": tests})
    runner = toys.played_on(engine, toys.config(Fixed(), rounds=1), members)
    assert [evaluation.correct for evaluation in runner.evaluations] == [
        {"head": 2, "head_own": 2},  # 0 for all three
        {"head": 1, "head_own": 2},  # only 1 is left
        {"head": 0, "head_own": 2},  # 1 before 2
    ]
    accuracy = toys.figures(runner)["accuracy"]
    assert accuracy["head"]["mean"] == pytest.approx(1 / 3)
    assert accuracy["head_own"]["mean"] == pytest.approx(2 / 3)
    assert runner.rounds[-1]["accuracy_head_own"] == accuracy["head_own"]["mean"]


def test_a_client_without_training_examples_has_no_answer_among_its_own_classes():
    members = toys.federation([[0], []])
    members = members.__class__(**{**members.__dict__, "test": (toys.examples([0], 1), toys.examples([0, 1], 2))})
    runner = toys.played(toys.config(Fixed(), rounds=1), members)
    assert runner.evaluations[1].correct == {"head": 1, "head_own": 0}


def server_model(x: torch.Tensor) -> Scores:
    return {"head": torch.tensor([math.log(2), 0.0, 0.0]).expand(len(x), 3)}  # probabilities 1/2, 1/4, 1/4


def test_the_server_on_the_union_of_own_test_sets_and_on_all_training_examples():
    members = toys.federation([[0, 0, 1], [2]])
    tests = (toys.examples([0, 0, 0], 1), toys.examples([0, 1, 2, 1, 2], 2))
    own = tuple(part._replace(own=True) for part in members.parts)
    members = members.__class__(**{**members.__dict__, "test": tests, "parts": own})
    columns = server_columns(server_model, members, training_loss=True)
    assert columns["accuracy_global"] == pytest.approx(1 / 3)  # five of each class in the balanced set
    assert columns["accuracy_global_union"] == 4 / 8  # 3 of 3 and 1 of 5; the mean over clients would be 0.6
    assert columns["loss_global"] == pytest.approx((2 * math.log(2) + 2 * math.log(4)) / 4)  # labels 0, 0, 1, 2


def test_columns_of_the_server_are_there_only_if_they_can_be():
    members = toys.federation([[0, 0, 1], [2]])
    assert set(server_columns(server_model, members, training_loss=False)) == {"accuracy_global"}
    assert server_columns(lambda x: {}, members, training_loss=True) == {"accuracy_global": None, "loss_global": None}
    assert mean_cross_entropy(server_model, [toys.examples([])]) is None


def test_union_and_training_loss_of_a_run(tmp_path):
    import protofed

    words = [
        "data.name=digits",
        "data.limit=200",
        "data.clients=4",
        "method.name=fedavg",
        "run.rounds=2",
        "partition.shots=4",
    ]
    words += ["eval.test=own", "eval.training_loss=true", "run.eval_every=2"]
    result = protofed.run(protofed.Config.load(None, words), tmp_path / "run")
    clients = result.clients
    correct = sum(round(row["accuracy_head"] * row["test"]) for row in clients if row["test"])  # all have it
    assert result.summary["global"]["union"] == pytest.approx(correct / sum(row["test"] for row in clients))
    assert result.summary["global"]["training_loss"] > 0
    first, last = result.rounds
    assert "loss_global" not in first
    assert last["loss_global"] == result.summary["global"]["training_loss"]
    resumed = protofed.run(protofed.Config.load(None, [*words, "run.rounds=3"]), tmp_path / "run", resume=True)
    assert "loss_global" in resumed.rounds[1]
    assert "loss_global" in resumed.rounds[2]


def test_versions_name_what_made_a_result(tmp_path):
    versions = versions_and_processor()
    assert versions["torch"] == torch.__version__
    assert versions["processor"].endswith(torch.backends.cpu.get_cpu_capability())
    assert json.loads(json.dumps(versions)) == versions
    assert _commit(tmp_path) is None  # not a checkout
    root = Path(__file__).parents[1]
    if (root / ".git").exists():
        assert len(_commit(root / "src" / "protofed").rstrip("+")) == 12
