"""Where prototypes and embeddings lie, and what a run has sent: by hand."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from protofed.core import Prototypes
from protofed.measures.cost import cost_of_rounds, cost_until
from protofed.measures.geometry import centres, cosine_similarities, drift, scatter
from toys import bank


def test_cosines_by_hand_and_none_for_a_class_nobody_has_seen():
    found = cosine_similarities(bank({0: [2.0, 0.0], 1: [1.0, 1.0], 3: [0.0, -3.0]}, classes=4))
    half = math.sqrt(0.5)
    assert found[0].tolist() == pytest.approx([1, half, math.nan, 0], nan_ok=True)
    assert found[3].tolist() == pytest.approx([0, -half, math.nan, 1], nan_ok=True)
    assert torch.isnan(found[2]).all()
    assert torch.isnan(found[:, 2]).all()


def test_scikit_learn_finds_the_same_cosines():
    mean = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert cosine_similarities(Prototypes(mean.unsqueeze(1), torch.ones(6, 1))).numpy() == pytest.approx(
        cosine_similarity(mean.double().numpy())
    )


def test_a_prototype_at_the_origin_has_no_direction():
    assert torch.isnan(cosine_similarities(bank({0: [0.0, 0.0], 1: [1.0, 0.0]}))[0]).all()


def test_several_prototypes_count_as_their_mean_by_examples():
    mean = torch.tensor([[[0.0, 0.0], [4.0, 8.0], [9.0, 9.0]], [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]])
    many = Prototypes(mean, torch.tensor([[3.0, 1.0, 0.0], [5.0, 0.0, 0.0]]))
    one = centres(many)
    assert one.mean[:, 0].tolist() == [[1, 2], [1, 2]]
    assert one.support.tolist() == [[4], [5]]
    assert centres(one) is one
    assert cosine_similarities(many)[0, 1] == pytest.approx(1)


def test_drift_by_hand():
    before = bank({0: [0.0, 0.0], 1: [1.0, 1.0]})
    after = bank({0: [3.0, 4.0], 1: [1.0, 1.0], 2: [7.0, 7.0]})
    assert drift(before, after).tolist() == pytest.approx([5, 0, math.nan], nan_ok=True)


def test_drift_between_sets_with_different_numbers_of_modes():
    many = Prototypes(torch.tensor([[[0.0, 0.0], [2.0, 0.0]]]), torch.ones(1, 2))
    assert drift(many, bank({0: [1.0, 2.0]}, classes=1)).tolist() == [2]


def test_scatter_by_hand():
    # Class 0 at 0 and 2 (mean 1), class 2 at 6 (mean 6); all: mean 8/3.
    found = scatter(torch.tensor([[0.0], [2.0], [6.0]]), torch.tensor([0, 0, 2]), classes=4)
    assert found.within == pytest.approx((1 + 1 + 0) / 3)
    assert found.between == pytest.approx((2 * (1 - 8 / 3) ** 2 + (6 - 8 / 3) ** 2) / 3)
    assert found.ratio == pytest.approx(found.between / found.within)


def test_both_scatters_together_are_the_variance():
    draw = torch.Generator().manual_seed(3)
    z, y = torch.randn(50, 7, generator=draw), torch.randint(0, 4, (50,), generator=draw)
    found = scatter(z, y, classes=6)
    assert found.within + found.between == pytest.approx(float(z.double().var(0, correction=0).sum()))


def test_scatter_of_nothing_and_of_one_point_a_class():
    assert scatter(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), 2) is None
    alone = scatter(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]), 2)
    assert (alone.within, alone.between, alone.ratio) == (0, 1, None)


def row(accuracy: float | None, up: int = 10, down: int = 20) -> dict:
    return {"accuracy_head": accuracy, "up_params": up, "down_params": down, "up_bytes": 4 * up, "down_bytes": 4 * down}


def test_rounds_and_bytes_until_an_accuracy_by_hand():
    rows = [row(0.2), row(None, up=1), row(0.7, down=0), row(0.6), row(0.9)]
    assert cost_until(rows, 0.65) == {
        "rounds": 3,
        "up_params": 21,
        "down_params": 40,
        "up_bytes": 84,
        "down_bytes": 160,
        "bytes": 244,
    }
    assert cost_until(rows, 0.7)["rounds"] == 3  # as high as asked for is enough
    assert cost_until(rows, 0.1)["rounds"] == 1
    assert cost_until(rows, 0.95) is None
    assert cost_until(rows, 0.5, "accuracy_prototype") is None  # the method has none
    assert cost_of_rounds(rows)["bytes"] == sum(row["up_bytes"] + row["down_bytes"] for row in rows)
