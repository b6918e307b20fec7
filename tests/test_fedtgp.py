"""FedTGP by hand: its margin, its contrast, and prototypes that are trained apart."""

from __future__ import annotations

import math

import pytest
import torch

from protofed.averages import averaging_by
from protofed.core import Upload
from protofed.methods.fedproto import Bank
from protofed.methods.fedtgp import FedTGP, generated_prototypes, largest_gap, margin_loss
from protofed.trust.robust import RobustRule
from protofed.trust.trust_sections import TrustSection
from toys import bank, config, federation, figures, played


def test_the_margin_is_how_far_the_most_distant_class_is_from_its_nearest():
    assert largest_gap(bank({0: [0.0], 1: [1.0], 2: [7.0]})) == 6  # 1, 1 and 6
    assert largest_gap(bank({0: [0.0]})) == 0
    assert largest_gap(bank({0: [0.0], 2: [5.0]})) == 5  # a class without a prototype does not count


def test_the_contrast_by_hand():
    # a point of class 0 at 0; prototypes at 1 and -3; margin 2: distances 1 + 2 and 3. In double precision, since the
    # logarithms of exp(-1) and of the sum nearly cancel
    point, prototypes = torch.tensor([[0.0]]).double(), torch.tensor([[1.0], [-3.0]]).double()
    found = margin_loss(point, torch.tensor([0]), prototypes, 2.0)
    assert found.item() == pytest.approx(-math.log(math.exp(-3) / (math.exp(-3) + math.exp(-3))))
    plain = margin_loss(point, torch.tensor([0]), prototypes, 0.0)
    assert plain.item() == pytest.approx(-math.log(math.exp(-1) / (math.exp(-1) + math.exp(-3))))


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_with_a_robust_rule_the_server_trains_on_the_combined_prototypes(rule, monkeypatch):
    """Otherwise the prototypes of an attacker would be points like all others."""
    seen = []
    monkeypatch.setattr(
        FedTGP, "train_generator", lambda self, generator, points, *rest: seen.append(points) or generator
    )
    site = federation().server(0, 0)
    method, others = FedTGP(), [0.0] * (site.net.dim - 1)
    uploads = [Upload(n, 1, 1, 1.0, Bank(bank({0: [value, *others]}))) for n, value in enumerate((1.0, 2.0, -900.0))]
    with averaging_by(RobustRule(TrustSection(prototypes=rule))):
        method.aggregate(site, method.start(site), uploads)
    assert seen[0][:, 0].tolist() == ([1, 2, -900] if rule == "mean" else [1])


def test_trained_prototypes_come_near_their_own_and_apart_from_others():
    members = federation()
    site = members.server(0, 0)
    dim = site.net.dim
    own = [bank({0: [2.0] + [0.0] * (dim - 1), 1: [0.0] * (dim - 1) + [2.0]}) for _ in range(3)]
    method = FedTGP(epochs=300, lr=0.05)
    server = method.start(site)
    after = method.aggregate(site, server, [Upload(n, 1, 1, 1.0, Bank(one)) for n, one in enumerate(own)])
    ours = after.bank.prototypes
    assert ours.support[:, 0].tolist() == [3, 3, 0]
    assert not ours.mean[2].any()  # nobody has sent class 2
    zero, one = ours.mean[0, 0], ours.mean[1, 0]
    for label, (mine, other) in enumerate(((zero, one), (one, zero))):
        point = own[0].mean[label, 0]
        assert (point - mine).norm() < 0.5 * (point - other).norm()
    assert (zero - one).norm() > largest_gap(own[0])  # farther apart than the clients' are
    assert torch.equal(generated_prototypes(after.generator)[0], zero)


def test_without_server_training_prototypes_are_what_the_maker_gives():
    runner = played(config("fedtgp", method={"epochs": 0}), federation())
    first = runner.method.start(runner.members.server(0, 0))
    assert torch.equal(runner.server.bank.prototypes.mean[:, 0], generated_prototypes(first.generator))


def test_it_sends_what_fedproto_sends():
    ours, theirs = (figures(played(config(name), federation()))["cost"] for name in ("fedtgp", "fedproto"))
    assert ours["up_params"] == theirs["up_params"]
