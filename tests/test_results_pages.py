"""The results pages: their tables and the numbers in their sentences follow from kept figures."""

from __future__ import annotations

import json
import math
import re
import runpy
from collections import Counter

import pytest

from kept import DOCS, Kept, text_of
from protofed.data.summary import size_statistics
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.recipes import recipe_file
from protofed.measures.correlation import pearson
from protofed.measures.intervals import Interval, paired
from protofed.studies.reproduce import published
from protofed.studies.reproduce.studies import STUDIES
from protofed.studies.reproduce.study import orderings, paper_mean

STUDY_FILES = [
    file for file in sorted((DOCS / "data").glob("*.json")) if "cells" in json.loads(file.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("file", sorted(DOCS.glob("*.md")), ids=lambda file: file.stem)
def test_tables_between_marks_are_what_the_script_writes(file):
    script = runpy.run_path(str(DOCS.parents[1] / "scripts" / "results_tables.py"))
    text = file.read_text(encoding="utf-8")
    assert script["with_tables"](text) == text, "run python scripts/results_tables.py"


def test_every_kept_table_is_on_a_page():
    marks = runpy.run_path(str(DOCS.parents[1] / "scripts" / "results_tables.py"))["MARKED"]
    marked = {name for file in DOCS.glob("*.md") for name, _ in marks.findall(file.read_text(encoding="utf-8"))}
    assert {file.stem for file in STUDY_FILES} <= marked


def test_the_page_of_segmentation_has_the_number_of_runs(tmp_path):
    study = STUDIES["protomargin-figure5"]
    assert f"# {len(study.jobs(tmp_path, study.seeds, False))} runs;" in text_of("segmentation.md")


def test_tables_of_another_version_of_a_study_are_not_shown(monkeypatch, tmp_path):
    script = runpy.run_path(str(DOCS.parents[1] / "scripts" / "results_tables.py"))
    monkeypatch.setitem(script["tables"].__globals__, "DOCS", tmp_path)
    assert script["tables"]("fedproto-table1") == "This table has not been run yet."
    (tmp_path / "data").mkdir()
    stored = json.loads((DOCS / "data" / "fedproto-table1.json").read_text())
    for cell in stored["cells"]:
        cell["digest"] = "0"
    (tmp_path / "data" / "fedproto-table1.json").write_text(json.dumps(stored))
    assert script["tables"]("fedproto-table1").startswith("The kept figures are those of an earlier version")


def test_the_papers_own_spreads_repeat():
    """FedNH's Table 1: the ± of PM(V) and PM(L) are the same numbers for CIFAR-10 and CIFAR-100."""
    repeated = 0
    for alpha in (0.3, 1.0):
        first, second = (published.FEDNH_TABLE1[data, alpha] for data in ("cifar10", "cifar100"))
        for method in second:
            repeated += [value.partition("±")[2] for value in first[method][1:]] == [
                value.partition("±")[2] for value in second[method][1:]
            ]
    assert repeated == 10
    assert "for fednh, fedavg, fedrod, local and fedproto, with both values of alpha" in text_of("fednh.md")


def mpfedcl_sentences() -> list[str]:
    few, mnist = Kept("mpfedcl-table5-few"), Kept("mpfedcl-table6")

    def paper(row: str) -> float:
        return paper_mean(published.MPFEDCL_TABLE5[row][-1])

    over = {other: few.gap("mp", other, "mean") for other in ("fedavg", "fedproto", "local", "sp", "dp")}
    assert over["fedavg"].excludes_zero
    assert over["fedproto"].excludes_zero
    assert over["local"].excludes_zero
    assert not over["sp"].excludes_zero
    assert not over["dp"].excludes_zero
    alone, below = few.gap("local", "fedavg", "mean"), few.gap("fedavg", "fedproto", "mean")
    assert alone.excludes_zero
    assert below.excludes_zero
    assert min(map(paper, ("mp", "fedavg", "fedprox", "fedproto"))) > paper("local")
    assert abs(few.gap("fedavg", "fedprox", "mean").mean) < 0.001
    level = {row: 100 * few.mean(row, "mean").mean for row in ("mp", "local")}
    seventh, eighth = published.MPFEDCL_TABLE7, published.MPFEDCL_TABLE8
    pairs = [paper_mean(table[row][1]) for table in (seventh, eighth) for row in ("sp", "mp")]
    assert pairs[0] > pairs[1]
    assert pairs[2] > pairs[3]
    balanced = {row: mnist.gap(row, "fedavg", "balanced") for row in ("mp", "sp", "dp")}
    assert all(gap.excludes_zero for gap in balanced.values())
    others = {row: mnist.gap("mp", row, "balanced") for row in ("sp", "dp")}
    assert not any(gap.excludes_zero for gap in others.values())
    for column in ("balanced", "balanced, ReLU"):
        means = [mnist.mean(row, column).mean for row in ("mp", "sp", "dp", "fedavg", "fedprox", "fedproto")]
        assert means == sorted(means, reverse=True)
    relu = mnist.gap("mp", "fedavg", "balanced, ReLU")
    assert not relu.excludes_zero
    fall = paired(*(mnist.by_place["fedavg", f"balanced{net}"].accuracy for net in (", ReLU", "")))
    assert fall
    seeds = [f"{100 * share:.1f}" for share in mnist.by_place["fedavg", "balanced, ReLU"].accuracy.values()]

    def percent(row: str, column: str) -> str:
        return f"{100 * mnist.mean(row, column).mean:.1f}"

    return [
        f"mp is above fedavg by {over['fedavg'].percent()} points in the mean over the domains, above fedproto by "
        f"{over['fedproto'].percent()} and above training alone by {over['local'].percent()}; none",
        f"The paper has {paper('mp') - paper('fedavg'):.1f}, {paper('mp') - paper('fedproto'):.1f} and "
        f"{paper('mp') - paper('local'):.1f} points. Training alone is above fedavg here, by {alone.percent()}; in",
        f"mp - sp is {over['sp'].percent()} and mp - dp {over['dp'].percent()}.",
        "({} and {}, {} and {})".format(*pairs[:2], pairs[2], f"{pairs[3]:.2f}"),
        f"The level is {paper('mp') - level['mp']:.1f} points below the paper's for mp ({level['mp']:.1f} against "
        f"{paper('mp')}) and {level['local'] - paper('local'):.1f} above it for training alone "
        f"({level['local']:.1f} against {paper('local'):.2f}).",
        f"mp has {100 * few.mean('mp', 'Synth').mean:.1f} (61.00), on MNIST-M "
        f"{100 * few.mean('mp', 'MNIST-M').mean:.1f} (51.20)",
        f"fedproto by prototype is {below.percent()} below fedavg, in the paper "
        f"{paper('fedproto') - paper('fedavg'):.1f} above it.",
        f"above fedavg by {balanced['mp'].percent()}, {balanced['sp'].percent()} and {balanced['dp'].percent()} points.",
        f"from sp ({others['sp'].percent('+')}) and dp ({others['dp'].percent('+')});",
        f"fedavg falls from {percent('fedavg', 'balanced')} to {percent('fedavg', 'balanced, ReLU')} "
        f"({seeds[0]}, {seeds[1]} and {seeds[2]} in seeds 0 to 2; the paper has 66.40), while mp by prototype does not "
        f"({percent('mp', 'balanced')} and {percent('mp', 'balanced, ReLU')}).",
        f"neither the fall ({fall.percent('+')}) nor mp - fedavg, which is {relu.percent('+')}:",
        f"on the clients' own test sets it has {percent('fedproto', 'own')} here",
    ]


def test_sentences_about_mpfedcl_follow_from_the_kept_figures():
    text = text_of("mpfedcl.md")
    assert [sentence for sentence in mpfedcl_sentences() if sentence not in text] == []


def test_sentences_about_mpfedcls_unfinished_tables_follow_from_the_kept_figures():
    text, fifth, seventh = text_of("mpfedcl.md"), Kept("mpfedcl-table5"), Kept("mpfedcl-table7")
    alone, sp, dp = (fifth.gap("mp", row, "mean") for row in ("local", "sp", "dp"))
    assert alone.number == 2  # with more seeds, other sentences are needed
    assert [gap.excludes_zero for gap in (alone, sp, dp)] == [True, False, False]
    shared = ("fedavg", "fedprox", "fedproto", "mp", "sp", "dp")
    assert fifth.mean("local", "mean").mean > max(fifth.mean(row, "mean").mean for row in shared)
    domains, skew = (
        {row: seventh.gap("mp", row, column) for row in ("sp", "fedavg", "local", "fedproto")}
        for column in ("Office, domains", "Office, Dir(0.5)")
    )
    assert {row: gap.excludes_zero for row, gap in domains.items()} == {
        "sp": True,
        "fedavg": True,
        "local": False,
        "fedproto": False,
    }
    assert [skew[row].excludes_zero for row in ("local", "fedproto", "fedavg")] == [True, True, False]
    level = 100 * seventh.mean("mp", "Office, domains").mean
    for sentence in (
        f"mp - local is {alone.percent('+')} in the mean over the domains with two seeds",
        f"mp - fedavg is {fifth.gap('mp', 'fedavg', 'mean').percent('+')} (paper: +25.99)",
        f"distinguished from sp ({sp.percent('+')}) and dp ({dp.percent('+')})",
        f"mp is above sp by {domains['sp'].percent()} points and above fedavg by {domains['fedavg'].percent()}; from "
        f"training alone ({domains['local'].percent('+')}) and fedproto ({domains['fedproto'].percent('+')})",
        f"mp is above training alone by {skew['local'].percent()} and fedproto by {skew['fedproto'].percent()}, and "
        f"cannot be distinguished from fedavg ({skew['fedavg'].percent('+')})",
        f"({level:.1f} against 49.70 for mp by domain)",
    ):
        assert sentence in text, sentence


def test_sentences_about_the_epochs_of_local_follow_from_the_kept_figures():
    text, kept = text_of("fedproto.md"), Kept("fedproto-local")

    def means(epochs: int, stdev: int) -> list[float]:
        return [100 * kept.mean(f"{epochs} epochs", f"n = {ways}, stdev {stdev}").mean for ways in (3, 4, 5)]

    def words(values: list[float]) -> str:
        return "{:.1f}, {:.1f} and {:.1f}".format(*values)

    papers = {stdev: [paper_mean(value) for value in published.FEDPROTO_MNIST["local", stdev]] for stdev in (2, 3)}
    assert (
        f"5 epochs give {words(means(5, 2))}, the paper has {papers[2][0]}, {papers[2][1]} and {papers[2][2]}" in text
    )
    assert f"they give {words(means(5, 3))}, the paper has {papers[3][0]}, {papers[3][1]} and {papers[3][2]}" in text
    assert f"6 epochs ({means(6, 3)[2]:.1f}) are nearer" in text
    gaps = [abs(ours - paper) for ours, paper in zip(means(5, 2), papers[2], strict=True)]
    assert max(gaps) < 0.7
    held_out = [paper - ours for ours, paper in zip(means(5, 3), papers[3], strict=True)]
    assert max(map(abs, held_out[:2])) < 0.6
    assert round(held_out[2], 1) == 1.1


def test_baselines_of_mpfedcls_table5_are_thirds_of_whole_percents():
    values = [
        paper_mean(value)
        for row in ("local", "fedavg", "fedprox", "fedproto")
        for value in published.MPFEDCL_TABLE5[row][:5]
    ]
    assert len(values) == 20
    assert all(abs(3 * value - round(3 * value)) < 0.02 for value in values)


def test_sentences_about_fednh_follow_from_the_kept_figures():
    kept, text = Kept("fednh-table1"), text_of("fednh.md")
    gaps = [kept.gap("fednh", "fedavg", column) for column in ("GM", "PM(V)", "PM(L)")]
    assert {gap.number for gap in gaps} == {1}  # with more seeds, other sentences are needed
    assert "above fedavg by {:.1f}, {:.1f} and {:.1f} points".format(*(100 * gap.mean for gap in gaps)) in text
    rows = [published.FEDNH_TABLE1["cifar10", 0.3][method] for method in ("fednh", "fedavg")]
    paper = [paper_mean(first) - paper_mean(second) for first, second in zip(*rows, strict=True)]
    assert "the paper's {:.2f}, {:.2f} and {:.2f}, but one seed has no interval".format(*paper) in text
    rod = [100 * kept.gap("fedrod", "fednh", column).mean for column in ("GM", "PM(V)", "PM(L)")]
    assert "fedrod, also with one seed, is above fednh by {:.1f}, {:.1f} and {:.1f} points".format(*rod) in text


def fedproto_sentences() -> list[str]:
    """About Table 1 with the rows that were run at paper scale."""
    kept, columns = Kept("fedproto-table1"), ("n = 3", "n = 4", "n = 5")
    personal, shared = {"local", "fedper", "fedrep", "fedproto", "fedproto mixed"}, {"fesem", "fedprox", "fedavg"}
    found = orderings(kept.results)
    kinds = Counter(
        "read-out"
        if better in personal and worse in shared
        else "fesem"
        if (better, worse) == ("fedavg", "fesem")
        else "prototype"
        if better in ("fedper", "fedrep") and worse.startswith("fedproto") and column in ("n = 4", "n = 5")
        else "another"
        for better, worse, column in found.reversals
    )
    assert set(kinds) == {"read-out", "fesem", "prototype"}
    assert (kinds["fesem"], kinds["prototype"]) == (1, 4)

    def means(row: str) -> list[float]:
        return [100 * kept.mean(row, column).mean for column in columns]

    def gaps(first: str, second: str) -> list[Interval]:
        return [kept.gap(first, second, column) for column in columns]

    def rounds(row: str) -> str:
        return "{}, {} and {}".format(*(kept.by_place[row, column].mean.converged for column in columns))

    assert {round(mean) for mean in means("local")} == {98}
    local = [paper_mean(published.FEDPROTO_MNIST["local", 2][column]) for column in range(3)]
    assert {round(mean) for mean in local} == {93, 94}
    over = gaps("fedproto, by head", "local")
    assert [gap.excludes_zero for gap in over] == [True, False, True]
    for row in ("fedper", "fedrep"):
        assert not any(gap.excludes_zero for gap in gaps("fedproto, by head", row))
    assert not any(gap.excludes_zero for gap in gaps("fedproto", "local"))
    assert means("fedproto") == sorted(means("fedproto"), reverse=True)
    mixed = gaps("fedproto mixed", "fedproto")
    assert not any(gap.excludes_zero for gap in mixed)
    assert all((gap.half or 0) + abs(gap.mean) > 0.005 for gap in mixed)  # half a point is not excluded
    at_3 = {row: result.mean for (row, column), result in kept.by_place.items() if column == "n = 3" and result.runs}
    running = [100 * (figures.running or 0) for figures in at_3.values()]
    sent = {(row, column): result.mean.sent for (row, column), result in kept.by_place.items() if result.runs}
    ours, theirs = sent["fedproto", "n = 3"], sent["fedavg", "n = 3"]
    received = 20 * 10 * 50  # clients, classes, numbers per prototype
    paper_fedavg = [paper_mean(value) for value in published.FEDPROTO_MNIST["fedavg", 2]]
    for row, figures in published.FEDPROTO_SENT["mnist"].items():
        paper_sent = 1000 * float(figures.rpartition(", ")[0])
        assert abs(sent[row, "n = 4"] - paper_sent) <= 0.05 * paper_sent, row
    more = paired(*({seed: float(run.converged or 0) for seed, run in kept.by_place[row, "n = 5"].runs.items()}
                    for row in ("fedproto", "fedper")))  # fmt: skip
    assert more
    alone = [Kept(f"fedproto-{name}").by_place[row, column].accuracy[0]
             for name, row, column in (("table1", "local", "n = 3"), ("local", "100 epochs", "n = 3, stdev 2"))]  # fmt: skip
    return [
        f"needs {more.mean:.0f} ± {more.half or 0:.0f} rounds more than fedper at n = 5",
        f"this one has {100 * alone[0]:.2f} for `local` at n = 3 with seed 0",
        f"(data/fedproto-local.json) {100 * alone[1]:.2f} for the same run",
        f"{kinds['read-out']} of the {found.reversed} reversals have a personal model above a shared one",
        f"falls from n = 3 to n = 5 ({paper_fedavg[0]:.1f} to {paper_fedavg[2]:.1f}), ours rises "
        f"({means('fedavg')[0]:.1f} to {means('fedavg')[2]:.1f})",
        "above `local` by {} points at n = 3, {} at n = 4 and {} at n = 5".format(
            *(f"{100 * gap.mean:.2f} ± {100 * (gap.half or 0):.2f}" for gap in over)
        ),
        "as in the paper: {:.1f}, {:.1f} and {:.1f} %".format(*means("fedproto")),
        "differs from fedproto with one net by {}, {} and {} points by prototype".format(
            *(gap.percent() for gap in mixed)
        ),
        f"fedproto's ± is {100 * (at_3['fedproto'].running or 0):.2f} (paper: 0.30)",
        f"every method is small: {min(running):.1f} to {max(running):.1f}.",
        f"over clients is {100 * (at_3['fedproto'].spread or 0):.1f} for fedproto, "
        f"{100 * (at_3['local'].spread or 0):.1f} for `local`",
        f"{theirs:,.0f} (20 models of {theirs / 20:,.0f} parameters) against 430,000",
        f"{sent['fedper', 'n = 4']:,.0f} (the convolutions alone) against 106,000 and 110,000",
        f"and {sent['fedproto', 'n = 4']:,.0f} against 4,000",
        f"fedproto sends {ours:,.0f} on average, the prototypes of {ours / 50:.0f} classes",
        f"numbers each: {theirs / ours:.0f} times fewer than fedavg",
        f"all ten prototypes, {received:,} numbers per round for all clients: {theirs / received:.0f} times fewer",
        f"By prototype it needs {rounds('fedproto')} at n = 3, 4 and 5; fedper {rounds('fedper')}, fedrep "
        f"{rounds('fedrep')}, fedavg {rounds('fedavg')}. By head it needs {rounds('fedproto, by head')},",
    ]


def fedproto_figure_sentences() -> list[str]:
    """About Fig. 2 to 4. The kept figures of Fig. 4 are of an earlier version of the study."""

    def stored(name: str) -> dict[tuple[str, str], dict[int, float]]:
        cells = json.loads((DOCS / "data" / f"{name}.json").read_text(encoding="utf-8"))["cells"]
        return {
            (cell["row"], cell["column"]): {int(seed): run["accuracy"] for seed, run in cell["runs"].items()}
            for cell in cells
        }

    def percent(runs: dict[int, float]) -> str:
        return f"{100 * Interval.of(list(runs.values())).mean:.1f}"

    second, third, fourth = stored("fedproto-figure2"), stored("fedproto-figure3"), stored("fedproto-figure4")
    tests = {row: percent(runs) for (row, _), runs in second.items()}
    ends = {
        row: [percent(third[row, f"partition.shots={shots}"]) for shots in (100, 10)]
        for row in ("fedproto", "fedproto, by head", "fedavg")
    }
    pulls = {pull: percent(fourth["fedproto", f"method.pull={pull}"]) for pull in (0, 0.5, 1, 4)}
    by_head = [percent(runs) for (row, _), runs in fourth.items() if row == "fedproto, by head"]
    rise = paired(fourth["fedproto", "method.pull=0.5"], fourth["fedproto", "method.pull=0"])
    loss = paired(fourth["fedproto", "method.pull=4"], fourth["fedproto", "method.pull=1"])
    assert rise
    assert rise.excludes_zero
    assert loss
    assert not loss.excludes_zero
    return [
        f"test accuracies {tests['fedproto']} (fedproto, by prototype), {tests['fedavg']} (fedavg), {tests['fesem']} "
        f"(fesem) and {tests['fedper']} % (fedper)",
        "fedproto goes from {} to {} % by prototype and from {} to {} by head, fedavg from {} to {}.".format(
            *ends["fedproto"], *ends["fedproto, by head"], *ends["fedavg"]
        ),
        f"once λ is above 0 ({pulls[0]} to {pulls[0.5]} %)",
        f"up to 4 ({pulls[1]} and {pulls[4]} % at 1 and 4",
        f"By head λ hardly matters ({min(by_head)} to {max(by_head)} %)",
    ]


@pytest.mark.parametrize("sentences", [fedproto_sentences, fedproto_figure_sentences])
def test_sentences_about_fedproto_follow_from_the_kept_figures(sentences):
    text = text_of("fedproto.md")
    assert [sentence for sentence in sentences() if sentence not in text] == []


def test_the_page_of_fedproto_has_the_number_of_runs_of_every_study(tmp_path):
    text = (DOCS / "fedproto.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(fedproto-[\w-]+)` \|.*\| (\d+) \|$", text, re.MULTILINE))
    studies = [study for name, study in STUDIES.items() if name.startswith("fedproto-")]
    assert {study.name: str(len(study.jobs(tmp_path, study.seeds, False))) for study in studies} == rows


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
