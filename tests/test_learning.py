"""Small learning tests on real data: does it learn, and does sharing do what the papers say?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from protofed.experiment.config import Config
from protofed.experiment.run import run
from protofed.methods import METHODS

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from newcomers import newcomer

RECIPES = Path(__file__).parents[1] / "recipes"


def figures(recipe: str, *sets: str):
    return run(Config.load(RECIPES / f"{recipe}.toml", sets)).summary


@pytest.mark.slow
def test_demo_learns():
    proto, shared, alone = (figures("digits-n3", f"method.name={name}") for name in ("fedproto", "fedavg", "local"))
    assert proto["accuracy"]["head"]["mean"] > 0.90
    assert proto["accuracy"]["prototype"]["mean"] > 0.88
    assert alone["accuracy"]["head"]["mean"] > 0.90
    assert shared["accuracy"]["head"]["mean"] > 0.85
    assert shared["global"]["accuracy"] > 0.85
    assert proto["majority"] < 0.4
    assert 30 * proto["cost"]["up_params"] < shared["cost"]["up_params"]


GENTLE = {"fedatt": ["train.momentum=0.5", "run.rounds=40"], "fedtgp": ["method.pull=1.0"]}
"""Long steps of the server, and a pull of 10, do not stand so much momentum."""


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_digits(method):
    sets = [f"method.name={method}", "run.rounds=20", "run.eval_every=40", "train.lr=0.05", "train.momentum=0.9"]
    found = figures("digits-n3", *sets, *GENTLE.get(method, []))
    assert found["accuracy"]["head"]["mean"] > 0.75
    assert found["majority"] < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fedproto-mnist-n3", "fedproto-mnist-n3-mixed"])
def test_fedproto_learns_mnist_in_fifteen_rounds_and_newcomers_gain(recipe, mnist_root):
    sets = ["run.rounds=15", f'data.root="{mnist_root}"', "run.eval_every=15"]
    result = run(Config.load(RECIPES / f"{recipe}.toml", sets))
    made = result.summary
    assert made["accuracy"]["head"]["mean"] > 0.95
    assert made["accuracy"]["prototype"]["mean"] > 0.93
    assert made["cost"]["up_params"] == made["cost"]["up_counts"] * 50
    found = [newcomer(result, number, shots=20, epochs=10) for number in range(5)]
    assert sum(one.accuracy["head"] for one in found) >= sum(one.alone for one in found)
