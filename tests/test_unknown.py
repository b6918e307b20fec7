"""Rules for unknown inputs: scores and limits by hand, what is measured, and the kept table."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import protofed
from protofed.errors import UserError
from protofed.experiment.folder import Folder
from protofed.experiment.sections import EvalSection
from protofed.experiment.stored import read_settings, summary_so_far
from protofed.experiment.unknown import RULES, UnknownRule, calibrate, fitted_rule, halves, limit_for, separation
from protofed.methods.fedproto import FedProto
from test_cli import protofed as command  # noqa: F401

TOP = Path(__file__).parents[1]
sys.path.insert(0, str(TOP / "benchmarks"))
import unknown as benchmark  # noqa: E402

OWN = torch.tensor([True, True, False])
TABLE = {"run": {"rounds": 3}, "data": {"clients": 4}}


def never() -> torch.Tensor:
    raise AssertionError("no embeddings are needed")


def test_softmax_is_one_minus_the_largest_probability_of_an_own_class():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]))
    assert UnknownRule("softmax", OWN).scores({"head": logits}, never).tolist() == pytest.approx([0.5, 0.8])


def test_softmax_tells_almost_certain_inputs_apart():
    logits = torch.tensor([[60.0, 0.0, 0.0], [90.0, 0.0, 0.0]])  # 1 - p is 2 exp(-60) and 2 exp(-90)
    scores = UnknownRule("softmax", OWN).scores({"head": logits}, never)
    assert scores.tolist() == pytest.approx([2 * math.exp(-60), 2 * math.exp(-90)], rel=1e-9)


def test_energy_is_over_own_classes():
    logits = torch.log(torch.tensor([[2.0, 3.0, 95.0]]))
    assert UnknownRule("energy", OWN).scores({"head": logits}, never).item() == pytest.approx(-math.log(5))


def test_prototype_is_the_distance_in_units_of_the_spread():
    means = torch.tensor([[0.0, 0.0], [10.0, 0.0], [4.0, 0.0]])  # the third class is not the client's
    rule = UnknownRule("prototype", OWN, means=means, spreads=torch.tensor([1.0, 4.0, 1.0]))
    scores = rule.scores({}, lambda: torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    assert scores.tolist() == pytest.approx(
        [7 / 4, 6 / 4]
    )  # nearer to class 1 in its wide spread: min(3, 7/4), min(4, 6/4)


def test_the_limit_is_the_conformal_quantile():
    scores = torch.arange(1.0, 101.0)
    assert limit_for(scores, 0.05) == 96.0  # 101 * 0.95 = 95.95: the 96th of 100
    assert limit_for(scores, 0.5) == 51.0
    assert limit_for(scores[:10], 0.05) == 10.0  # 19 are needed for 5 %
    assert limit_for(scores[:0], 0.05) is None
    assert limit_for(torch.tensor([1.0, torch.nan]), 0.05) is None


def test_the_promised_rate_is_kept_on_average():
    draw = torch.Generator().manual_seed(0)
    scores = torch.rand(400, 40, generator=draw, dtype=torch.double)
    rule = UnknownRule("softmax", OWN)
    flagged = [
        replace(rule, limit=limit_for(row[:39], 0.05)).exceeded(row[39:]).item() for row in scores
    ]  # exceeded with probability 2/40; 400 cases: a standard deviation of 0.011
    assert 0.01 < np.mean(flagged) < 0.09


def test_separation_counts_ties_half():
    assert separation(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0, 0.0])) == pytest.approx((1.5 + 2 + 0) / 6)
    assert separation(torch.tensor([1.0]), torch.tensor([])) is None
    assert separation(torch.tensor([torch.nan]), torch.tensor([1.0])) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return protofed.run(TABLE, tmp_path_factory.mktemp("runs") / "run")


def test_the_limit_does_not_depend_on_the_examples_that_are_measured(run):
    """Half of each class of a client's test set sets the limit, the other half is measured."""
    members, model = run.state.members, run.state.model(1)
    held_out, measured = halves(members.test[1])
    assert not set(held_out.index.tolist()) & set(measured.index.tolist())
    assert len(held_out) + len(measured) == len(members.test[1])
    rule = fitted_rule(model, "softmax")
    stored = run.unknown["1"]
    with torch.no_grad():
        by_hand = model.unknown_scores(rule, held_out.take(torch.arange(len(held_out)))[0])
        others = model.unknown_scores(rule, measured.take(torch.arange(len(measured)))[0])
    assert stored["limit"] == pytest.approx(by_hand.max().item(), rel=1e-4)  # fewer than 19 examples
    assert stored["held_out"] == len(held_out)
    assert stored["own"] == len(measured)
    assert stored["own_flagged"] == (others > stored["limit"] * (1 + 1e-4)).sum().item()
    other = replace(members, test=(*members.test[:1], held_out, *members.test[2:]), validation=(held_out,) * 4)
    assert calibrate(model, rule, 0.05, other).rule.limit == pytest.approx(
        stored["limit"], rel=1e-4
    )  # validation sets it


def test_the_summary_is_over_the_clients(run):
    unknown, by_client = run.summary["unknown"], list(run.unknown.values())
    assert (unknown["rule"], unknown["aim"], unknown["clients"]) == ("softmax", 0.05, 4)
    assert unknown["false_alarms"] == pytest.approx(
        sum(row["own_flagged"] for row in by_client) / sum(row["own"] for row in by_client)
    )
    assert unknown["auc"] == pytest.approx(np.mean([row["auc"] for row in by_client]))


def test_foreign_examples_have_classes_that_the_client_does_not_train_on(run):
    members = run.state.members
    for client, row in run.unknown.items():
        labels = members.train[int(client)].labels.unique().tolist()
        assert row["classes"] == labels
        assert row["foreign"] == min(200, sum(label not in labels for label in members.balanced[0].labels.tolist()))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_predicts_from_a_folder_as_it_did_in_the_run(rule, tmp_path, run):
    result = protofed.run({**TABLE, "eval": {"unknown": rule}}, tmp_path / "run")
    x = run.state.members.balanced[0].x[:40].numpy()
    again = protofed.Result.load(tmp_path / "run").predict(x, 1)
    assert again.dtype.names == ("label", "scores", "unknown")
    np.testing.assert_array_equal(again, result.predict(x, 1))
    one_by_one = np.concatenate([result.predict(x[[place]], 1) for place in range(len(x))])
    np.testing.assert_array_equal(one_by_one["unknown"], again["unknown"])
    assert 0 < again["unknown"].sum() < 40


def test_without_a_rule_or_a_test_set_nothing_is_marked():
    result = protofed.run({**TABLE, "eval": {"unknown": "none"}})
    assert result.summary["unknown"] == {
        "rule": None, "aim": 0.05, "false_alarms": None, "found": None, "auc": None, "clients": 0
    }  # fmt: skip
    x = np.zeros((1, 8, 8))
    assert result.predict(x, 0).dtype.names == ("label", "scores")
    draw = np.random.RandomState(0)
    own = protofed.Federation([(draw.normal(size=(20, 4)), np.arange(20) % 2)] * 2, test=[None, None])
    assert own.run({"run": {"rounds": 1}}).unknown == {}


@pytest.mark.parametrize("rule", RULES)
def test_a_client_without_training_examples_marks_nothing(rule):
    draw = np.random.RandomState(0)
    data = (draw.normal(size=(20, 4)), np.arange(20) % 2)
    own = protofed.Federation([data, data, (np.zeros((0, 4)), np.zeros(0, int))], test=[data, data, data])
    assert set(own.run({"run": {"rounds": 1}, "eval": {"unknown": rule}}).unknown) == {"0", "1"}


@dataclass(frozen=True)
class WithoutHead(FedProto):
    """FedProto that predicts by prototype alone."""

    def predict(self, net, params, x, down, kept):
        return {way: scores for way, scores in super().predict(net, params, x, down, kept).items() if way != "head"}


@pytest.mark.parametrize("rule", RULES)
def test_a_method_without_a_head_has_only_the_rule_by_prototype(rule):
    table = {**TABLE, "method": {"name": WithoutHead}, "eval": {"unknown": rule}}
    result = protofed.run(table)
    assert result.summary["accuracy"]["head"] is None
    assert result.summary["accuracy"]["prototype"]["mean"] > 0.3
    assert bool(result.unknown) == (rule == "prototype")


def test_a_run_that_was_stopped_shows_accuracies_of_a_method_without_a_head(tmp_path):
    class Stop(protofed.Watcher):
        def round(self, row):
            if row["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        protofed.run({**TABLE, "method": {"name": WithoutHead}}, tmp_path / "run", watchers=[Stop()])
    rounds = Folder(tmp_path / "run").rounds()
    summary = summary_so_far(read_settings(tmp_path / "run" / "config.toml"), Folder(tmp_path / "run"), rounds)
    assert summary["accuracy"]["prototype"]["mean"] == rounds[-1]["accuracy_prototype"] > 0.3


def test_the_servers_model_marks_nothing():
    result = protofed.run({**TABLE, "method": {"name": "fedavg"}})
    x = np.zeros((1, 8, 8))
    assert "unknown" not in result.predict(x).dtype.names
    assert "unknown" in result.predict(x, 2).dtype.names


def test_a_folder_of_an_earlier_version_opens_and_marks_nothing(run, tmp_path):
    result = protofed.run(TABLE, tmp_path / "old")
    (tmp_path / "old" / "unknown.json").unlink()
    (tmp_path / "old" / "reach.json").write_text('{"0": [null, 1.5]}')
    stored = json.loads((tmp_path / "old" / "result.json").read_text())
    del stored["unknown"]
    (tmp_path / "old" / "result.json").write_text(json.dumps(stored))
    again = protofed.Result.load(tmp_path / "old")
    found = again.predict(np.zeros((2, 8, 8)), 0, "prototype")
    assert found.dtype.names == ("label", "scores", "distance")
    np.testing.assert_array_equal(found["distance"], result.predict(np.zeros((2, 8, 8)), 0, "prototype")["distance"])
    protofed.run({**TABLE, "run": {"rounds": 4}}, tmp_path / "old", resume=True)
    assert not (tmp_path / "old" / "reach.json").exists()
    assert (tmp_path / "old" / "unknown.json").exists()


def test_the_screen_shows_both_rates(command):  # noqa: F811
    code, out, _ = command("run", "--set", "run.rounds=1", "--set", "data.clients=3", "--out", "r")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("Rule for unknown inputs")]
    unknown = json.loads(Path("r/result.json").read_text())["unknown"]
    assert line == (
        f"Rule for unknown inputs, softmax: it marks {100 * unknown['false_alarms']:.1f} % of test examples of a "
        f"client's own classes (aim: 5 %) and {100 * unknown['found']:.1f} % of examples of other classes "
        f"(AUC {unknown['auc']:.2f})."
    )


def test_the_measure_has_every_rule(command):  # noqa: F811
    command("run", "--set", "run.rounds=1", "--set", "data.clients=3", "--out", "r", "--quiet")
    rows = json.loads(command("measure", "r", "--what", "unknown", "--json")[1])["unknown"]["rows"]
    assert list(rows) == [*RULES, "server_prototype"]
    assert rows["softmax"]["auc"] == pytest.approx(json.loads(Path("r/result.json").read_text())["unknown"]["auc"])


def test_the_table_of_the_docs_is_the_kept_one():
    kept = json.loads(benchmark.KEPT.read_text())
    assert benchmark.table(kept) in (TOP / "docs" / "own-data.md").read_text(encoding="utf-8")


def test_the_default_is_the_best_rule_and_good_everywhere():
    kept = json.loads(benchmark.KEPT.read_text())
    cells = [(data, method) for data in benchmark.SETTINGS for method in benchmark.METHODS]
    area = {
        rule: [np.mean([rows[rule]["auc"] for rows in benchmark.runs_of(kept, *cell)]) for cell in cells]
        for rule in RULES
    }
    assert len(kept) == 3 * len(cells)
    assert max(area, key=lambda rule: np.mean(area[rule])) == EvalSection().unknown
    assert min(area[EvalSection().unknown]) >= 0.8
    found = {
        method: 100
        * np.mean(
            [rows["softmax"]["found"] for data in benchmark.SETTINGS for rows in benchmark.runs_of(kept, data, method)]
        )
        for method in benchmark.METHODS
    }
    shared = [found[method] for method in ("fedavg", "fednh", "mpfedcl")]
    said = f"{found['fedproto']:.0f} % (fedproto) and {found['local']:.0f} % (local)"
    said += f", compared with {min(shared):.0f} to {max(shared):.0f} % if clients share one model"
    assert said in " ".join((TOP / "docs" / "own-data.md").read_text(encoding="utf-8").split())
    dropped = [rows["server_prototype"]["auc"] for rows in benchmark.runs_of(kept, "mnist", "fedproto")]
    assert np.mean(dropped) < 0.5


@pytest.mark.slow
def test_a_cell_of_the_kept_table_comes_out_again():
    kept = json.loads(benchmark.KEPT.read_text())["digits fedproto 0"]
    found = benchmark.measured("digits", "fedproto", 0)
    for rule in RULES:
        assert found[rule]["auc"] == pytest.approx(kept[rule]["auc"], abs=0.02)


def test_a_run_that_diverged_is_named_as_the_reason_why_no_rule_can_be_measured():
    result = protofed.run({**TABLE, "method": {"name": "local"}, "train": {"lr": 1e30}}, progress=False)
    with pytest.raises(UserError, match="its run has diverged"):
        protofed.measure(result, "unknown")
