"""Means over seeds with 95 % confidence intervals (Student's t), and paired differences between settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from protofed.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.experiment.stored import StoredRun

_FIGURES = {
    "by head": ("accuracy", "head"),
    "own classes": ("accuracy", "head_own"),
    "by prototype": ("accuracy", "prototype"),
    "server": ("global", "accuracy"),
    "mIoU": ("miou", "mean"),
}
"""The figures that are compared over seeds, and their section and key in result.json."""


_HALF_ROUNDING = 1e-10
"""The half-width of an interval is rounded to ten digits."""


class Interval(NamedTuple):
    """A mean and its 95 % confidence interval, mean ± half."""

    mean: float
    half: float | None  # half the width of the interval; None for a single value
    number: int  # how many values

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The interval from values that were drawn independently.

        >>> Interval.of([1.0, 2.0, 3.0])
        Interval(mean=2.0, half=2.4841377118, number=3)
        """
        from scipy.special import stdtrit  # the quantiles of Student's t; scipy.stats takes long to import

        mean, number = float(np.mean(values)), len(values)
        if number < 2:
            return cls(mean, None, number)
        half = float(stdtrit(number - 1, 0.975)) * float(np.std(values, ddof=1)) / number**0.5
        return cls(mean, round(half, 10), number)

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside of the interval. A mean of equal values that differs from 0 by rounding does not."""
        return self.half is not None and abs(self.mean) > self.half + _HALF_ROUNDING

    def percent(self, sign: str = "") -> str:
        """The interval in percent, such as "94.4 ± 1.2". `sign` "+": positive means get a plus sign.

        >>> Interval(-0.0001, 0.002, 3).percent()
        '0.0 ± 0.2'
        """
        half = "" if self.half is None else f" ± {100 * self.half:.1f}"
        return f"{100 * self.mean:{sign}z.1f}{half}"

    def text(self, percent: bool, sign: str = "") -> str:
        """The interval in percent, or as it is with about three digits, such as "0.412 ± 0.061"."""
        if percent:
            return self.percent(sign)
        size = abs(self.mean)
        digits = 3 if size < 1 else 2 if size < 100 else 0
        half = "" if self.half is None else f" ± {self.half:.{digits}f}"
        return f"{self.mean:{sign}z.{digits}f}{half}"


def paired(values: Mapping[int, float], baseline: Mapping[int, float]) -> Interval | None:
    """The mean difference over the seeds that both have; runs with one seed share partitions, samples and batches.

    Values and baseline are by seed. None if they have no seed in common.

    >>> paired({0: 0.5, 1: 0.75}, {1: 0.5, 0: 0.25, 2: 0.0})
    Interval(mean=0.25, half=0.0, number=2)
    """
    seeds = sorted(values.keys() & baseline.keys())
    return Interval.of([values[seed] - baseline[seed] for seed in seeds]) if seeds else None


class SettingRow(NamedTuple):
    """The figures of one setting over its seeds."""

    setting: str
    figures: dict[str, dict[int, float]]  # by name, then by seed
    words: tuple[str, ...] = ()  # what makes the setting, "section.key=value"
    method: str = ""
    stopped: Mapping[int, str] = {}  # by seed, why a run stopped before its last round; it has no figures

    @classmethod
    def of_runs(cls, setting: str, runs: Sequence[StoredRun]) -> SettingRow:
        """The figures of these runs, which differ only in their seeds."""
        figures: dict[str, dict[int, float]] = {}
        for run in runs:
            for name, value in figures_of(run.summary):
                figures.setdefault(name, {})[run.seed] = value
        return cls(setting, figures, method=runs[0].method if runs else "")

    @property
    def keys(self) -> dict[str, str]:
        """The values of the setting by key. The setting of an older sweep is its words."""
        words = self.words or tuple(word for word in self.setting.split() if "=" in word)
        return dict(word.split("=", 1) for word in words)

    def interval(self, name: str) -> Interval | None:
        """The mean of a figure over seeds; None if no seed has it."""
        values = list(self.figures.get(name, {}).values())
        return Interval.of(values) if values else None

    def mean(self, name: str) -> float:
        """The mean of a figure over seeds, which must have it."""
        return float(np.mean(list(self.figures[name].values())))

    def compared_with(self, baseline: SettingRow, name: str) -> Interval | None:
        """By how much a figure is higher than in the baseline, paired by seed."""
        return paired(self.figures.get(name, {}), baseline.figures.get(name, {}))


def figures_of(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures of a result.json that are compared over seeds, by name."""
    for name, (section, key) in _FIGURES.items():
        value = (result.get(section) or {}).get(key)  # runs of earlier versions lack head_own
        value = value["mean"] if isinstance(value, Mapping) else value
        if value is not None:
            yield name, value
    by_head = ((result.get("miou") or {}).get("clients") or {}).get("head") or {}
    if by_head.get("mean") is not None:
        yield "mIoU clients", by_head["mean"]
    if result["best"]:
        yield "validation", result["best"]["validation"]


def best_row(rows: Sequence[SettingRow], name: str) -> SettingRow | None:
    """The row with the highest mean, if its difference from every other row, paired by seed, excludes 0.

    None, too, if a run of that row has stopped: its mean is that of the seeds that went well.

    >>> rows = [SettingRow("a", {"x": {0: 0.9, 1: 0.8}}), SettingRow("b", {"x": {0: 0.5, 1: 0.4}}), SettingRow("c", {})]
    >>> best_row(rows, "x").setting
    'a'
    """
    with_figure = [row for row in rows if row.figures.get(name)]
    if len(with_figure) < 2:
        return None
    best = max(with_figure, key=lambda row: row.mean(name))
    gaps = [best.compared_with(row, name) for row in with_figure if row is not best]
    is_above = all(gap is not None and gap.mean > 0 and gap.excludes_zero for gap in gaps)
    return best if is_above and not best.stopped else None


def read_sweep(folder: Path) -> list[SettingRow]:
    """The settings of a finished sweep, from its folder."""
    if not (folder / "sweep.json").is_file():
        raise UserError(
            f"{folder} is not the folder of a finished sweep: it has no sweep.json. Give the --out of a sweep."
        )
    rows = []
    for row in json.loads((folder / "sweep.json").read_text(encoding="utf-8")):
        words = tuple(f"{key}={value}" for key, value in row["setting"].items())
        figures = {
            name: {int(seed): value for seed, value in figure["seeds"].items()}
            for name, figure in row["figures"].items()
        }
        stopped = {int(seed): reason for seed, reason in row.get("stopped", {}).items()}
        rows.append(SettingRow(row.get("label", " ".join(words)), figures, words, row.get("method", ""), stopped))
    return rows


def settings_as_json(rows: Sequence[SettingRow]) -> list[dict[str, Any]]:
    """The content of sweep.json: per setting its intervals, its values per seed, and the difference from the first."""
    return [
        {
            "label": row.setting,
            "method": row.method,
            "setting": row.keys,
            "figures": {
                name: {**(row.interval(name) or Interval(0, None, 0))._asdict(), "seeds": values}
                for name, values in row.figures.items()
            },
            "beside_first": {
                name: gap._asdict() for name in row.figures if (gap := row.compared_with(rows[0], name)) is not None
            },
            "stopped": dict(row.stopped),
        }
        for row in rows
    ]
