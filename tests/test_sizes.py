"""Honest figures for few examples: the majority-class baseline, intervals of accuracies, and cautions."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import protofed
from protofed.engines.engine import Evaluation
from protofed.experiment.accuracy import wilson_interval
from protofed.experiment.final_figures import accuracies_by_domain, majority_baseline
from protofed.models.join import join
from test_cli import protofed as command  # noqa: F401


def site(labels: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    y = np.array(labels, int)
    return np.random.RandomState(seed).normal(size=(len(y), 3)) + 3 * np.eye(3)[y], y


def test_the_majority_class_is_that_of_the_training_labels():
    own = protofed.Federation(
        [site([0, 0, 0, 1]), site([2, 2, 1]), site([]), site([1, 1])],
        test=[site([0, 1, 1, 1]), site([2, 2]), site([0]), None],
        classes=3,
    )
    members = own.members(own.config(protofed.Config.of({})))
    assert majority_baseline(members) == pytest.approx(
        (1 / 4 + 1) / 2
    )  # by the test labels it would be (3/4 + 1 + 1) / 3


def test_of_equally_frequent_training_classes_it_is_the_first():
    own = protofed.Federation([site([2, 1, 1, 2])], test=[site([2, 2, 2, 1])], classes=3)
    assert majority_baseline(own.members(own.config(protofed.Config.of({})))) == 1 / 4


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [
        (3, 4, 0.3006, 0.9544),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (15, 148, 0.0624, 0.1605),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_wilson_intervals_are_the_published_ones(correct, total, low, high):
    """The last four are the examples of Newcombe (1998), Table I, method 3."""
    assert wilson_interval(correct, total) == pytest.approx((low, high), abs=6e-5)


def test_no_examples_have_no_interval():
    assert wilson_interval(0, 0) is None


def test_clients_csv_has_the_intervals_and_the_screen_a_caution(command):  # noqa: F811
    words = ("--set", "run.rounds=1", "--set", "data.clients=3", "--set", "partition.test=2", "--out", "r")
    code, out, _ = command("run", *words)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("Careful: ")]
    with Path("r/clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        total, accuracy = int(row["test"]), float(row["accuracy_head"])
        low, high = wilson_interval(round(accuracy * total), total)
        assert (float(row["wilson_low_head"]), float(row["wilson_high_head"])) == pytest.approx((low, high))
    fewest = min(int(row["test"]) for row in rows)
    assert line == (
        f"Careful: 3 of 3 clients have fewer than 20 test examples (the fewest: {fewest}), where one example is "
        f"{100 / fewest:.1f} points of accuracy. clients.csv has the 95 % interval of each accuracy."
    )
    assert protofed.Result.load("r").clients[0]["wilson_low_head"] == float(rows[0]["wilson_low_head"])


def test_enough_examples_need_no_caution(command):  # noqa: F811
    words = ("--set", "run.rounds=1", "--set", "data.clients=3", "--set", "partition.test=20", "--out", "r")
    assert "Careful" not in command("run", *words)[1]


def test_a_client_without_a_test_set_has_empty_intervals(tmp_path):
    own = protofed.Federation([site([0, 1] * 5), site([0, 1] * 5)], test=[site([0, 1]), None])
    result = own.run({"run": {"rounds": 1}}, tmp_path / "run")
    assert [row["wilson_high_head"] is None for row in result.clients] == [False, True]
    assert protofed.Result.load(tmp_path / "run", own).clients[1]["wilson_low_prototype"] is None


def test_a_difference_on_four_rows_is_called_chance():
    result = protofed.Federation([site([0, 1] * 10), site([0, 1] * 10)]).run({"run": {"rounds": 1}})
    newcomer = join(result, site([0, 1] * 10, 1), site([0, 1, 0, 1], 2), epochs=1)
    text = newcomer.text().splitlines()[-1]
    assert text.startswith("Careful: with 4 test examples, one example is 25.0 points. The 95 % intervals of both ")
    assert text.endswith("so the difference may be chance.")


def test_a_large_difference_on_many_rows_is_not():
    result = protofed.Federation([site([0, 1] * 10), site([0, 1] * 10)]).run({"run": {"rounds": 1}})
    newcomer = join(result, site([0, 1] * 10, 1), site([0, 1] * 50, 2), epochs=1)
    far = type(newcomer)(**{**vars(newcomer), "accuracy": {"head": 0.9}, "alone": 0.6})
    assert "Careful" not in far.text()
    near = type(newcomer)(**{**vars(newcomer), "accuracy": {"head": 0.9}, "alone": 0.88})
    assert "(83 to 94 % and 80 to 93 %)" in near.text()


def test_domains_are_reported_only_if_every_client_has_one():
    tested = [Evaluation(0, {"head": 3}, 4), Evaluation(1, {"head": 1}, 4), Evaluation(2, {"head": 4}, 4)]
    of_one_each = SimpleNamespace(groups=("a", "b", "a"))
    by_head = {domain: ways["head"] for domain, ways in accuracies_by_domain(of_one_each, tested).items()}
    assert by_head == {"a": 0.875, "b": 0.25}
    assert accuracies_by_domain(SimpleNamespace(groups=("a", "", "a")), tested) is None
    assert accuracies_by_domain(SimpleNamespace(groups=()), tested) is None
