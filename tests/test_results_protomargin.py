"""The results page of prototype-guided FL: the numbers in its sentences follow from kept figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import product

from scipy.stats import ttest_rel

from kept import DOCS, Kept, text_of
from protofed.data.summary import size_statistics
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.recipes import recipe_file
from protofed.measures.correlation import Correlation, pearson
from protofed.measures.intervals import Interval, paired
from protofed.studies.reproduce import published
from protofed.studies.reproduce.over_slow import SLOW
from protofed.studies.reproduce.study import paper_mean


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
    assert {len(result.runs) for result in kept.results} == {2, 3}  # with another number, other words are needed
    complete = {
        row for row, _ in kept.by_place if all(len(kept.by_place[row, f"slow {slow}"].runs) == 3 for slow in SLOW)
    }
    assert len(complete) == 8


def test_sentences_about_mnist_with_20_epochs_follow_from_the_kept_figures():
    kept, text = Kept("protomargin-table3"), text_of("protomargin.md")
    printed, reversed_, readings, over_fedavg, equal_over_fedavg = (
        kept.gap(first, second, "slow 0.8")
        for first, second in (
            (PRINTED, EQUAL),
            (REVERSED, EQUAL),
            (REVERSED, PRINTED),
            (PRINTED, "fedavg"),
            (EQUAL, "fedavg"),
        )
    )
    assert all(gap.excludes_zero and gap.number == 3 for gap in (printed, reversed_, readings, over_fedavg))
    paper = {row: float(figures[2]) for row, figures in published.PROTOMARGIN_TABLE3.items()}
    weights = [
        Kept(name).mean(f"{PRINTED}, slow 0.8", "std of weights").mean
        for name in ("protomargin-figureS2-mnist", "protomargin-figureS2-small")
    ]
    p_values = [
        ttest_rel(*(list(kept.by_place[row, "slow 0.8"].accuracy.values()) for row in rows)).pvalue
        for rows in ((PRINTED, EQUAL), (REVERSED, EQUAL))
    ]
    for sentence in (
        "(p = {:.3f} and {:.3f})".format(*p_values),
        f"protomargin differs from equal weights with toleration by {printed.percent('+')} points: it is below.",
        f"With the sign reversed it differs by {reversed_.percent('+')}: it is above.",
        f"The second reading is above the first by {readings.percent()}, which",
        f"margins gain {paper[PRINTED] - paper[EQUAL]:.1f} points over equal weights",
        f"the printed version gains {over_fedavg.percent()} points (paper: {paper[PRINTED] - paper['fedavg']:.1f}), and "
        f"equal weights with toleration {equal_over_fedavg.percent()} (paper: {paper[EQUAL] - paper['fedavg']:.1f})",
        "({:.3f} and {:.3f} on MNIST at slow 0.8)".format(*weights),
    ):
        assert sentence in text, sentence


def test_sentences_about_the_ablations_follow_from_the_kept_figures():
    kept, text, equal = Kept("protomargin-table3-small"), text_of("protomargin.md"), "fairness + toleration"

    def gaps(first: str, second: str) -> list[Interval]:
        return [kept.gap(first, second, f"slow {slow}") for slow in SLOW]

    def words(first: str, second: str, sign: str = "+") -> str:
        return "{}, {} and {}".format(*(gap.percent(sign) for gap in gaps(first, second)))

    def span(first: str, second: str) -> str:
        means = sorted({f"{100 * gap.mean:+.1f}" for gap in gaps(first, second)}, key=float)
        return means[0] if len(means) == 1 else f"{means[0]} to {means[-1]}"

    def paper(first: str, second: str) -> list[float]:
        rows = (published.PROTOMARGIN_TABLE3[row][:3] for row in (first, second))
        return [float(ours) - float(theirs) for ours, theirs in zip(*rows, strict=True)]

    both = "protomargin, deviation"
    aggregate, local = (f"deviation, {kind} margin only" for kind in ("aggregate", "local"))
    for row in (aggregate, local):
        assert not any(gap.excludes_zero for gap in gaps(row, both))
        assert {gap.number for gap in gaps(row, both)} == {3}
    minus = gaps(equal, "protomargin, minus d+ only")
    assert all(gap.excludes_zero for gap in minus)
    tolerant = [
        gaps(row, other)[2]
        for row, other in (
            (both, "deviation, no toleration"),
            (equal, "fairness"),
            ("protomargin", "protomargin, no toleration"),
        )
    ]
    assert all(gap.excludes_zero for gap in tolerant)
    assert [gap.number for gap in tolerant] == [3, 2, 2]
    at_half = [
        kept.gap(row, other, "slow 0.5")
        for row, other in (
            (equal, "fairness"),
            (both, "deviation, no toleration"),
            ("protomargin", "protomargin, no toleration"),
        )
    ]
    assert [gap.excludes_zero for gap in at_half] == [True, False, False]
    by_size = gaps("fedavg + toleration", "fedavg")[1:]
    assert not any(gap.excludes_zero for gap in by_size)
    single = gaps("protomargin", "protomargin, single -1")
    assert [gap.excludes_zero for gap in single] == [True, True, False]
    for pair in (("deviation, single -1", both), ("protomargin, keep", "protomargin"), ("deviation, keep", both)):
        assert not any(gap.excludes_zero for gap in gaps(*pair))
    for sentence in (
        f"(minus d+) is below equal weights by {words(equal, 'protomargin, minus d+ only', '')} points in two seeds",
        f"the aggregate margin alone differs from both margins by {words(aggregate, both)} points, and the local margin "
        f"alone by {words(local, both)}:",
        "the local margin alone is {:.1f}, {:.1f} and {:.1f} points below both".format(
            *paper("protomargin", "protomargin, local margin only")
        ),
        "with the sign reversed {} points at slow 0.8 (three seeds), with equal weights {} and as printed {} (two seeds "
        "each)".format(*(gap.percent("+") for gap in tolerant)),
        f"has {paper(equal, 'fairness')[2]:.1f} with equal weights and "
        f"{paper('protomargin', 'protomargin, no toleration')[2]:.1f} with its method",
        f"only the gain with equal weights is decided ({at_half[0].percent('+')})",
        f"no gain is seen: {by_size[0].percent('+')} and {by_size[1].percent('+')} at slow 0.5 and 0.8, where the paper "
        "has {:+.1f} and {:+.1f}".format(*paper("fedavg + toleration", "fedavg")[1:]),
        f"`single -1` as printed is lower by {single[0].percent()} and {single[1].percent()} at slow 0 and 0.5",
        f"`keep` changes protomargin by {span('protomargin, keep', 'protomargin')} points and the deviation by "
        f"{span('deviation, keep', both)}, `single -1` by {span('protomargin, single -1', 'protomargin')} and by "
        f"{span('deviation, single -1', both)}.",
    ):
        assert sentence in text, sentence


def test_sentences_about_the_small_table2_follow_from_the_kept_figures():
    kept, text = Kept("protomargin-table2-small"), text_of("protomargin.md")
    equal, by_size, printed, reversed_ = (
        "fairness + toleration",
        "fedavg + toleration",
        "protomargin",
        "protomargin, deviation",
    )

    def gaps(first: str, second: str, kind: str = "") -> list[Interval]:
        return [kept.gap(first, second, f"{kind}slow {slow}") for slow in SLOW]

    def words(first: str, second: str, kind: str = "") -> str:
        return "{}, {} and {}".format(*(gap.text(not kind, "+") for gap in gaps(first, second, kind)))

    def sure(first: str, second: str) -> list[bool]:
        return [gap.excludes_zero for gap in gaps(first, second)]

    def values(row: str, slow: str) -> dict[int, float]:
        return {seed: 100 * value for seed, value in kept.by_place[row, f"slow {slow}"].accuracy.items()}

    def means(row: str) -> list[float]:
        return [100 * kept.mean(row, f"slow {slow}").mean for slow in SLOW]

    def papers(row: str) -> list[float]:
        return [float(value) for value in published.PROTOMARGIN_TABLE3[row][:3]]

    assert all(len(result.runs) == 3 for result in kept.results)
    assert sure(printed, equal) == [False, False, True]
    assert sure(reversed_, equal) == [False] * 3
    assert sure(reversed_, printed) == [True, True, False]
    assert sure("fedatt", equal) == [False] * 3
    assert not any(gap.excludes_zero for gap in gaps(equal, by_size))
    pairs = [values(equal, slow)[seed] - values(by_size, slow)[seed] for slow in SLOW for seed in range(3)]
    by_seed = values(by_size, "0").values()
    paper_gain = [ours - theirs for ours, theirs in zip(papers("protomargin"), papers(equal), strict=True)]
    paper_equal = [ours - theirs for ours, theirs in zip(papers(equal), papers(by_size), strict=True)]
    table2 = published.PROTOMARGIN_TABLE2["mnist"]
    fall = {row: means(row)[0] - means(row)[2] for row in (printed, equal, reversed_)}
    for sentence in (
        f"differs from equal weights with toleration by {words(printed, equal)} points; the last interval excludes 0",
        f"Its training loss differs by {words(printed, equal, 'loss, ')}. In the paper's",
        "protomargin is {:.1f}, {:.1f} and {:.1f} points above".format(*paper_gain),
        f"it differs from equal weights by {words(reversed_, equal)} points, which is undecided",
        f"from the printed version by {words(reversed_, printed)}, where the first two",
        f"in all nine pairs of runs, by {min(pairs):.1f} to {max(pairs):.1f} points; the intervals of the differences, "
        f"{words(equal, by_size)}, include 0",
        f"({min(by_seed):.1f} to {max(by_seed):.1f} % without slow clients)",
        "The paper has {:.1f}, {:.1f} and {:.1f} points.".format(*paper_equal),
        f"differs from fedavg with toleration by {words('fedprox', by_size)} points.",
        f"differs from fedavg by {words('fedatt', 'fedavg')} and cannot be distinguished",
        f"it has {paper_mean(table2['fedatt'][0]):.1f} and FedAvg {paper_mean(table2['fedavg'][0]):.1f}",
        f"cost protomargin {fall[printed]:.1f} points from slow 0 to 0.8 ({means(printed)[0]:.1f} to "
        f"{means(printed)[2]:.1f}), equal weights with toleration {fall[equal]:.1f} and the reversed sign "
        f"{fall[reversed_]:.1f}",
        f"protomargin loses {papers(printed)[0] - papers(printed)[2]:.1f} ({papers(printed)[0]} to {papers(printed)[2]})",
    ):
        assert sentence in text, sentence


EQUAL, BY_SIZE, PRINTED, REVERSED = (
    "fairness + toleration",
    "fedavg + toleration",
    "protomargin",
    "protomargin, deviation",
)
BY_CLIENT, LARGEST = "over clients, ", "largest client, "


def synthetic_gaps(first: str, second: str, kind: str = "") -> list[Interval]:
    """The differences at slow 0, 0.5 and 0.8; `kind` begins the names of their columns."""
    kept = Kept("protomargin-table2-clients" if kind else "protomargin-table2")
    return [kept.gap(first, second, f"{kind}slow {slow}") for slow in SLOW]


def synthetic_words(first: str, second: str, kind: str = "") -> str:
    return "{}, {} and {}".format(*(gap.percent("+") for gap in synthetic_gaps(first, second, kind)))


def synthetic_sentences() -> list[str]:
    kept, by_client, weights = (Kept(f"protomargin-{name}") for name in ("table2", "table2-clients", "figureS2"))
    members = Members.of(Config.load(recipe_file("protomargin-synthetic")))
    shares = []
    for parts in (members.train, members.test):
        sizes = [len(part) for part in parts]
        assert sizes.index(max(sizes)) == 15  # the client that the study calls the largest one
        shares.append(100 * max(sizes) / sum(sizes))

    def span(row: str, kind: str) -> str:
        values = sorted(100 * by_client.mean(row, f"{kind}slow {slow}").mean for slow in SLOW)
        return (
            f"{values[0]:.0f} to {values[-1]:.0f}" if f"{values[0]:.0f}" != f"{values[-1]:.0f}" else f"{values[0]:.0f}"
        )

    def weight(row: str) -> str:
        found = sorted({f"{weights.mean(f'{row}, slow {slow}', 'largest client').mean:.2f}" for slow in SLOW})
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    level = [100 * result.interval.mean for (_, column), result in kept.by_place.items()
             if result.runs and "loss" not in column]  # fmt: skip
    one_seed = [100 * kept.mean("fedatt", f"slow {slow}").mean for slow in SLOW]
    central = Kept("protomargin-table4").mean("central", "accuracy")
    assert central.half
    assert 100 * (central.mean - central.half) < min(level) < max(level) < 100 * (central.mean + central.half)
    half_of_tests = sorted(map(len, members.test))[len(members.test) // 2 - 1]
    cost = [by_client.gap(EQUAL, BY_SIZE, f"{kind}slow 0") for kind in (BY_CLIENT, LARGEST)]
    assert [gap.excludes_zero for gap in cost] == [True, False]
    assert {gap.number for gap in cost} == {2}
    same_seed = [100 * kept.by_place[PRINTED, f"slow {slow}"].accuracy[0] for slow in SLOW]
    assert {tuple(kept.by_place["fedatt", f"slow {slow}"].runs) for slow in SLOW} == {(0,)}
    return [
        f"half of the clients have at most {half_of_tests} test examples",
        f"decided ({cost[0].percent('+')} at slow 0, two seeds), on the largest client it is not ({cost[1].percent('+')})",
        f"above the printed one ({synthetic_words(REVERSED, PRINTED, BY_CLIENT)}), and on the largest client below it",
        "protomargin as printed has {:.1f}, {:.1f} and {:.1f}.".format(*same_seed),
        f"The level, {min(level):.0f} to {max(level):.0f} % in accuracy, is above the paper's, whose centralised model has "
        f"{paper_mean(published.PROTOMARGIN_CENTRAL['synthetic'])}; whether our draw is an easier problem is not known. Our "
        "centralised model "
        f"has {central.percent()} %, which does not place it above or below the federated ones: its last rounds differ "
        "much from seed to seed, and why was not looked into.",
        f"One client has {shares[0]:.0f} % of the training and {shares[1]:.0f} % of the test examples, so that accuracy on "
        "all test examples mostly shows this client.",
        f"With toleration the largest client has {weight(BY_SIZE)} of the weight when it takes part. The model then has "
        f"{span(BY_SIZE, LARGEST)} % of its test examples right, and {span(BY_SIZE, BY_CLIENT)} % on average over "
        f"clients; with equal weights {span(EQUAL, LARGEST)} and {span(EQUAL, BY_CLIENT)} %.",
        f"Its weight is {weight(PRINTED)} instead of 0.1. From equal weights, protomargin differs by "
        f"{synthetic_words(PRINTED, EQUAL, LARGEST)} points on the largest client, by "
        f"{synthetic_words(PRINTED, EQUAL, BY_CLIENT)} over clients, and by {synthetic_words(PRINTED, EQUAL)} on all test "
        "examples (slow 0, 0.5 and 0.8).",
        f"The largest client has a weight of {weight(REVERSED)}. The differences from equal weights are "
        f"{synthetic_words(REVERSED, EQUAL, LARGEST)} on it, {synthetic_words(REVERSED, EQUAL, BY_CLIENT)} over clients, "
        f"and {synthetic_words(REVERSED, EQUAL)} on all test examples.",
        "has {:.1f}, {:.1f} and {:.1f} % on all test examples".format(*one_seed),
    ]


def margin_correlation(
    margins: Kept, accuracies: Kept, column: Callable[[str], str], rows: tuple[str, ...]
) -> Correlation:
    """Of margin and another figure over the runs of these rows, each of them once. `column` by the share of slow."""
    points = {}
    for row, slow in product(rows, SLOW):
        place = (f"{row}, slow {slow}", column(slow)) if accuracies is margins else (row, column(slow))
        cell = margins.by_place[f"{row}, slow {slow}", "margin"]
        for seed, margin in cell.accuracy.items():
            points[cell.cell.words, seed] = (margin, accuracies.by_place[place].accuracy[seed])
    first, second = zip(*points.values(), strict=True)
    return pearson(first, second)


def synthetic_margin_sentences() -> list[str]:
    kept = Kept("protomargin-table4")
    table, correlation = kept.study.extra(kept.results)
    rows = {line[0]: dict(zip(table.heads[1:], line[1:], strict=False)) for line in table.lines}
    margin = {row: float(line["margin"].split()[0]) for row, line in rows.items() if row != "central"}
    largest = max(margin, key=lambda row: margin[row])
    assert largest == BY_SIZE
    paper = published.PROTOMARGIN_TABLE4["synthetic"]
    for row, sign in ((PRINTED, 1), (REVERSED, -1)):
        gaps = [kept.gap(f"{row}, slow {slow}", f"{EQUAL}, slow {slow}", "margin") for slow in SLOW]
        assert all(gap.excludes_zero and sign * gap.mean > 0 for gap in gaps)
    (_, rho, _, runs), (_, rho_round, _, _) = correlation.lines
    mmd = [kept.by_place[f"{row}, slow {slow}", "MMD"].accuracy for row in (EQUAL, PRINTED, REVERSED) for slow in SLOW]
    base = [kept.by_place[f"fedavg, slow {slow}", "MMD"].accuracy for _ in range(3) for slow in SLOW]
    gaps_of_mmd = [paired(first, second) for first, second in zip(mmd, base, strict=True)]
    assert [gap.number for gap in gaps_of_mmd if gap] == [2] * 9
    assert sum(gap.excludes_zero for gap in gaps_of_mmd if gap) == 1
    within = margin_correlation(kept, kept, lambda slow: "accuracy", (EQUAL, PRINTED, REVERSED))
    by_client = Kept("protomargin-table2-clients")
    rows_of_all = tuple(dict.fromkeys(row for row, _ in by_client.by_place))
    by_kind = {
        kind: margin_correlation(kept, by_client, lambda slow, kind=kind: f"{kind}slow {slow}", rows_of_all)
        for kind in (BY_CLIENT, LARGEST)
    }
    assert {found.number for found in by_kind.values()} == {int(runs)}
    return [
        f"fedavg with toleration has the largest margin ({margin[BY_SIZE]:.1f}); protomargin has {margin[PRINTED]:.1f} as "
        f"printed and {margin[REVERSED]:.1f} with the sign reversed, equal weights {margin[EQUAL]:.1f}, where the paper "
        f"has {paper['protomargin'][0]} for its method and {paper['fedavg'][0]} for FedAvg.",
        f"FFD, on the two seeds that fedavg has, is {rows[PRINTED]['FFD, %']} % as printed, {rows[REVERSED]['FFD, %']} % with the sign reversed and "
        f"{rows[EQUAL]['FFD, %']} % with equal weights (paper: {paper['protomargin'][1]} %); of the nine "
        "differences of MMD behind it one excludes 0.",
        f"Margin and accuracy correlate with rho {float(rho):+.2f} over {runs} runs ({float(rho_round):+.2f} with the "
        f"margin on the round's clients), where the paper has {published.PROTOMARGIN_RHO}. That says",
        f"rho is {within.rho:+.2f} over the {within.number} runs of equal weights and the two readings, and over all {runs} "
        f"runs it is {by_kind[BY_CLIENT].rho:+.2f} with the mean over clients and {by_kind[LARGEST].rho:+.2f} on the",
    ]


def test_sentences_about_synthetic_data_follow_from_the_kept_figures():
    text, kept = text_of("protomargin.md"), Kept("protomargin-table2")
    sentences = [*synthetic_sentences(), *synthetic_margin_sentences()]
    assert [sentence for sentence in sentences if sentence not in text] == []
    seeds = {row: {len(kept.by_place[row, f"slow {slow}"].runs) for slow in SLOW}
             for row in dict.fromkeys(row for row, _ in kept.by_place)}  # fmt: skip
    assert {row for row, numbers in seeds.items() if numbers == {3}} == {EQUAL, PRINTED, REVERSED}
    decided = {
        (row, kind): [gap.excludes_zero for gap in synthetic_gaps(row, EQUAL, kind)]
        for row in (PRINTED, REVERSED)
        for kind in (LARGEST, BY_CLIENT, "")
    }
    assert decided == {
        (PRINTED, LARGEST): [True, True, True],
        (PRINTED, BY_CLIENT): [False, False, True],
        (PRINTED, ""): [False, False, False],
        (REVERSED, LARGEST): [True, False, False],
        (REVERSED, BY_CLIENT): [True, True, True],
        (REVERSED, ""): [True, False, False],
    }
    over = synthetic_gaps(REVERSED, PRINTED, BY_CLIENT)
    assert all(gap.excludes_zero and gap.mean > 0 for gap in over)
    on_largest = synthetic_gaps(REVERSED, PRINTED, LARGEST)
    assert [gap.excludes_zero and gap.mean < 0 for gap in on_largest] == [True, True, False]


def test_sentences_about_the_small_table4_follow_from_the_kept_figures():
    kept, text = Kept("protomargin-table4-small"), text_of("protomargin.md")

    def gaps(first: str, second: str, column: str) -> list[Interval]:
        return [kept.gap(f"{first}, slow {slow}", f"{second}, slow {slow}", column) for slow in SLOW]

    for other in ("fedavg", "fairness + toleration"):
        for column in ("margin", "MMD"):
            assert not any(gap.excludes_zero for gap in gaps("protomargin", other, column))
    fedatt, gradients = gaps("fedatt", "fedavg", "margin"), gaps("protomargin", "fedavg", "gradients")
    assert all(gap.excludes_zero for gap in fedatt)
    assert [gap.excludes_zero for gap in gradients] == [True, False, False]
    by_round = kept.gap("protomargin, slow 0", "fedavg, slow 0", "margin (round)")
    assert by_round.excludes_zero
    assert f"above fedavg's by {by_round.mean:.2f} ± {by_round.half:.2f} without slow clients" in text
    table, correlation = kept.study.extra(kept.results)
    rows = {line[0]: line for line in table.lines}
    margins = {row: float(line[2].split()[0]) for row, line in rows.items() if row != "central"}
    assert max(margins, key=lambda row: margins[row]) == "fedatt"

    def gradient(row: str) -> str:
        return f"{float(rows[row][8].split()[0]):.0f}"

    published_rows = published.PROTOMARGIN_TABLE4["mnist"]
    assert published_rows["protomargin"][1] == "7.7"
    assert max((row for row in published_rows if row != "central"), key=lambda row: float(published_rows[row][0])) == (
        "protomargin"
    )
    (_, rho, _, runs), (_, rho_round, _, _) = correlation.lines
    for sentence in (
        "above fedavg's by {}, {} and {} at slow 0".format(*(f"{gap.mean:.2f} ± {gap.half:.2f}" for gap in fedatt)),
        f"Over the {runs} runs, margin and accuracy correlate: rho is {float(rho):.2f}, and {float(rho_round):.2f} with",
        f"(paper: {published.PROTOMARGIN_RHO} over datasets and methods)",
        f"with protomargin ({gradient('protomargin')}) as with equal weights ({gradient('fairness + toleration')})",
        f"weights by size and toleration ({gradient('fedavg + toleration')})",
        f"without slow clients only ({gradients[0].mean:+.1f} ± {gradients[0].half:.1f})",
    ):
        assert sentence in text, sentence


def test_sentences_about_the_weights_of_clients_follow_from_the_kept_figures():
    kept, text = Kept("protomargin-figureS2-small"), text_of("protomargin.md")

    def spread(row: str) -> set[str]:
        return {f"{kept.mean(f'{row}, slow {slow}', 'std of weights').mean:.3f}" for slow in SLOW}

    large = Kept("protomargin-figureS2")
    synthetic = [f"{large.mean(f'{row}, slow 0', 'std of weights').mean:.3f}" for row in (PRINTED, REVERSED, BY_SIZE)]

    (printed,), (by_size,) = spread("protomargin"), spread("fedavg + toleration")
    reversed_ = sorted(spread("protomargin, deviation"))
    assert (
        f"a standard deviation of {printed} as printed and {reversed_[0]} to {reversed_[-1]} with the sign reversed, "
        f"shares by size {by_size}; on synthetic data {', '.join(synthetic[:2])} and {synthetic[2]}." in text
    )
