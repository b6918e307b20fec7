"""FPL by hand: FINCH, the contrast with clusters, the unbiased mean, and its reductions."""

from __future__ import annotations

import math

import pytest
import torch

from protofed.core import Prototypes, Upload
from protofed.methods.fpl import FPL, ClusterTargets
from protofed.methods.parts.clusters import finch
from protofed.methods.parts.model_with_prototypes import ModelWithPrototypes
from toys import bank, config, everything, federation, played


def on_circle(*degrees: float) -> torch.Tensor:
    turned = torch.tensor(degrees).double().deg2rad()
    return torch.stack([turned.cos(), turned.sin()], 1)


def test_finch_joins_first_neighbours_and_those_who_share_one():
    # 0 and 10 are each other's nearest; 25's is 10; 120 and 130; 200's nearest is 130's group
    found = finch(on_circle(0, 10, 25, 120, 130, 200), last=False)
    assert found.tolist() == [0, 0, 0, 1, 1, 1]


def test_finch_goes_on_while_more_than_one_group_is_left():
    pairs = on_circle(0, 2, 20, 22, 180, 182, 200, 202)
    assert finch(pairs, last=False).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert finch(pairs, last=True).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_finch_of_one_two_and_equal_points():
    assert finch(on_circle(5)).tolist() == [0]
    assert finch(on_circle(5, 170)).tolist() == [0, 0]
    assert finch(torch.ones(4, 3)).tolist() == [0] * 4
    assert len(finch(torch.zeros(3, 2)).unique()) == 1


def test_finch_looks_at_directions_only():
    lengths = torch.tensor([1.0, 50.0, 1.0, 50.0]).unsqueeze(1)
    assert finch(on_circle(0, 5, 90, 95) * lengths, last=False).tolist() == [0, 0, 1, 1]


def test_the_contrast_by_hand():
    # class 0 has clusters at 0 and 90 degrees, class 1 one at 60; tau = 1/2; a sample of class 0 at 0 degrees, length 3
    known = Prototypes.empty(3, 2, 2)
    known.mean[0], known.mean[1, 0] = on_circle(0, 90).float() * 4, on_circle(60).float()[0]
    known.support[0], known.support[1, 0] = 1, 1
    method = FPL(temperature=0.5)
    guides = method.prepare(ModelWithPrototypes({}, known))
    z, y = torch.tensor([[3.0, 0.0]]), torch.tensor([0])
    own, other = math.exp(2) + math.exp(0), math.exp(1)
    assert method.contrastive_loss(z, y, guides).item() == pytest.approx(-math.log(own / (own + other)), rel=1e-5)


def test_a_domain_counts_once_in_the_unbiased_prototype():
    known = Prototypes.empty(2, 1, 3)
    known.mean[0, :2, 0], known.support[0, :2] = torch.tensor([1.0, 5.0]), torch.tensor([9.0, 2.0])
    guides = FPL().prepare(ModelWithPrototypes({}, known))
    assert guides.unbiased.mean[:, 0, 0].tolist() == [3, 0]
    assert guides.unbiased.support[:, 0].tolist() == [2, 0]


def aggregated(method: FPL, server: ModelWithPrototypes, *sent: Prototypes) -> Prototypes:
    uploads = [Upload(n, 1, 1, 1.0, ModelWithPrototypes({"w": torch.zeros(1)}, one)) for n, one in enumerate(sent)]
    return method.aggregate(federation().server(0, 0), server, uploads).prototypes


def test_the_server_clusters_each_class_and_keeps_what_nobody_sends():
    before = Prototypes.empty(3, 2, 3)
    before.mean[2, 1], before.support[2, 1] = torch.tensor([7.0, 7.0]), 1
    rows = [{0: [1.0, 0.0]}, {0: [3.0, 0.1], 1: [2.0, 2.0]}, {0: [0.0, 1.0]}, {0: [0.1, 3.0]}]
    after = aggregated(FPL(), ModelWithPrototypes({}, before), *(bank(row) for row in rows))
    assert after.support.tolist() == [[2, 2, 0], [1, 0, 0], [0, 1, 0]]
    torch.testing.assert_close(after.mean[0], torch.tensor([[2.0, 0.05], [0.05, 2.0], [0.0, 0.0]]))
    assert after.mean[1, 0].tolist() == [2, 2]
    assert after.mean[2, 1].tolist() == [7, 7]


def test_without_both_terms_it_is_fedavg():
    plain = everything(played(config("fedavg"), federation()))
    ours = everything(played(config("fpl", method={"contrast": 0.0, "pull": 0.0}), federation()))
    for name, value in plain.items():
        assert torch.equal(value, ours[name]), name


def test_the_gradient_pulls_to_own_clusters_and_away_from_others():
    unbiased = Prototypes(torch.zeros(2, 1, 2), torch.ones(2, 1))
    guides = ClusterTargets(on_circle(0, 90).float().unsqueeze(1), torch.ones(2, 1), unbiased)
    z = on_circle(45).float().requires_grad_()
    FPL(temperature=1.0).contrastive_loss(z, torch.tensor([0]), guides).sum().backward()
    assert -z.grad[0, 0] > 0 > -z.grad[0, 1]


def test_both_readings_of_the_distance_and_of_when_means_are_taken():
    runs = [
        played(config("fpl", method=options), federation()).server.prototypes.mean
        for options in ({}, {"distance": "squared"}, {"prototypes": "fresh"})
    ]
    assert not torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
