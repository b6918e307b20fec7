"""The results page of FedNH: the numbers in its sentences follow from kept figures."""

from __future__ import annotations

from scipy.stats import ttest_ind_from_stats

from kept import Kept, kept_json, text_of
from protofed.measures.intervals import paired
from protofed.studies.reproduce import published
from protofed.studies.reproduce.study import paper_mean


def test_the_papers_own_spreads_repeat():
    """FedNH's Table 1: the ± of PM(V) and PM(L) are the same numbers for CIFAR-10 and CIFAR-100."""
    repeated = 0
    for alpha in (0.3, 1.0):
        first, second = (published.FEDNH_TABLE1[data, alpha] for data in ("cifar10", "cifar100"))
        for method in second:
            repeated += spreads(first[method]) == spreads(second[method])
    assert repeated == 10
    assert "for each alpha they are the same numbers on CIFAR-10, CIFAR-100 and TinyImageNet" in text_of("fednh.md")


def spreads(figures: tuple[str, ...]) -> list[str]:
    """The ± of PM(V) and PM(L)."""
    return [value.partition(" ± ")[2] for value in figures[1:]]


def test_the_papers_spreads_return_on_tiny_imagenet_and_in_table3():
    first, text = published.FEDNH_TABLE1["cifar10", 0.3], text_of("fednh.md")
    assert all(spreads(figures) == spreads(first[method]) for method, figures in published.FEDNH_TINY.items())
    third = published.FEDNH_TABLE3
    assert (spreads(third["fedavg"]), spreads(third["fedper"])) == (spreads(first["local"]), spreads(first["fedavg"]))
    for figures in third.values():
        assert any(spreads(figures) == spreads(other) for other in first.values())
    own = {method for method, figures in third.items() if spreads(figures) == spreads(first[method])}
    assert own == {"fednh", "fedrod", "fedbabu"}
    assert "FedAvg has there what Local has in Table 1, FedPer what FedAvg has, and FedNH, FedROD and FedBABU" in text
    tiny = [published.FEDNH_TINY[method][0] for method in ("fednh", "fedavg")]
    assert "TinyImageNet ({} against {})".format(*tiny) in text
    cifar100 = [published.FEDNH_TABLE1["cifar100", 0.3][method] for method in ("fednh", "fedavg")]
    more = [paper_mean(ours) - paper_mean(theirs) for ours, theirs in zip(*cifar100, strict=True)]
    assert f"on CIFAR-100, +{more[0]:.2f} in GM over FedAvg" in text
    assert f"PM(V) on CIFAR-100 is +{more[1]:.2f}, without" in text


def test_what_the_papers_figures_can_separate():
    """The means and deviations of three runs each, as Table 1 prints them."""
    figures = {
        method: [float(number) for number in published.FEDNH_TABLE1["cifar10", 0.3][method][0].split("±")]
        for method in ("fednh", "fedavg", "fedrod")
    }

    def p_value(first: str, second: str, equal_variances: bool) -> float:
        return ttest_ind_from_stats(*figures[first], 3, *figures[second], 3, equal_variances).pvalue

    assert min(p_value("fednh", "fedavg", equal) for equal in (True, False)) > 0.05
    student, welch = (p_value("fedrod", "fedavg", equal) for equal in (True, False))
    assert f"Student's has p = {student:.2f} and Welch's {welch:.2f}" in text_of("fednh.md")


def test_sentences_about_fednh_follow_from_the_kept_figures():
    kept, text = Kept("fednh-table1"), text_of("fednh.md")
    gaps = [kept.gap("fednh", "fedavg", column) for column in ("GM", "PM(V)", "PM(L)")]
    assert [(gap.number, gap.excludes_zero) for gap in gaps] == [(3, True), (3, True), (3, False)]
    assert f"The lower limit of PM(V) is {100 * (gaps[1].mean - gaps[1].half):.1f}, so that" in text
    rows = [published.FEDNH_TABLE1["cifar10", 0.3][method] for method in ("fednh", "fedavg")]
    paper = [paper_mean(first) - paper_mean(second) for first, second in zip(*rows, strict=True)]
    assert (
        "above fedavg by {}, {} and {} points (GM, PM(V), PM(L)); the paper has {:.2f}, {:.2f} and {:.2f}".format(
            *(gap.percent() for gap in gaps), *paper
        )
        in text
    )
    spread = Kept("fednh-table2").gap("fednh", "fedavg", "spread of PM(L)")
    assert not spread.excludes_zero
    fairness = [paper_mean(published.FEDNH_TABLE2[method]) for method in ("fednh", "fedavg")]
    assert f"differs by {spread.percent('+')}, where the paper has {fairness[0] - fairness[1]:.2f}" in text
    over = [kept.gap("fedrod", "fedavg", column) for column in ("GM", "PM(V)", "PM(L)")]
    under = [kept.gap("fednh", "fedrod", column) for column in ("GM", "PM(V)", "PM(L)")]
    assert [gap.excludes_zero for gap in (*over, *under)] == [True, True, True, False, True, False]
    assert {gap.number for gap in (*over, *under)} == {3}
    texts = ["{}, {} and {}".format(*(gap.percent(sign) for gap in gaps)) for gaps, sign in ((over, ""), (under, "+"))]
    assert f"fedrod is above fedavg by {texts[0]} points" in text
    assert f"From fedrod, fednh differs by {texts[1]}: below" in text
    for other, words in (
        ("fedavg", "above in GM ({:.2f}) and PM(V) ({:.2f}), and below in PM(L) ({:.2f}). From"),
        ("fednh", "below in GM ({:.2f}) and PM(V) ({:.2f}), and above in PM(L) ({:.2f})."),
    ):
        both = [published.FEDNH_TABLE1["cifar10", 0.3][method] for method in ("fedrod", other)]
        gaps = [abs(paper_mean(first) - paper_mean(second)) for first, second in zip(*both, strict=True)]
        assert words.format(*gaps) in text


def test_how_many_differences_of_the_federated_spiral_exclude_0():
    runs: dict[tuple[int, str], dict[int, dict[str, float]]] = {}
    for run in kept_json("fednh-spiral")["federated"]:
        runs.setdefault((run["rounds"], run["head"]), {})[run["seed"]] = run
    gaps = {
        (rounds, head, other, column): paired(*({seed: run[column] for seed, run in runs[rounds, name].items()}
                                                for name in (head, other)))
        for rounds, head in runs
        for other in ("free", "free, averaged by size")
        for column in ("server", "class of both", "other class")
        if head.startswith("uniform")
    }  # fmt: skip
    found = {place: gap for place, gap in gaps.items() if gap and gap.excludes_zero}
    assert list(found) == [(60, "uniform, s learned from 10", "free", "other class")]
    (gap,) = found.values()
    text = text_of("fednh.md")
    assert f"of {len(gaps)} differences between a uniform and a free head" in text
    assert f"classes that not both hold: {gap.mean:+.1f} ± {gap.half:.1f} degrees)" in text
