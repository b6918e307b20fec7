"""Means over seeds, with 95 % intervals of Student's t, and differences between settings on the same seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from protofed.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

_FIGURES = {
    "by head": ("accuracy", "head"),
    "by prototype": ("accuracy", "prototype"),
    "server": ("global", "accuracy"),
}
"""What is compared over seeds, and where result.json has it."""


class Interval(NamedTuple):
    """A mean and the half-width of its 95 % interval, which one value alone does not have."""

    mean: float
    half: float | None
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Of values that were drawn independently.

        >>> Interval.of([1.0, 2.0, 3.0])
        Interval(mean=2.0, half=2.4841377118, number=3)
        """
        from scipy import stats

        mean, number = float(np.mean(values)), len(values)
        if number < 2:
            return cls(mean, None, number)
        wide = float(stats.t.ppf(0.975, number - 1)) * float(np.std(values, ddof=1)) / number**0.5
        return cls(mean, round(wide, 10), number)

    @property
    def sure(self) -> bool:
        """Is 0 outside of it?"""
        return self.half is not None and abs(self.mean) > self.half

    def percent(self, sign: str = "") -> str:
        """As people read it: "94.4 ± 1.2"."""
        around = "" if self.half is None else f" ± {100 * self.half:.1f}"
        return f"{100 * self.mean:{sign}.1f}{around}"


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """The mean difference on the seeds that both have, which share partitions, samples and batches.

    >>> paired({0: 0.5, 1: 0.75}, {1: 0.5, 0: 0.25, 2: 0.0})
    Interval(mean=0.25, half=0.0, number=2)
    """
    seeds = sorted(ours.keys() & theirs.keys())
    return Interval.of([ours[seed] - theirs[seed] for seed in seeds]) if seeds else None


class SettingRow(NamedTuple):
    """A setting, over its seeds."""

    setting: str
    figures: dict[str, dict[int, float]]  # by name, then by seed

    def interval(self, name: str) -> Interval | None:
        values = list(self.figures.get(name, {}).values())
        return Interval.of(values) if values else None

    def beside(self, other: SettingRow, name: str) -> Interval | None:
        """How much better than the other setting, seed by seed."""
        return paired(self.figures.get(name, {}), other.figures.get(name, {}))


def figures_of(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """What a result.json has of the figures that are compared over seeds."""
    for name, (section, key) in _FIGURES.items():
        value = result[section][key]
        value = value["mean"] if isinstance(value, Mapping) else value
        if value is not None:
            yield name, value
    if result["best"]:
        yield "validation", result["best"]["validation"]


def read_sweep(folder: Path) -> list[SettingRow]:
    """The rows of a finished sweep."""
    if not (folder / "sweep.json").is_file():
        raise UserError(f"{folder} is not the folder of a finished sweep: it has no sweep.json. Give its --out.")
    stored = json.loads((folder / "sweep.json").read_text())
    return [
        SettingRow(
            " ".join(f"{key}={value}" for key, value in one["setting"].items()),
            {name: {int(seed): value for seed, value in of["seeds"].items()} for name, of in one["figures"].items()},
        )
        for one in stored
    ]


def settings_as_json(found: Sequence[SettingRow]) -> list[dict[str, Any]]:
    """Everything of the table, and what it was made of."""
    return [
        {
            "setting": dict(word.split("=", 1) for word in row.setting.split()),
            "figures": {
                name: {**(row.interval(name) or Interval(0, None, 0))._asdict(), "seeds": values}
                for name, values in row.figures.items()
            },
            "beside_first": {
                name: gap._asdict() for name in row.figures if (gap := row.beside(found[0], name)) is not None
            },
        }
        for row in found
    ]
