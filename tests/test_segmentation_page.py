"""The results page of segmentation: every number in its sentences follows from the kept figures."""

from __future__ import annotations

import numpy as np

from kept import Kept, text_of
from protofed.measures.intervals import Interval, paired

ALPHAS, SLOW = ("0.01", "0.1", "1.0"), ("0", "0.5", "0.8")
SHARED = ("fedavg", "fedavg + toleration", "protomargin", "protomargin, deviation")
EQUAL, BY_SIZE = "equal weights + toleration", "fedavg + toleration"


def column(alpha: str, slow: str) -> str:
    return f"alpha {alpha}, slow {slow}"


def figure5_sentences() -> list[str]:
    kept = Kept("protomargin-figure5")
    columns = [column(alpha, slow) for alpha in ALPHAS for slow in SLOW]
    level = {(row, name): 100 * kept.mean(row, name).mean for row in SHARED for name in columns}
    above = {
        row: sum(level[row, name] > level[BY_SIZE, name] for name in columns)
        for row in ("protomargin", "protomargin, deviation")
    }
    decisive = column("0.1", "0"), column("0.1", "0.8")

    def gaps(first: str, second: str) -> str:
        return " and ".join(kept.gap(first, second, name).percent("+") for name in decisive)

    def over_slow(row: str, alpha: str) -> float:
        return float(np.mean([level[row, column(alpha, slow)] for slow in SLOW]))

    def other(row: str, name: str, figure: str) -> dict[int, float]:
        return kept.by_place[row, name].other(figure)

    own = {row: Interval.of(list(other(row, decisive[0], "miou.clients.head.mean").values())) for row in (BY_SIZE, "local")}  # fmt: skip
    alone = paired(other("fedavg", decisive[0], "miou.clients.head.mean"), kept.by_place["local", decisive[0]].accuracy)
    assert alone
    classes = {
        name: float(np.mean(list(other("fedavg", decisive[0], f"miou.per_class.{name}").values())))
        for name in ("cat", "dog")
    }
    softmax = {
        row: paired(
            other(row, decisive[1], "entropy.mean.softmax"), other(BY_SIZE, decisive[1], "entropy.mean.softmax")
        )
        for row in ("protomargin", "protomargin, deviation")
    }
    central = kept.by_place["central", "all images"]
    return [
        f"between {min(level.values()):.1f} and {max(level.values()):.1f}",
        f"central has {100 * central.interval.mean:.1f}",
        f"as printed is above fedavg with toleration in {above['protomargin']} of 9 columns, with the sign reversed in "
        f"{above['protomargin, deviation']}",
        f"protomargin as printed differs from it by {gaps('protomargin', BY_SIZE)} points",
        f"with the sign reversed by {gaps('protomargin, deviation', BY_SIZE)}",
        f"Equal weights differ from weights by size by {gaps(EQUAL, BY_SIZE)}",
        f"protomargin from equal weights by {gaps('protomargin', EQUAL)} as printed and by "
        f"{gaps('protomargin, deviation', EQUAL)} with the sign reversed",
        "{:.1f}, {:.1f} and {:.1f} for fedavg with toleration".format(*(over_slow(BY_SIZE, a) for a in ALPHAS)),
        "{:.1f}, {:.1f} and {:.1f} for protomargin".format(*(over_slow("protomargin", a) for a in ALPHAS)),
        f"fedavg has {own[BY_SIZE].percent()} there and local {kept.mean('local', decisive[0]).percent()}",
        f"a difference of {alone.percent('+')}",
        f"{100 * classes['dog']:.0f} % for dogs and {100 * classes['cat']:.0f} % for cats",
        *(f"{row}: {gap.mean:+.3f} ± {gap.half or 0:.3f}" for row, gap in softmax.items() if gap),
    ]


def test_sentences_about_segmentation_follow_from_the_kept_figures():
    text = text_of("segmentation.md")
    assert [sentence for sentence in figure5_sentences() if sentence not in text] == []
