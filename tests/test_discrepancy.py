"""Discrepancies by hand: MMD against a double loop, FFD, and gradients of a one-parameter model."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from protofed.core import cross_entropy
from protofed.examples import Examples
from protofed.measures.discrepancy import bandwidth, feature_discrepancy, gradient_dissimilarity, mean_mmd, mmd
from toys import examples, net


def test_mmd_is_the_quadratic_time_formula():
    draw = torch.Generator().manual_seed(0)
    p, q, width = torch.randn(7, 3, generator=draw), torch.randn(5, 3, generator=draw) + 1, 1.5

    def kernel(x, y):
        return math.exp(-float((x.double() - y.double()).square().sum()) / (2 * width**2))

    def mean(a, b):
        return sum(kernel(x, y) for x in a for y in b) / (len(a) * len(b))

    assert mmd(p, q, width) == pytest.approx(math.sqrt(mean(p, p) + mean(q, q) - 2 * mean(p, q)), rel=1e-9)


def test_mmd_by_hand_and_its_bounds():
    a, b = torch.tensor([[0.0]]), torch.tensor([[2.0]])
    assert mmd(a, b, 1.0) == pytest.approx(math.sqrt(2 - 2 * math.exp(-2)))
    assert mmd(a, a, 1.0) == 0
    assert mmd(a, torch.tensor([[1e6]]), 1.0) == pytest.approx(math.sqrt(2))


def test_many_rows_are_taken_a_part_at_a_time():
    p = torch.randn(2500, 2, generator=torch.Generator().manual_seed(1))
    whole = torch.exp(-torch.cdist(p.double(), p.double()).square() / 2).mean()
    from protofed.measures.discrepancy import kernel_mean

    assert kernel_mean(p, p, 1.0) == pytest.approx(float(whole), rel=1e-9)


def test_eq16_averages_over_clients_that_have_something():
    central = torch.tensor([[0.0], [1.0], [3.0]])
    assert bandwidth(central) == 2  # distances 1, 2, 3
    own = [torch.tensor([[0.0]]), torch.tensor([[5.0]]), torch.zeros(0, 1)]
    expected = (mmd(own[0], central, 2.0) + mmd(own[1], central, 2.0)) / 2
    assert mean_mmd(own, central) == pytest.approx(expected)
    assert bandwidth(torch.zeros(1, 2)) == bandwidth(torch.zeros(3, 2)) == 1


def test_eq17_by_hand():
    assert feature_discrepancy(0.3, 0.4) == 25
    assert feature_discrepancy(0.5, 0.4) == -25


def test_a_baseline_that_is_the_central_model_gives_no_ffd():
    assert math.isnan(feature_discrepancy(0.3, 0.0))


def test_gradient_dissimilarity_by_hand():
    # logits = w * x; loss = mean of them: a client's gradient is the mean of its x. Clients: x = (1, 3) and (8): 2 and 8.
    line = SimpleNamespace(trains=lambda name, value: True)

    class Line:
        trains = staticmethod(line.trains)

        def __call__(self, params, x):
            return None, params["w"] * x[:, 0]

    parts = [
        Examples.of(np.array(x, dtype=np.float32)[:, None], np.zeros(len(x), dtype=np.int64)) for x in ([1, 3], [8], [])
    ]
    found = gradient_dissimilarity(Line(), {"w": torch.tensor(1.0)}, parts, lambda logits, batch: logits.mean())
    central = (2 * 2 + 1 * 8) / 3  # 4
    assert found == pytest.approx(((2 - central) ** 2 + (8 - central) ** 2) / 2)


def test_equal_clients_have_equal_gradients():
    own = net()
    params = own.init(torch.Generator().manual_seed(0))
    same, other = examples([0, 1, 2], 0), examples([0, 0, 0], 1)
    assert gradient_dissimilarity(own, params, [same, same], cross_entropy) == pytest.approx(0, abs=1e-12)
    assert gradient_dissimilarity(own, params, [same, other], cross_entropy) > 1e-3
