"""What every method must do, beside training: give a model away, and take a newcomer in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import protofed
from protofed.data.sources import SOURCES
from protofed.measures.on_demand import measure
from protofed.methods import METHODS
from protofed.models.join import join

QUICK = {"creff": {"match_steps": 5, "head_epochs": 5}, "fedtgp": {"epochs": 5, "pull": 1.0}}


@pytest.fixture(scope="module")
def runs():
    """A short run of each method, made when it is first asked for."""
    made: dict[str, protofed.Result] = {}

    def of(name: str) -> protofed.Result:
        if name not in made:
            options = {"name": name, **QUICK.get(name, {})}
            table = {"run": {"rounds": 3}, "data": {"clients": 4, "limit": 240}, "method": options}
            made[name] = protofed.run(table)
        return made[name]

    return of


@pytest.fixture(scope="module")
def digits():
    return SOURCES["digits"]("").test


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_module_that_is_given_away_answers_as_predict_does(method, runs, digits):
    result = runs(method)
    for client in (0, 3):
        told = result.predict(digits.x.numpy(), client)["label"]
        with torch.no_grad():
            scores = result.model(client)(digits.normalised(digits.x))
        assert np.array_equal(scores.argmax(1).numpy(), told)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_newcomer_joins_and_is_compared_with_as_many_steps_alone(method, runs, digits):
    result = runs(method)
    x, y = digits.x.numpy()[:60], digits.labels.numpy()[:60]
    found = join(result, (x, y), epochs=2)
    phases = (*result.state.config.method.phases(2), *result.state.config.method.tune(2))
    whole = sum(phase.epochs for phase in phases)
    assert found.accuracy["head"] >= 0
    assert found.spent == whole
    module = found.model.net.loaded(found.model.params)
    with torch.no_grad():
        scores = module(found.model.data.normalised(digits.x))
    assert np.array_equal(scores.argmax(1).numpy(), found.model.predict(digits.x.numpy())["label"])


def test_fedtgps_prototypes_are_found_where_they_are(runs):
    assert runs("fedtgp").prototypes is runs("fedtgp").state.server.bank.prototypes


@pytest.mark.parametrize("method", sorted(METHODS))
def test_it_can_be_measured_and_the_figures_are_those_of_the_run(method, runs):
    result = runs(method)
    found = measure(result, ["classification", "confusion", "fairness", "cost", "scatter"])
    table = found["classification"].rows
    for row in result.clients:
        assert table[f"client {row['client']}"]["accuracy"] == pytest.approx(row["accuracy_head"])
        assert table[f"client {row['client']}"]["examples"] == row["test"]
    shared = result.summary["global"]["accuracy"]
    assert ("server" in table) == (shared is not None)
    assert shared is None or table["server"]["accuracy"] == pytest.approx(shared)
    assert found["fairness"].rows["head"]["std"] == pytest.approx(result.summary["accuracy"]["head"]["std"])
    assert found["cost"].rows["total"]["up_bytes"] == result.summary["cost"]["up_bytes"]
    assert all(row["within"] > 0 for row in found["scatter"].rows.values())
    if (own := result.prototypes) is not None:
        rows = measure(result, ["similarity"])["similarity"].rows
        seen = [row[name] for (name, row), there in zip(rows.items(), own.support.any(1), strict=True) if there]
        assert seen == [pytest.approx(1)] * len(seen)
        assert seen
