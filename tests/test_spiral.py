"""The spiral of FedNH's section 3.1: what the script measures, by hand, and the tables of its results page."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from protofed.pictures.spiral import SpiralPanel

TOP = Path(__file__).parents[1]
PAGE = TOP / "docs" / "results" / "fednh.md"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "scripts")
    yield importlib.import_module("spiral_pictures")
    for name in ("spiral_pictures", "series"):
        sys.modules.pop(name, None)


def at(*angles: float) -> np.ndarray:
    """Unit vectors at these angles in degrees."""
    radians = np.radians(angles)
    return np.stack([np.cos(radians), np.sin(radians)], 1).astype(np.float32)


def panel(means, prototypes=(0, 60, 120, 180, 240, 300)) -> SpiralPanel:
    """Two embeddings per class, 10 degrees on either side of the class's mean direction, with different lengths."""
    z = np.concatenate([3 * at(*(np.array(means) - 10)), 0.5 * at(*(np.array(means) + 10))])
    return SpiralPanel("x", z, np.tile(np.arange(6), 2), at(*prototypes))


def test_a_class_mean_is_a_mean_of_directions(script):
    directions = script.class_directions(panel([0, 50, 130, 180, 240, 300]))
    np.testing.assert_allclose(directions.numpy(), at(0, 50, 130, 180, 240, 300), atol=1e-6)
    angle, pair = script.smallest_angle(directions)
    assert (angle, pair) == (pytest.approx(50, abs=1e-3), [0, 1])
    angle, pair = script.smallest_angle(torch.from_numpy(at(0, 90, 355)))
    assert (angle, pair) == (pytest.approx(5, abs=1e-3), [0, 2])


def test_the_class_accuracy_is_the_share_nearest_to_the_own_row(script):
    # Class 1 is at 25 and 45 degrees, of which 25 is nearer to row 0; class 2 is at 190 and 210, at row 3.
    assert script.class_accuracies(panel([0, 35, 200, 180, 240, 300])) == [100, 50, 0, 100, 100, 100]


def test_angles_between_clients_are_split_by_who_holds_the_class(script):
    first, second = panel([0, 60, 120, 180, 240, 300]), panel([10, 60, 120, 180, 240, 330], (0, 60, 120, 180, 240, 306))
    holds_all, holds_five = np.ones(6, bool), np.array([1, 1, 1, 1, 1, 0], bool)
    angles = script.angles_between([(first, holds_all), (second, holds_five)])
    assert angles == {"class of both": 2.0, "other class": 30.0, "prototypes": 1.0}  # 10 / 5, 30 / 1, 6 / 6


@pytest.fixture
def section() -> str:
    return PAGE.read_text(encoding="utf-8").partition("\n## The spiral\n")[2].partition("\n## ")[0]


@pytest.fixture
def figures(script) -> dict:
    return json.loads(script.FIGURES.read_text(encoding="utf-8"))


def test_the_tables_of_the_page_are_those_of_the_kept_figures(script, section, figures):
    """Every row of a table in the section comes from the JSON, and every row of the JSON's tables is there."""
    shown = [line for line in section.splitlines() if line.startswith("|")]
    assert shown == [line for line in script.tables(figures).splitlines() if line]


def test_the_numbers_in_the_sentences_are_those_of_the_kept_figures(section, figures):
    def column(key: str, head: str, of: str | int) -> list:
        part, name = ("federated", "rounds") if isinstance(of, int) else ("centralised", "data")
        return [row[key] for row in figures[part] if (row["head"], row[name]) == (head, of)]

    def spread(values: list, form: str = "{:.1f}", to: str = " to ") -> str:
        return to.join(form.format(value) for value in (min(values), max(values)))

    free = column("accuracy", "free", "imbalanced")
    fixed, learned = (
        np.subtract(column("accuracy", head, "imbalanced"), free).tolist() for head in ("uniform", "uniform, s learned")
    )
    by_class = {
        head: np.mean(column("by class", head, "imbalanced"), 0) for head in ("free", "uniform", "uniform, s learned")
    }
    nearest = column("nearest prototypes", "free", "imbalanced")
    agreement = {
        (head, rounds): spread(column("class of both", head, rounds))
        for head in ("free", "uniform")
        for rounds in (20, 60, 200)
    }
    assert sum(change > 0 for change in fixed) == sum(pair == [0, 5] for pair in nearest) == 3
    assert max(column("prototypes", "free", 200)) <= 0.1
    assert set(column("server", "free", 200)) == {100.0}
    within = {
        head
        for head in ("free", "uniform", "uniform, s learned", "uniform, s learned from 10")
        if max(column("class of both", head, 200)) <= 2
    }
    assert within == {"free", "uniform, s learned from 10"}
    text = " ".join(section.split())
    for sentence in (
        f"One seed of the uniform head with s = 1 stays at {min(column('accuracy', 'uniform', 'balanced'))} %.",
        f"{by_class['free'][4]:.0f} % of the class with 187 points and {by_class['free'][5]:.0f} % of the one with 93",
        f"the two nearest are {spread(column('prototypes', 'free', 'imbalanced'), '{:.0f}')} degrees apart "
        f"(balanced: {spread(column('prototypes', 'free', 'balanced'), '{:.0f}')}), in three seeds",
        f"the shortest has {spread(column('shortest prototype', 'free', 'imbalanced'), '{}')} of the length of the "
        f"longest (balanced: {spread(column('shortest prototype', 'free', 'balanced'), '{}')})",
        f"above the free head in all five seeds, by {spread(learned)} points.",
        f"in three seeds of five (between {spread(fixed, '{:+.1f}', ' and ')} points)",
        f"The class with 93 points stays at {by_class['uniform, s learned'][5]:.0f} and {by_class['uniform'][5]:.0f} %; "
        f"the notebook's one seed has {figures['notebook']['imbalanced, uniform'][5]}.",
        f"differ by {spread(column('prototypes', 'free', 20), '{:.0f}')} degrees on average",
        f"{agreement['uniform', 20]} degrees against {agreement['free', 20]} with the free head after 20 rounds, "
        f"{agreement['uniform', 60]} against {agreement['free', 60]} after 60, and "
        f"{agreement['uniform', 200]} against {agreement['free', 200]} after 200.",
        "Averaged by size, the free head has {}, {} and {} %.".format(*column("server", "free, averaged by size", 200)),
        f"in all three seeds ({spread(column('class of both', 'uniform, s learned from 10', 200))} degrees), as with the",
    ):
        assert sentence in text, sentence
