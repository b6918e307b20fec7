"""The results page of FedProto: the numbers in its sentences follow from kept figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pytest

from kept import DOCS, Kept, text_of
from protofed.data.partitions.base import Labels
from protofed.data.partitions.by_class import NWay
from protofed.measures.intervals import Interval, paired
from protofed.studies.reproduce import published
from protofed.studies.reproduce.studies import STUDIES
from protofed.studies.reproduce.study import CellResult, orderings, paper_mean
from protofed.studies.sweep import DISTANCE


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


def test_sentences_about_table2_follow_from_the_kept_figures():
    kept, text, columns = Kept("fedproto-table2"), text_of("fedproto.md"), ("n = 3", "n = 4", "n = 5")
    first = Kept("fedproto-table1")

    def gaps(one: str, other: str, of: Kept = kept) -> list[Interval]:
        return [of.gap(one, other, column) for column in columns]

    def words(one: str, other: str) -> str:
        return "{}, {} and {}".format(*(gap.percent("+") for gap in gaps(one, other)))

    fedavg, head, local = "fedavg, own classes", "fedproto, own classes", "local, own classes"
    assert f"the head of fedavg gains {words(fedavg, 'fedavg')} points. - Read out" in text
    assert (
        f"fedavg differs from fedproto by prototype by {words(fedavg, 'fedproto')}; from fedproto by head by " in text
    )
    assert f"by head by {words(fedavg, head)}, and from `local` by {words(fedavg, local)}." in text
    by_head, by_prototype = words("fedproto, by head", "local"), words("fedproto", "local")
    assert f"differs from `local` by {by_head} by head and by {by_prototype} by prototype. In the paper" in text
    paper = [[paper_mean(value) for value in published.FEDPROTO_MNIST[row, 3]] for row in ("fedproto", "local")]
    above = [ours - theirs for ours, theirs in zip(*paper, strict=True)]
    assert "In the paper it is {:.2f}, {:.2f} and {:.2f} above its Local.".format(*above) in text
    pairs = ((fedavg, "fedproto"), (fedavg, head), (fedavg, local), ("fedproto, by head", "local"))
    for pair in pairs:
        assert all(gap.mean > 0 for gap in (*gaps(*pair), *gaps(*pair, of=first)))
    sure = [[gap.excludes_zero for gap in gaps(*pair)] for pair in pairs]
    assert sure == [[True, False, True], [False, False, True], [False, True, True], [False, True, False]]
    assert not any(gap.excludes_zero for gap in gaps("fedproto", "local"))
    alone = [100 * kept.mean("local", column).mean for column in columns]
    assert f"`local` has {min(alone):.1f} to {max(alone):.1f} %, where the paper has 93 to 94" in text
    assert {int(value) for value in paper[1]} == {93, 94}
    run_so_far = {row for (row, _), result in kept.by_place.items() if result.runs}
    assert run_so_far == {"fedavg", "fedproto", "local", "fedproto, by head", fedavg, head, local}


def words_of_both(kept: Kept, first: str, second: str) -> list[str]:
    """The differences at n = 3, 4 and 5, with stdev 1 and with stdev 2."""
    gaps = [[kept.gap(first, second, f"n = {n}, stdev {stdev}").percent("+") for n in (3, 4, 5)] for stdev in (1, 2)]
    return ["{}, {} and {}".format(*of_stdev) for of_stdev in gaps]


def sure_of_both(kept: Kept, first: str, second: str) -> list[bool]:
    """Whether the interval of the difference excludes 0, in the columns of stdev 1 and then of stdev 2."""
    columns = [f"n = {n}, stdev {stdev}" for stdev in (1, 2) for n in (3, 4, 5)]
    return [kept.gap(first, second, column).excludes_zero for column in columns]


def papers_above_local(figures: Mapping[tuple[str, int], Sequence[str]]) -> list[str]:
    """By how much FedProto is above Local in the paper, with stdev 1 and with stdev 2."""
    pairs = [zip(figures["fedproto", stdev], figures["local", stdev], strict=True) for stdev in (1, 2)]
    return [
        "{:.2f}, {:.2f} and {:.2f}".format(*(paper_mean(ours) - paper_mean(local) for ours, local in of_stdev))
        for of_stdev in pairs
    ]


FEDAVG_OWN, PROTO_OWN = "fedavg, own classes", "fedproto, own classes"
ROWS_SO_FAR = {"fedavg", "fedproto", "local", "fedproto, by head", FEDAVG_OWN, PROTO_OWN, "local, own classes"}


def among_ten_of_both(kept: Kept) -> list[str]:
    """fedproto's nearest prototype of all classes, less fedavg, at n = 3, 4 and 5, with stdev 1 and with stdev 2."""
    texts = []
    for stdev in (1, 2):
        gaps = [kept.gap_among_all("fedavg", f"n = {n}, stdev {stdev}") for n in (3, 4, 5)]
        texts.append("{}, {} and {}".format(*(gap.percent("+") for gap in gaps)))
    return texts


@pytest.mark.parametrize(
    ("name", "figures"),
    [("fedproto-table3", published.FEDPROTO_FEMNIST), ("fedproto-table4", published.FEDPROTO_CIFAR10)],
)
def test_sentences_about_both_stand_ins_follow_from_the_kept_figures(name, figures):
    kept, text = Kept(name), text_of("fedproto.md")
    alike, by_head, over_local = (words_of_both(kept, FEDAVG_OWN, row) for row in ("fedproto", PROTO_OWN, "local"))
    own, prototype = (words_of_both(kept, row, "local") for row in ("fedproto, by head", "fedproto"))
    papers = papers_above_local(figures)
    for sentence in (
        f"fedavg differs from fedproto by prototype by {alike[0]} (stdev 2: {alike[1]}), from fedproto by head by "
        f"{by_head[0]} ({by_head[1]}), and from `local` by {over_local[0]} ({over_local[1]}).",
        f"fedproto differs from `local` by head by {own[0]} ({own[1]}), and by prototype by {prototype[0]} "
        f"({prototype[1]}). In the paper it is {papers[0]} ({papers[1]}) above its Local.",
        "mong all ten classes, fedproto by prototype differs from fedavg by {} ({})".format(*among_ten_of_both(kept)),
    ):
        assert sentence in text, sentence
    assert {row for (row, _), result in kept.by_place.items() if result.runs} == ROWS_SO_FAR


def test_what_is_said_of_the_stand_in_for_femnist_is_so():
    kept = Kept("fedproto-table3")
    assert not any(sure_of_both(kept, "fedproto", "local"))
    pairs = (("fedproto, by head", "local"), (FEDAVG_OWN, "fedproto"), (FEDAVG_OWN, "local"))
    assert [sum(sure_of_both(kept, *pair)) for pair in pairs] == [3, 5, 4]
    for stdev in (1, 2):
        gains = [kept.gap(FEDAVG_OWN, "local", f"n = {n}, stdev {stdev}").mean for n in (3, 4, 5)]
        assert gains == sorted(gains)


def test_what_is_said_of_the_stand_in_for_cifar10_is_so():
    kept = Kept("fedproto-table4")
    columns = [f"n = {n}, stdev {stdev}" for stdev in (1, 2) for n in (3, 4, 5)]
    assert all(kept.gap("fedproto", "local", column).mean < 0 for column in columns)
    assert sum(sure_of_both(kept, "fedproto", "local")) == 4
    assert all(sure_of_both(kept, FEDAVG_OWN, "fedproto"))
    assert max(abs(kept.gap("fedproto, by head", "local", column).mean) for column in columns) < 0.0025
    alone = [round(100 * kept.mean("local", column).mean) for column in columns]
    paper = [round(paper_mean(value)) for value in published.FEDPROTO_CIFAR10["local", 1]]
    assert (min(alone), max(alone), min(paper), max(paper)) == (87, 92, 59, 80)


NO_GAP = Interval(0, None, 0)


def with_figures_by_head(kept: Kept, result: CellResult) -> CellResult:
    """A cell of fedproto by prototype with the figures of the same runs by head; any other cell as it is."""
    by_head = kept.by_place.get((f"{result.cell.row}, by head", result.cell.column))
    return result._replace(runs=by_head.runs) if by_head else result


def fedproto_sentences() -> list[str]:
    """About Table 1 with the rows that were run at paper scale."""
    kept, columns = Kept("fedproto-table1"), ("n = 3", "n = 4", "n = 5")
    personal, shared = {"local", "fedper", "fedrep", "fedproto", "fedproto mixed"}, {"fesem", "fedprox", "fedavg"}
    found = orderings(kept.results)
    of_heads = orderings([with_figures_by_head(kept, result) for result in kept.results])
    with_papers = [result.cell for result in kept.results if result.cell.paper]
    near = sum(
        one.column == other.column and abs(paper_mean(one.paper) - paper_mean(other.paper)) < 0.3
        for one, other in combinations(with_papers, 2)
    )
    kinds = Counter(
        "read-out"
        if better in personal and worse in shared
        else "fesem"
        if (better, worse) == ("fedavg", "fesem")
        else "prototype"
        if better in ("fedper", "fedrep") and worse.startswith("fedproto")
        else "another"
        for better, worse, _ in found.reversals
    )
    assert set(kinds) == {"read-out", "fesem", "prototype"}
    assert (kinds["fesem"], kinds["prototype"]) == (1, 4)
    at_three = [(better, worse) for better, worse, column in found.reversals if column == "n = 3"
                and better in personal and worse in shared]  # fmt: skip
    assert len(at_three) == 4
    alike = {
        (one, other): kept.gap(f"{one}, own classes", f"{other}, own classes", "n = 3")
        for one in ("local", "fedper", "fedrep", "fedproto", "fedproto mixed")
        for other in shared
    }
    assert [pair for pair, gap in alike.items() if gap.excludes_zero and gap.mean > 0] == [("fedper", "fesem")]
    settings = [
        kept.gap(row, other, "n = 3") for row, other in (("fedavg equal", "fedavg"), ("fesem 2 groups", "fesem"))
    ]
    assert not any(gap.excludes_zero for gap in settings)

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
    assert [gap.mean - (gap.half or 0) < -0.005 for gap in mixed] == [False, False, True]  # half a point
    at_3 = {row: result.mean for (row, column), result in kept.by_place.items() if column == "n = 3" and result.runs}
    running = [100 * (figures.running or 0) for figures in at_3.values()]
    sent = {(row, column): result.mean.sent for (row, column), result in kept.by_place.items() if result.runs}
    ours, theirs = sent["fedproto", "n = 3"], sent["fedavg", "n = 3"]
    received = 20 * 10 * 50  # clients, classes, numbers per prototype
    paper_fedavg = [paper_mean(value) for value in published.FEDPROTO_MNIST["fedavg", 2]]
    for row, figures in published.FEDPROTO_SENT["mnist"].items():
        paper_sent = 1000 * float(figures.rpartition(", ")[0])
        assert abs(sent[row, "n = 4"] - paper_sent) <= 0.05 * paper_sent, row
    more = [
        paired(*({seed: float(run.converged or 0) for seed, run in kept.by_place[row, column].runs.items()}
                 for row in ("fedproto", "fedper")))
        for column in columns
    ]  # fmt: skip
    assert not any(gap is None or gap.excludes_zero for gap in more)

    def fewer(row: str, other: str, column: str) -> Interval:
        by_row = [
            {seed: float(run.converged or 0) for seed, run in kept.by_place[name, column].runs.items()}
            for name in (other, row)
        ]
        return paired(*by_row) or NO_GAP

    than_fedavg = [fewer("fedproto", "fedavg", column) for column in columns]
    by_head = [fewer("fedproto, by head", "fedper", column) for column in columns]
    assert [gap.excludes_zero for gap in than_fedavg] == [False, True, False]
    assert [gap.excludes_zero for gap in by_head] == [False, False, True]
    fedrep = [kept.gap(f"{row}, own classes", "fedrep, own classes", "n = 3") for row in ("fedprox", "fedavg")]
    assert all(gap.excludes_zero for gap in fedrep)
    (below,) = {gap.percent() for gap in fedrep}
    return [
        f"fedprox and fedavg are above fedrep, by {below} points each",
        f"only fedper is above a shared model (fesem, by {alike['fedper', 'fesem'].percent()})",
        "differ from fedavg and fesem by {} and {} points".format(*(gap.percent("+") for gap in settings)),
        f"With fedproto by head instead of by prototype, {of_heads.same} hold, {of_heads.reversed} are reversed and "
        f"{of_heads.open} are undecided. In {near} of the {sum(found[:3])} the paper's own figures differ by less than 0.3",
        "it needs {:.0f} ± {:.0f} and {:.0f} ± {:.0f} rounds fewer than fedavg at n = 3 and 4, and {:.0f} ± {:.0f} more "
        "at n = 5".format(
            *(part for gap in than_fedavg for part in (abs(gap.mean), gap.half)),
        ),
        f"By head it needs {by_head[2].mean:.0f} ± {by_head[2].half:.0f} fewer than fedper at n = 5",
        f"{kinds['read-out']} of the {found.reversed} reversals have a personal model above a shared one",
        f"falls from n = 3 to n = 5 ({paper_fedavg[0]:.1f} to {paper_fedavg[2]:.1f}), ours rises "
        f"({means('fedavg')[0]:.1f} to {means('fedavg')[2]:.1f})",
        "it differs from `local` by {} points at n = 3, {} at n = 4 and {} at n = 5".format(
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


def among_all_ten(kept: Kept) -> list[list[Interval]]:
    """At n = 3, 4 and 5: fedproto's nearest prototype of all classes, less that of its own, than fedavg, than local."""
    gaps = [[kept.gap_among_all(other, f"n = {n}") for n in (3, 4, 5)] for other in ("fedproto", "fedavg", "local")]
    assert all(gap.number == 3 for row in gaps for gap in row)
    return gaps


def read_out_sentences() -> list[str]:
    """About Table 1 with equal read-outs: every head among the client's own classes."""
    kept = Kept("fedproto-table1")

    def gaps(first: str, second: str, decided: tuple[bool, bool, bool]) -> str:
        found = [kept.gap(first, second, column) for column in ("n = 3", "n = 4", "n = 5")]
        assert tuple(gap.excludes_zero for gap in found) == decided, (first, second, found)
        return "{}, {} and {}".format(*(gap.percent("+") for gap in found))

    fedavg, proto, local = (f"{row}, own classes" for row in ("fedavg", "fedproto", "local"))
    to_own, *_ = among_all_ten(kept)
    to_fedavg, to_local = zip(*(among_all_ten(Kept(f"fedproto-table{number}"))[1:] for number in (1, 2)), strict=True)
    assert [[gap.excludes_zero for gap in gaps] for gaps in to_fedavg] == [[True, True, False], [True, False, True]]
    assert not any(gap.excludes_zero for gaps in to_local for gap in gaps)
    differ = ["{}, {} and {}".format(*(gap.percent("+") for gap in gaps)) for gaps in (to_own, *to_fedavg)]
    first_two, last = differ[2].split(" and ")
    assert last == "-1.1 ± 1.1"  # which does not show that it excludes 0: the page has two digits
    last = f"{100 * to_fedavg[1][2].mean:.2f} ± {100 * (to_fedavg[1][2].half or 0):.2f}"
    one_seed = kept.by_place["fedproto", "n = 5"]
    falls = sorted(one_seed.other("prototype_all")[seed] - own for seed, own in one_seed.accuracy.items())
    heads = [[Kept(f"fedproto-table{number}").gap("fedproto, by head", other, f"n = {n}") for n in (3, 4, 5)]
             for other in ("fedavg", "local") for number in (1, 2)]  # fmt: skip
    assert [[gap.excludes_zero for gap in gaps] for gaps in heads] == [
        [True, True, True],
        [True, True, False],
        [True, False, True],
        [False, True, False],
    ]
    by_head = ["{}, {} and {}".format(*(gap.percent("+") for gap in gaps)) for gaps in heads]
    over_local = [100 * gap.mean for gaps in heads[2:] for gap in gaps]
    return [
        f"its accuracy changes by {differ[0]} points (at n = 5 one seed of three loses {-100 * falls[0]:.1f})",
        f"differs from fedavg by {differ[1]} points, and in [Table 2](#table-2-mnist-stdev-3) by {first_two} and {last}: ",
        f"fedproto by head differs from fedavg by {by_head[0]} points, and in Table 2 by {by_head[1]}.",
        f"better than training alone by {min(over_local):.1f} to {max(over_local):.1f} points in the mean.",
        f"the head of fedavg gains {gaps(fedavg, 'fedavg', (True, True, True))} points",
        f"fedavg is above fedproto by prototype by {gaps(fedavg, 'fedproto', (True, True, True))}",
        f"from fedproto by head it differs by {gaps(fedavg, proto, (False, True, True))}",
        f"and from `local` by {gaps(fedavg, local, (True, True, True))}",
        f"fedproto differs from `local` by {gaps(proto, local, (True, False, True))} by head and by "
        f"{gaps('fedproto', local, (False, False, False))} by prototype",
    ]


def fedproto_figure_sentences() -> list[str]:
    """About Fig. 2."""
    second = Kept("fedproto-figure2")

    def percent(interval: Interval) -> str:
        return f"{100 * interval.mean:.1f}"

    def ratio(row: str, kind: str) -> dict[int, float]:
        return second.by_place[row, "n = 3"].other(f"scatter.{kind}.ratio")

    others = ("fedavg", "fesem", "fedper")
    assert all((paired(ratio("fedproto", "mean"), ratio(row, "mean")) or NO_GAP).mean > 0 for row in others)
    assert all((paired(ratio("fedproto", "mean"), ratio(row, "mean")) or NO_GAP).excludes_zero for row in others)
    pooled = paired(ratio("fedproto", "pooled"), ratio("fedavg", "pooled")) or NO_GAP
    assert pooled.excludes_zero
    ratios = {
        kind: {row: f"{np.mean(list(ratio(row, kind).values())):.1f}" for row in ("fedproto", *others)}
        for kind in ("mean", "pooled")
    }
    tests = {row: percent(result.interval) for (row, _), result in second.by_place.items()}
    return [
        f"test accuracies {tests['fedproto']} (fedproto, by prototype), {tests['fedavg']} (fedavg), {tests['fesem']} "
        f"(fesem) and {tests['fedper']} % (fedper)",
        "the ratio is {fedproto}, that of fedavg {fedavg}, of fesem {fesem} and of fedper {fedper}.".format(
            **ratios["mean"]
        ),
        "the ratio is {fedproto} for fedproto and {fedavg} for fedavg".format(**ratios["pooled"])
        + f", a difference of {pooled.mean:+.1f} ± {pooled.half or 0:.1f}.",
        "That of fesem is {fesem}, and of fedper {fedper}.".format(**ratios["pooled"]),
    ]


def fewer_images_sentences() -> list[str]:
    """About Fig. 3: what methods lose from 100 images per class to 10."""
    kept, shots = Kept("fedproto-figure3"), (10, 20, 40, 60, 80, 100)

    def lost(row: str, other: str = "") -> dict[int, float]:
        cells = [kept.by_place[row, f"partition.shots={number}"] for number in (100, 10)]
        many, few = (cell.other(other) if other else cell.accuracy for cell in cells)
        return {seed: many[seed] - few[seed] for seed in many}

    def more(first: dict[int, float], second: dict[int, float], decided: bool) -> str:
        gap = paired(first, second)
        assert gap
        assert gap.excludes_zero == decided
        return gap.percent()

    by_head, own, ten = "fedproto, by head", lost("fedavg, own classes"), lost("fedavg")
    losses = [Interval.of(list(lost(row).values())).percent() for row in ("fedproto", by_head, "local")]
    over_local = {row: [kept.gap(row, "local", f"partition.shots={number}") for number in shots]
                  for row in ("fedproto", by_head)}  # fmt: skip
    assert [gap.excludes_zero and gap.mean > 0 for gap in over_local[by_head][:2]] == [True, True]
    assert [gap.excludes_zero for gap in over_local["fedproto"]] == [False, True, False, False, False, False]
    distances = [np.mean(list(kept.by_place["fedproto", f"partition.shots={number}"].other(DISTANCE).values()))
                 for number in shots]  # fmt: skip
    assert distances == sorted(distances, reverse=True)
    return [
        f"fedproto loses {losses[0]} points by prototype and {losses[1]} by head, `local` {losses[2]}, and fedavg "
        f"{Interval.of(list(ten.values())).percent()} with a head among all ten classes and "
        f"{Interval.of(list(own.values())).percent()} among",
        f"fedavg loses {more(ten, lost(by_head), True)} points more than fedproto by head, and cannot be distinguished "
        f"from fedproto by prototype ({more(ten, lost('fedproto', 'prototype_all'), False)} more)",
        f"it loses {more(lost('fedproto'), own, True)} less than fedproto by prototype, and cannot be distinguished from "
        f"fedproto by head ({more(lost(by_head), own, False)} less)",
        "above training alone by {} and {} points".format(*(gap.percent() for gap in over_local[by_head][:2])),
        f"with 20 it is below, by {-100 * over_local['fedproto'][1].mean:.1f}",
    ]


def pull_sentences() -> list[str]:
    """About Fig. 4."""
    kept, pulls = Kept("fedproto-figure4"), (0, 0.5, 1, 2, 4)

    def cell(row: str, pull: float) -> CellResult:
        return kept.by_place[row, f"method.pull={pull}"]

    def gap(first: CellResult, second: CellResult) -> Interval:
        return paired(first.accuracy, second.accuracy) or NO_GAP

    def percent(row: str, pull: float) -> str:
        return f"{100 * cell(row, pull).interval.mean:.1f}"

    distances = [f"{np.mean(list(cell('fedproto', pull).other(DISTANCE).values())):.1f}" for pull in pulls]
    heads = [percent("fedproto, by head", pull) for pull in pulls]
    alone = cell("local, own classes", 0)
    by_prototype = gap(cell("fedproto", 1), alone)
    by_head = gap(cell("fedproto, own classes", 1), alone)
    more = gap(cell("fedproto", 4), cell("fedproto", 1))
    assert gap(cell("fedproto", 0.5), cell("fedproto", 0)).excludes_zero
    assert [interval.excludes_zero for interval in (by_prototype, by_head, more)] == [False, False, True]
    assert f"{100 * alone.interval.mean:.1f}" == heads[0]
    return [
        f"once λ is above 0 ({percent('fedproto', 0)} to {percent('fedproto', 0.5)} %)",
        "falls ({}, {}, {}, {} and {}: mean L2".format(*distances),
        f"by head λ hardly matters ({min(heads)} to {max(heads)} %)",
        f"its heads have {heads[0]} %",
        f"from `local` ({heads[0]} %), neither by prototype ({by_prototype.percent('+')}) nor by head "
        f"({by_head.percent('+')})",
        f"by prototype λ = 4 is above λ = 1 by {more.percent()} points",
    ]


def holders_sentences() -> list[str]:
    """About Fig. 4 with few and many holders per class."""
    kept = Kept("fedproto-figure4-holders")

    def gap(first: tuple[str, float], second: tuple[str, float]) -> Interval:
        cells = (kept.by_place[f"fedproto, {row}", f"method.pull={pull}"].accuracy for row, pull in (first, second))
        return paired(*cells) or NO_GAP

    few, many = "100 classes", "10 classes"
    rise = [gap((row, 4), (row, 0)) for row in (few, many)]
    more = [gap((row, 4), (row, 1)) for row in (many, few)]
    heads = [gap((f"{row}, by head", 4), (f"{row}, by head", 0)) for row in (few, many)]
    above = [gap((f"{row}, by head", 0), (row, 0)) for row in (few, many)]
    found = [interval.excludes_zero for interval in (*rise, *more, *heads, *above)]
    assert found == [True, True, True, False, False, True, True, True]
    to_one = [gap((row, 1), (row, 0)) for row in (many, few)]
    assert [interval.excludes_zero for interval in to_one] == [True, False]
    holders = {row: [mean_holders(classes, seed) for seed in range(3)] for row, classes in ((many, 10), (few, 100))}
    return [
        f"from λ = 0 to 4 by {rise[0].percent()} points with 100 classes and by {rise[1].percent()} with 10",
        f"it is {to_one[0].percent()} with 10 classes, and undecided with 100 ({to_one[1].percent('+')})",
        f"above λ = 1 by {more[0].percent()} points with 10 classes; with 100 it is undecided ({more[1].percent('+')})",
        f"they change by {heads[0].percent('+')} points with 100 classes, and lose "
        f"{-100 * heads[1].mean:.1f} ± {100 * (heads[1].half or 0):.1f} with 10",
        f"they are above the prototypes by {above[0].percent()} and {above[1].percent()}",
        f"each of which has {min(holders[many]):.1f} to {max(holders[many]):.1f} holders",
        f"those that somebody holds have {min(holders[few]):.1f} to {max(holders[few]):.1f}",
    ]


def mean_holders(classes: int, seed: int) -> float:
    """The mean number of holders of the classes that somebody holds, in the splits of that study."""
    train, test = (np.repeat(np.arange(classes), 10_000 // 2 // classes), np.repeat(np.arange(classes), 10))
    split = NWay(ways=3, shots=15, stdev=1, test=10).split(Labels(train, test, classes), 20, seed)
    counts = Counter(label for holding in split for label in set(train[holding.train].tolist()))
    return float(np.mean(list(counts.values())))


@pytest.mark.parametrize(
    "sentences",
    [
        fedproto_sentences,
        read_out_sentences,
        fedproto_figure_sentences,
        fewer_images_sentences,
        pull_sentences,
        holders_sentences,
    ],
)
def test_sentences_about_fedproto_follow_from_the_kept_figures(sentences):
    text = text_of("fedproto.md")
    assert [sentence for sentence in sentences() if sentence not in text] == []


def test_the_page_of_fedproto_has_the_number_of_runs_of_every_study(tmp_path):
    text = (DOCS / "fedproto.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(fedproto-[\w-]+)` \|.*\| (\d+) \|$", text, re.MULTILINE))
    studies = [study for name, study in STUDIES.items() if name.startswith("fedproto-")]
    assert {study.name: str(len(study.jobs(tmp_path, study.seeds, False))) for study in studies} == rows


def test_what_is_said_of_the_quick_table_is_so():
    kept = Kept("fedproto-table1", quick=True)
    means = {row: result.interval.mean for (row, _), result in kept.by_place.items() if result.runs}
    assert means["local"] > max(means[row] for row in ("fesem", "fedprox", "fedavg"))
    assert max(means, key=lambda row: means[row]) == "fedproto, by head"
    assert means["fedproto"] < means["fedproto, by head"]
