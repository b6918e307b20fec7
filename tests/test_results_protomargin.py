"""The results page of prototype-guided FL: the numbers in its sentences follow from kept figures."""

from __future__ import annotations

import json
import math

from kept import DOCS, Kept, text_of
from protofed.data.summary import size_statistics
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.recipes import recipe_file
from protofed.measures.correlation import pearson
from protofed.studies.reproduce import published


def weight_of_the_first(first: float, second: float) -> float:
    """Eq. (11), (12): the weight of the first of two clients, from their sums of margins."""
    scores = [1 / (1 + math.exp(-margins)) for margins in (first, second)]
    return scores[0] / sum(scores)


def test_the_example_of_both_readings_of_prototype_guided_fl():
    text = text_of("protomargin.md")
    printed, reversed_ = (100 * weight_of_the_first(2 * sign, 0) for sign in (1, -1))
    assert f"gives the idle client {printed:.0f} % of the weight and the one that learned {100 - printed:.0f} %" in text
    assert f"the idle client has {reversed_:.0f} % and the other {100 - reversed_:.0f} %" in text


def test_table1_of_prototype_guided_fl_is_that_of_the_partitions():
    rows = json.loads((DOCS / "data" / "protomargin-table1.json").read_text(encoding="utf-8"))["rows"]
    synthetic, *mnist = rows
    assert (synthetic["dataset"], [row["dataset"] for row in mnist]) == ("synthetic", ["mnist"] * 3)
    members = Members.of(Config.load(recipe_file("protomargin-synthetic")))
    sizes = [len(train) + len(test) for train, test in zip(members.train, members.test, strict=True)]
    assert synthetic["all"] == size_statistics(sizes)
    assert synthetic["nine_tenths"] == size_statistics([size * 9 // 10 for size in sizes])
    shares = [round(100 * row["most_frequent"]) for row in mnist]
    assert (
        f"{100 * synthetic['most_frequent']:.0f} % of the synthetic examples and {min(shares)} to {max(shares)} % of "
        "MNIST's have the most frequent class" in text_of("protomargin.md")
    )


def test_the_papers_own_tables_have_another_correlation_of_margin_and_accuracy():
    """FedAvg, FedProx and FedProto on synthetic data, MNIST, FEMNIST and CelebA, then the centralised models."""
    margins = [0.45, 2.38, 1.15, 0.34, 0.48, 2.14, 1.14, 0.47, 0.63, 2.49, 1.51, 0.48, 0.60, 8.68, 3.61, 0.48]
    accuracies = [72.3, 88.8, 75.1, 86.2, 74.8, 91.7, 81.1, 86.4, 78.7, 93.3, 82.5, 87.8, 78.5, 99.0, 99.4, 92.6]
    text = text_of("protomargin.md")
    for number, words in ((12, "give {:.2f} (p = {:.2f})"), (16, "models {:.2f} (p = {:.3f})")):
        found = pearson(margins[:number], accuracies[:number])
        assert words.format(found.rho, found.p_value) in text
    assert f"correlation of {published.PROTOMARGIN_RHO} between margin and accuracy" in text


def test_sentences_about_prototype_guided_fl_follow_from_the_kept_figures():
    kept, text = Kept("protomargin-table3-small"), text_of("protomargin.md")
    equal = "fairness + toleration"
    printed, reversed_, d_plus, readings = (
        kept.gap(first, second, "slow 0.8")
        for first, second in (
            ("protomargin", equal),
            ("protomargin, deviation", equal),
            ("protomargin, d+ only", equal),
            ("protomargin, deviation", "protomargin"),
        )
    )
    assert f"weights with toleration by {printed.percent('+')} points" in text
    assert printed.excludes_zero
    assert printed.mean < 0
    assert f"the difference is {reversed_.percent('+')}, and d+ with its printed sign has {d_plus.percent('+')}" in text
    assert f"above protomargin as printed by {readings.percent()} points" in text
    assert not any(gap.excludes_zero for gap in (reversed_, d_plus, readings))
    run_so_far = {place for place, result in kept.by_place.items() if len(result.runs) == 3}
    rows = ("protomargin", "protomargin, deviation", "protomargin, d+ only", equal, "fedavg")
    assert run_so_far == {(row, "slow 0.8") for row in rows}  # with another result, other sentences are needed
