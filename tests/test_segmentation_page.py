"""The results page of segmentation: every number in its sentences follows from the kept figures."""

from __future__ import annotations

import numpy as np

from kept import Kept, text_of
from protofed.measures.intervals import Interval, paired

ALPHAS, SLOW = ("0.01", "0.1", "1.0"), ("0", "0.5", "0.8")
SHARED = ("fedavg", "fedavg + toleration", "protomargin", "protomargin, deviation")
EQUAL, BY_SIZE, PRINTED, REVERSED = "equal weights + toleration", *SHARED[1:]


def column(alpha: str, slow: str) -> str:
    return f"alpha {alpha}, slow {slow}"


WITHOUT_SLOW, WITH_SLOW = column("0.1", "0"), column("0.1", "0.8")


class Overlaps(Kept):
    """The kept figures of Fig. 5."""

    def __init__(self) -> None:
        super().__init__("protomargin-figure5")

    def gaps(self, first: str, second: str) -> tuple[Interval, Interval]:
        """The differences in the two columns with three seeds."""
        found = tuple(self.gap(first, second, name) for name in (WITHOUT_SLOW, WITH_SLOW))
        assert [gap.number for gap in found] == [3, 3]
        return found[0], found[1]

    def other(self, row: str, name: str, figure: str) -> dict[int, float]:
        return self.by_place[row, name].other(figure)

    def other_mean(self, row: str, name: str, figure: str) -> float:
        return float(np.mean(list(self.other(row, name, figure).values())))


def both(gaps: tuple[Interval, Interval]) -> str:
    return f"{gaps[0].percent('+')} and {gaps[1].percent('+')}"


def overlap_sentences() -> list[str]:
    kept = Overlaps()
    columns = [column(alpha, slow) for alpha in ALPHAS for slow in SLOW]
    level = {(row, name): 100 * kept.mean(row, name).mean for row in SHARED for name in columns}
    assert min(100 * result.interval.mean for result in kept.results) > 35
    above = {row: sum(level[row, name] > level[BY_SIZE, name] for name in columns) for row in (PRINTED, REVERSED)}
    central = 100 * kept.mean("central", "all images").mean
    by_class = {
        name: 100 * kept.other_mean("fedavg", WITHOUT_SLOW, f"miou.per_class.{name}") for name in ("cat", "dog")
    }

    plain = {row: sum(level[row, name] > level["fedavg", name] for name in columns) for row in (PRINTED, REVERSED)}
    assert set(plain.values()) == {1}

    def over_slow(row: str) -> str:
        first = [[kept.by_place[row, column(alpha, slow)].accuracy[0] for slow in SLOW] for alpha in ALPHAS]
        return "{:.1f}, {:.1f} and {:.1f}".format(*(100 * np.mean(values) for values in first))

    alone = [
        figure
        for alpha in ("0.01", "1.0")
        for figure in (
            100 * kept.other_mean("fedavg", column(alpha, "0"), "miou.clients.head.mean"),
            100 * kept.mean("local", column(alpha, "0")).mean,
        )
    ]
    own = paired(
        kept.other("fedavg", WITHOUT_SLOW, "miou.clients.head.mean"), kept.by_place["local", WITHOUT_SLOW].accuracy
    )
    assert own
    return [
        f"have between {min(level.values()):.1f} and {max(level.values()):.1f}; central has {central:.1f}",
        f"is {by_class['dog']:.0f} % for dogs and {by_class['cat']:.0f} % for cats",
        f"as printed is above fedavg with toleration in {above[PRINTED]} of 9 columns, with the sign reversed in "
        f"{above[REVERSED]}",
        f"as printed differs from fedavg with toleration by {both(kept.gaps(PRINTED, BY_SIZE))} points, with the sign reversed by "
        f"{both(kept.gaps(REVERSED, BY_SIZE))}",
        f"equal weights differ from weights by size by {both(kept.gaps(EQUAL, BY_SIZE))}",
        f"from equal weights by {both(kept.gaps(PRINTED, EQUAL))} as printed, and by "
        f"{both(kept.gaps(REVERSED, EQUAL))} with the sign reversed",
        f"above the printed one by {both(kept.gaps(REVERSED, PRINTED))}",
        f"fedavg has {over_slow('fedavg')}, fedavg with toleration {over_slow(BY_SIZE)}, protomargin as printed "
        f"{over_slow(PRINTED)} and with the sign reversed {over_slow(REVERSED)}",
        f"fedavg from local is {own.percent('+')} with alpha 0.1",
        "fedavg has {:.1f} and local {:.1f} with alpha 0.01, and {:.1f} and {:.1f} with alpha 1".format(*alone),
    ]


def entropy_sentences() -> list[str]:
    kept, softmax = Overlaps(), "entropy.mean.softmax"

    def found(row: str, other: str) -> list[Interval]:
        gaps = [paired(kept.other(row, name, softmax), kept.other(other, name, softmax))
                for name in (WITHOUT_SLOW, WITH_SLOW)]  # fmt: skip
        assert all(gaps)
        return [gap for gap in gaps if gap]

    def gaps(row: str, other: str = BY_SIZE) -> str:
        return " and ".join(f"{gap.mean:+.3f} ± {gap.half or 0:.3f}" for gap in found(row, other))

    features = [kept.other_mean(row, WITH_SLOW, "entropy.mean.features") for row in (BY_SIZE, PRINTED, REVERSED)]
    central = kept.other_mean("central", "all images", "entropy.mean.features")
    assert [gap.excludes_zero for gap in found(PRINTED, EQUAL) + found(REVERSED, EQUAL)] == [False, False, False, True]
    return [
        f"by {gaps(PRINTED)} as printed and by {gaps(REVERSED)} with the sign reversed",
        f"Equal weights raise it as well, by {gaps(EQUAL)}.",
        f"protomargin differs by {gaps(PRINTED, EQUAL)} as printed and by {gaps(REVERSED, EQUAL)} with the sign reversed",
        f"central has {kept.other_mean('central', 'all images', softmax):.2f}, fedavg "
        f"{kept.other_mean('fedavg', WITHOUT_SLOW, softmax):.2f}",
        "H_E is {:.2f}, {:.2f} and {:.2f} (fedavg with toleration, protomargin as printed and reversed)".format(
            *features
        ),
        f"against {central:.2f} for central",
    ]


def test_which_differences_of_fig_5_are_more_than_chance():
    kept = Overlaps()
    assert [gap.excludes_zero for gap in kept.gaps(PRINTED, BY_SIZE)] == [True, False]
    assert [gap.excludes_zero for gap in kept.gaps(REVERSED, BY_SIZE)] == [True, False]
    assert [gap.excludes_zero for gap in kept.gaps(EQUAL, BY_SIZE)] == [True, False]
    assert [gap.excludes_zero for gap in kept.gaps(PRINTED, EQUAL)] == [False, True]
    assert [gap.excludes_zero for gap in kept.gaps(REVERSED, EQUAL)] == [False, False]
    assert [gap.excludes_zero for gap in kept.gaps(REVERSED, PRINTED)] == [False, True]


def test_sentences_about_segmentation_follow_from_the_kept_figures():
    text = text_of("segmentation.md")
    assert [sentence for sentence in [*overlap_sentences(), *entropy_sentences()] if sentence not in text] == []


def test_the_summary_has_the_same_figures():
    kept, text = Overlaps(), text_of("README.md")
    printed, equal = kept.gaps(PRINTED, BY_SIZE)[0], kept.gaps(EQUAL, BY_SIZE)[0]
    for gap, words in (
        (printed, "the printed version is {} points of mIoU below fedavg"),
        (equal, "equal weights are {} below it"),
    ):
        assert words.format(f"{-100 * gap.mean:.1f} ± {100 * (gap.half or 0):.1f}") in text
    columns = [column(alpha, slow) for alpha in ALPHAS for slow in SLOW]
    above = [sum(kept.mean(row, name).mean > kept.mean(BY_SIZE, name).mean for name in columns) for row in (PRINTED, REVERSED)]  # fmt: skip
    assert f"in {above[0]} of 9 settings, and with the sign reversed in {above[1]}" in text
    slow = kept.gaps(PRINTED, EQUAL)[1]
    assert (
        f"the printed version is below equal weights by {-100 * slow.mean:.1f} ± {100 * (slow.half or 0):.1f}" in text
    )


def test_the_start_from_imagenet_follows_from_the_kept_figures():
    kept, text = Kept("protomargin-encoder"), text_of("segmentation.md")
    starts = ("from ImageNet", "from random weights")
    level = {(row, start): 100 * kept.mean(row, start).mean for row in ("fedavg", "protomargin") for start in starts}
    cats = [100 * next(iter(kept.by_place["fedavg", start].other("miou.per_class.cat").values())) for start in starts]
    words = "6 rounds from ImageNet weights have a mIoU of {:.1f} (fedavg) and {:.1f} (protomargin), from random weights {:.1f} and {:.1f}"
    assert words.format(*(level[row, start] for start in starts for row in ("fedavg", "protomargin"))) in text
    assert f"for cats is {cats[0]:.0f} % instead of {cats[1]:.0f} %" in text
