"""Robust averages: computed by hand, bounded under any attack, and used wherever methods average."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.averages import averaging_by
from protofed.core import average
from protofed.errors import UserError
from protofed.methods import METHODS
from protofed.prototypes import Prototypes, mean_over_clients
from protofed.trust.robust import (
    RobustRule,
    clipped,
    coordinate_median,
    geometric_median,
    krum_order,
    tolerated,
    trimmed_mean,
)
from protofed.trust.trust_sections import TrustSection
from toys import bank, config, everything, federation, runner_of

PROMISED = ("fedproto", "fedavg", "fednh", "mpfedcl", "protomargin")
RULES = ("median", "trimmed_mean", "geometric_median", "krum", "multi_krum")


def points(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.double)


def rule_of(**options) -> RobustRule:
    return RobustRule(TrustSection(**options))


# ---- by hand ----


def test_coordinate_median_and_trimmed_mean():
    values = points([1, 10], [2, 20], [3, 90], [100, -70])
    assert coordinate_median(values).tolist() == [2.5, 15]  # the means of the middle two
    assert coordinate_median(values[:3]).tolist() == [2, 20]
    assert trimmed_mean(values, 1).tolist() == [2.5, 15]
    assert trimmed_mean(values, 0).tolist() == [26.5, 12.5]


def test_geometric_median_of_a_triangle_and_of_a_line():
    """Of an equilateral triangle it is the centre; on a line it is the median, however far the ends are."""
    triangle = points([0, 0], [1, 0], [0.5, math.sqrt(3) / 2])
    found = geometric_median(triangle, torch.ones(3, dtype=torch.double))
    assert found.tolist() == pytest.approx([0.5, math.sqrt(3) / 6], abs=1e-7)
    line = points([0, 0], [1, 2], [1e6, 2e6])
    assert geometric_median(line, torch.ones(3, dtype=torch.double)).tolist() == pytest.approx([1, 2], abs=1e-3)
    same = points([3, 4], [3, 4], [3, 4])
    assert geometric_median(same, torch.ones(3, dtype=torch.double)).tolist() == [3, 4]


def test_geometric_median_with_weights():
    """A vertex with more than half of the weight is the median; two points of equal weight give a point between."""
    values = points([0, 0], [4, 0], [0, 4])
    found = geometric_median(values, torch.tensor([8.0, 1.0, 1.0], dtype=torch.double))
    assert found.tolist() == pytest.approx([0, 0], abs=1e-6)
    assert geometric_median(values[:2], torch.ones(2, dtype=torch.double)).tolist() == [2, 0]


def test_geometric_median_minimises_the_sum_of_distances():
    values = torch.randn(9, 6, generator=torch.Generator().manual_seed(1)).double()
    values[:4] *= 30

    def total(point):
        return float((values - point).norm(dim=1).sum())

    found = geometric_median(values, torch.ones(9, dtype=torch.double))
    for step in torch.randn(50, 6, generator=torch.Generator().manual_seed(2)).double():
        assert total(found) <= total(found + 0.01 * step) + 1e-9


def test_krum_by_hand():
    """With n = 5 and f = 1, a score is the sum of the squared distances to the two nearest."""
    values = points([0], [1], [3], [4], [100])
    # scores: 0: 1 + 9 = 10; 1: 1 + 4 = 5; 3: 1 + 4 = 5; 4: 1 + 9 = 10; 100: 96² + 97²
    assert krum_order(values, 1).tolist() == [1, 2, 0, 3, 4]
    rule = rule_of(weights="krum", assumed=0.2)
    assert rule.of_models(values, torch.full((5,), 0.2, dtype=torch.double)).tolist() == pytest.approx([1])
    several = rule_of(weights="multi_krum", assumed=0.2)
    assert several.of_models(values, torch.full((5,), 0.2, dtype=torch.double)).tolist() == pytest.approx([2])


def test_clipping_by_hand():
    """The median is (1, 0), the distances 1, 0, 0, 1, 9: their median 1 is the limit, which moves the last point only."""
    values = points([0, 0], [1, 0], [1, 0], [2, 0], [10, 0])
    assert clipped(values, 1.0).tolist() == [[0, 0], [1, 0], [1, 0], [2, 0], [2, 0]]
    assert clipped(values, 3.0)[-1].tolist() == [4, 0]


@pytest.mark.parametrize(
    ("rule", "numbers"),
    [
        ("mean", [0] * 6),
        ("median", [0, 0, 1, 1, 2, 2]),
        ("geometric_median", [0, 0, 1, 1, 2, 2]),
        ("trimmed_mean", [0, 0, 1, 1, 2, 2]),
        ("krum", [0, 0, 0, 0, 1, 1]),
        ("multi_krum", [0, 0, 0, 0, 1, 1]),
    ],
)
def test_how_many_bad_uploads_a_rule_withstands(rule, numbers):
    assert [tolerated(rule, uploads) for uploads in range(1, 7)] == numbers


# ---- what robust means ----


@given(st.sampled_from(RULES), st.integers(0, 3), st.floats(-1e5, 1e5), st.integers(0, 1000))
def test_bad_uploads_cannot_move_a_rule_far(rule, bad, size, seed):
    """Good uploads lie within 1 of the origin in each coordinate; 3 of 10 bad ones leave the result near them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(10, 4, generator=generator).double() * 2 - 1
    values[:bad] = size * torch.randn(4, generator=generator).double()
    shares = torch.full((10,), 0.1, dtype=torch.double)
    found = rule_of(weights=rule, assumed=0.3).of_models(values, shares)
    # the geometric median is within 2 n_good / (n_good - n_bad) = 3.5 times the largest norm 2 of good uploads
    assert float(found.norm()) <= 7.0 + 1e-6
    if rule in ("median", "trimmed_mean"):
        assert float(found.abs().max()) <= 1.0 + 1e-9


def test_a_bad_upload_moves_the_mean_as_far_as_it_likes():
    values = torch.zeros(10, 4, dtype=torch.double)
    values[0] = 1e5
    plain = average([{"w": row} for row in values], [1] * 10)["w"]
    assert plain.tolist() == [1e4] * 4


# ---- where averages go ----


def test_prototypes_are_combined_per_class_by_those_who_have_it():
    """Class 0 has three clients with 0, 2 and 100; class 1 a single one, for which no rule can do anything."""
    parts = [bank({0: [0.0], 1: [7.0]}), bank({0: [2.0]}), bank({0: [100.0]})]
    rule = rule_of(prototypes="median")
    with averaging_by(rule):
        pooled = Prototypes.pool(parts)
    assert pooled.mean[:2, 0, 0].tolist() == [2, 7]
    assert pooled.support[:, 0].tolist() == [3, 1, 0]
    assert rule.too_few_for_classes == {1: 1}
    assert Prototypes.pool(parts).mean[0, 0, 0].item() == pytest.approx(34)  # outside, it is the mean


def test_pooling_as_written_keeps_its_scale():
    """Eq. (6) literally divides by the number of clients, which a rule must keep."""
    parts = [bank({0: [3.0]}), bank({0: [3.0]}), bank({0: [3.0]})]
    with averaging_by(rule_of(prototypes="median")):
        assert Prototypes.pool(parts, "written").mean[0, 0, 0].item() == pytest.approx(1)


def test_a_client_without_any_class_does_not_count_in_a_mean_over_clients():
    parts = [bank({0: [2.0]}), bank({1: [4.0]}), Prototypes.empty(3, 1)]
    assert mean_over_clients(parts)[:2, 0].tolist() == [1, 2]
    with averaging_by(rule_of(prototypes="median")):
        assert mean_over_clients(parts)[:2, 0].tolist() == [1, 2]
    assert not mean_over_clients([Prototypes.empty(3, 1)] * 2).any()


def test_a_mean_over_all_clients_keeps_its_scale():
    """Two of four clients have the class: their median 3 counts half, as their mean does."""
    parts = [bank({0: [2.0]}), bank({0: [4.0]}), bank({1: [1.0]}), bank({1: [1.0]})]
    assert mean_over_clients(parts)[0].tolist() == [1.5]
    with averaging_by(rule_of(prototypes="median")):
        assert mean_over_clients(parts)[0].tolist() == [1.5]


def test_models_are_one_vector_and_counters_the_median():
    parts = [
        {"w": torch.tensor([value, 0.0]), "n": torch.tensor(count)} for value, count in ((1.0, 5), (2.0, 6), (90.0, 7))
    ]
    with averaging_by(rule_of(weights="median")):
        combined = average(parts, [1, 1, 1])
    assert combined["w"].tolist() == [2, 0]
    assert (combined["n"].item(), combined["n"].dtype, combined["w"].dtype) == (6, torch.int64, torch.float32)


def test_clients_without_weight_do_not_count():
    """An empty client has the weight 0: the median is that of the others."""
    parts = [{"w": torch.tensor([value])} for value in (1.0, 2.0, 3.0, 1000.0, 1000.0)]
    with averaging_by(rule_of(weights="median")):
        assert average(parts, [5, 5, 5, 0, 0])["w"].item() == 2


@pytest.mark.parametrize("method", PROMISED)
def test_the_mean_by_the_rules_code_is_the_mean_of_the_method(method):
    """`clip` so large that it changes nothing takes the other path through every average: the same up to rounding."""
    members = federation([[0, 1, 2] * 2] * 5)
    states = []
    for trust in ({}, {"clip": 1e9}):
        runner = runner_of(config(method, rounds=2, trust=trust), members)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            runner.go()
        states.append(everything(runner))
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "method",
    [
        name if name in PROMISED else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(set(METHODS) - {"fedatt"})
    ],
)
def test_every_method_runs_with_every_kind_of_rule(method):
    """Rules that a method has no use for are named in a warning, once."""
    quick = {"creff": {"each": 5, "match_steps": 3, "head_epochs": 3}, "fedtgp": {"epochs": 5}}
    members = federation([[0, 1, 2] * 2] * 5)
    trust = {"weights": "multi_krum", "prototypes": "geometric_median", "assumed": 0.2}
    runner = runner_of(config(method, rounds=2, trust=trust, method=quick.get(method, {})), members)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner.go()
    texts = [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]
    assert all(torch.isfinite(value).all() for value in everything(runner).values())
    unused = {"fedproto": "weights", "fedtgp": "weights", "mpfedcl": "prototypes", "fpl": "prototypes"}
    averaged = {"fednh", "protomargin", "creff"}
    if method in averaged:
        assert texts == []
    else:
        word = unused.get(method, "prototypes")
        assert len(texts) in (1, 2), texts
        assert f"trust.{word} = {trust[word]}: {method} averages no {word}, so it has no effect." in texts[0]


def test_fedatt_refuses_rules_for_weights():
    runner = runner_of(config("fedatt", trust={"weights": "median"}), federation())
    with pytest.raises(UserError, match=r"trust\.weights: fedatt weighs every layer"):
        runner.go()


def test_classes_with_too_few_clients_are_said_once_and_kept_in_the_rows():
    """Class 2 has two clients, which cannot outvote one bad one; class 0 has four, of which two may be bad at 30 %."""
    members = federation([[0, 1], [0, 1], [0, 1, 2], [0, 1, 2], [1]])
    runner = runner_of(config("fedproto", rounds=2, trust={"prototypes": "geometric_median"}), members)
    with pytest.warns(RuntimeWarning) as caught:
        runner.go()
    assert [row["unprotected"] for row in runner.rounds] == [{"0": 4, "2": 2}] * 2
    (text,) = [str(one.message) for one in caught]
    assert "too few clients contribute to some classes to withstand 30 % bad uploads (trust.assumed)" in text
    assert "Classes, with their clients: 0 (4), 2 (2)." in text


def test_too_few_uploads_for_krum_are_said():
    runner = runner_of(config("fedavg", rounds=1, trust={"weights": "krum"}), federation([[0, 1, 2]] * 4))
    with pytest.warns(RuntimeWarning, match=r"trust\.weights = krum: 4 uploads are too few to withstand 30 %"):
        runner.go()
    assert runner.rounds[0]["too_few_uploads"] == 4
