"""CReFF by hand: matched gradients, the retrained head, and what goes on from the plain average."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from protofed.core import Prototypes, Upload
from protofed.methods.creff import (
    CReFF,
    GradientUpload,
    ModelAndRetrainedHead,
    RetrainingServer,
    head_gradient,
    row_distance,
)
from protofed.net import Net, selected
from test_baselines import EQUAL, same
from toys import bank, config, federation, figures, played

PLANE = Net("plane", lambda: (torch.nn.Identity(), torch.nn.Linear(2, 2)), (2,), 2)
FAR = {"head.weight": torch.tensor([[9.0, 0.0], [0.0, 9.0]]), "head.bias": torch.tensor([4.0, -4.0])}
ZERO = {name: torch.zeros_like(value) for name, value in FAR.items()}
"""A head that is sure of itself, and one that gives both classes a half."""


def test_the_distance_has_one_cosine_per_row_of_the_weight_and_one_for_the_bias():
    shapes = [torch.Size((2,)), torch.Size((2, 2))]
    got = torch.tensor([[1.0, 0.0, 3.0, 4.0, 0.0, 2.0]])  # the bias, row 0, row 1
    aim = torch.tensor([[0.0, 1.0, 4.0, 3.0, 0.0, -1.0]])
    expected = (1 - 0) + (1 - 24 / 25) + (1 + 1)  # one cosine over all six numbers would be 22 / sqrt(30 * 27)
    assert row_distance(got, aim, shapes).item() == pytest.approx(expected, abs=1e-5)
    both = row_distance(torch.cat([got, aim]), torch.cat([aim, aim]), shapes)  # the sum over classes
    assert both.item() == pytest.approx(expected, abs=1e-5)
    # rows of length 0.001: the cosine of parallel rows is 1e-6 / (1e-6 + 1e-6); rows of zeros have none
    small = torch.tensor([0.0, 0.0, 1e-3, 0.0, 0.0, 1e-3])
    assert row_distance(small, small, shapes).item() == pytest.approx(1 + 0.5 + 0.5, abs=1e-5)


def test_clients_compute_the_gradient_of_the_retrained_head_on_the_body_they_were_sent():
    z, y = torch.tensor([[2.0, 0.0], [4.0, 2.0], [7.0, 7.0]]), torch.tensor([0, 0, 1])
    asked = []
    trained = SimpleNamespace(
        features=lambda before: asked.append(before) or (z, y),
        net=PLANE,
        start=FAR,
        params=FAR,
        down=ModelAndRetrainedHead(FAR, ZERO),
    )
    sent = CReFF().upload(trained)
    assert asked == [True]
    # p - 1 of class 0 is (-0.5, 0.5), and its mean embedding (3, 1); of class 1 it is (0.5, -0.5), and (7, 7)
    assert sent.gradients.mean[:, 0].tolist() == [
        pytest.approx([-0.5, 0.5, -1.5, -0.5, 1.5, 0.5]),
        pytest.approx([0.5, -0.5, 3.5, 3.5, -3.5, -3.5]),
    ]
    assert sent.gradients.support[:, 0].tolist() == [1, 1]  # how many examples there are is not sent
    same(sent.params, FAR)


def test_features_are_matched_at_the_retrained_head_by_hand():
    # At the head of zeros the gradient of a feature f of class 0 has the rows -f/2 and f/2, whatever the bias. Rows along
    # (0, 3) are wanted, f is (2, 0): both cosines are 0, their slope is (0, 1/|f|) each, and a step of 0.5 goes (0, 0.5).
    features = torch.tensor([[[2.0, 0.0]], [[5.0, 5.0]]])
    wanted = bank({0: [-0.5, 0.5, 0.0, -1.5, 0.0, 1.5]}, classes=2)
    site = SimpleNamespace(net=PLANE, generator=lambda purpose: torch.Generator())
    upload = Upload(0, 3, 1, 1.0, GradientUpload(FAR, wanted))
    method = CReFF(each=1, match_steps=1, match_lr=0.5, head_epochs=0, head_start="averaged")
    after = method.aggregate(site, RetrainingServer(FAR, ZERO, features), [upload])
    assert after.features.flatten().tolist() == pytest.approx([2.0, 0.5, 5.0, 5.0], abs=1e-5)  # class 1 has no gradient
    same(after.params, FAR)


@pytest.mark.parametrize(("batch", "way"), [(1, 0.1), (0, 0.05)])
def test_one_epoch_of_the_retraining_by_hand(batch, way):
    # Without a bias the features (1, 0) and (0, 1) do not meet: a step on one moves its own column by lr (y - p).
    net = Net("line", lambda: (torch.nn.Identity(), torch.nn.Linear(2, 2, bias=False)), (2,), 2)
    method = CReFF(each=1, head_epochs=1, head_batch=batch, head_lr=0.2)
    head = method.retrain_head(net, {"head.weight": torch.zeros(2, 2)}, torch.eye(2).unsqueeze(1), torch.Generator())
    torch.testing.assert_close(head["head.weight"], torch.tensor([[way, -way], [-way, way]]))


def test_clients_are_sent_the_averaged_model_and_the_retrained_head():
    method = {"match_steps": 2, "head_epochs": 2}
    runner = played(config("creff", rounds=1, method=method), federation(EQUAL))
    head = sum(value.numel() for value in runner.server.head.values())
    model = sum(value.numel() for value in runner.server.params.values())
    cost = figures(runner)["cost"]
    assert cost["down_params"] == 4 * (model + head)
    assert cost["up_params"] == 4 * (model + 3 * head)  # a gradient for each of three classes
    start = runner.method.start(runner.members.server(0, 0))
    first, later = runner.method.broadcast(start, 0), runner.method.broadcast(runner.server, 0)
    same(first.head, selected(first.params, "head."))  # before the first retraining
    same(later.head, runner.server.head)
    assert not torch.equal(later.head["head.weight"], later.params["head.weight"])


def test_the_retraining_starts_from_a_new_head_in_every_round():
    method = {"match_steps": 2, "head_epochs": 0}
    start, one, two = (
        CReFF().start(federation().server(0, 0)),
        *(played(config("creff", rounds=rounds, method=method), federation()).server for rounds in (1, 2)),
    )
    heads = [start.head, one.head, two.head, selected(one.params, "head."), selected(two.params, "head.")]
    assert len({head["head.weight"].sum().item() for head in heads}) == 5


def test_creffs_matched_features_reach_the_wanted_gradients():
    own = Net("line", lambda: (torch.nn.Identity(), torch.nn.Linear(6, 3)), (6,), 3)
    head = selected(own.init(torch.Generator().manual_seed(0)), "head.")
    draw = torch.Generator().manual_seed(1)
    real = [torch.randn(40, 6, generator=draw) + 3 * torch.eye(6)[label] for label in range(3)]
    wanted = Prototypes.empty(3, 21)
    for label, z in enumerate(real):
        wanted.mean[label, 0] = head_gradient(own, head, z, torch.full((40,), label)).detach()
        wanted.support[label, 0] = 40
    made = CReFF(each=20, match_lr=5.0, match_steps=300).match_features(
        own, head, torch.randn(3, 20, 6, generator=draw), wanted
    )
    for label in range(3):
        found = head_gradient(own, head, made[label], torch.full((20,), label))
        assert torch.cosine_similarity(found, wanted.mean[label, 0], 0) > 0.95
        rows, aims = (vector[3:].reshape(3, 6) for vector in (found, wanted.mean[label, 0]))
        assert torch.cosine_similarity(rows, aims, 1).min() > 0.95


@pytest.mark.slow
def test_creffs_retrained_head_beats_fedavgs_on_a_long_tail():
    labels = [[0] * 40 + [1] * 10 + [2] * 2] * 3
    slowly = {"lr": 0.02, "momentum": 0.0}
    how = {"match_lr": 2.0, "head_lr": 0.1}  # for three rounds; its defaults are for many
    ours = played(config("creff", rounds=3, method=how, train=slowly), federation(labels)).rounds[-1]
    plain = played(config("fedavg", rounds=3, train=slowly), federation(labels)).rounds[-1]
    assert ours["accuracy_global"] > plain["accuracy_global"] + 0.3


@pytest.mark.parametrize("weights", ["size", "equal"])
def test_creffs_next_round_starts_from_the_plain_average(weights):
    method = {"match_steps": 2, "head_epochs": 2, "weights": weights}
    ours = played(config("creff", rounds=3, method=method), federation())
    plain = played(config("fedavg", rounds=3, method={"weights": weights}), federation())
    same(ours.server.params, plain.server.params)


def test_creffs_head_is_retrained_in_epochs_of_batches_from_the_averaged_or_a_new_one():
    own = Net("line", lambda: (torch.nn.Identity(), torch.nn.Linear(6, 3)), (6,), 3)
    head = selected(own.init(torch.Generator().manual_seed(0)), "head.")
    features = torch.randn(3, 20, 6, generator=torch.Generator().manual_seed(1))

    def lost(made: dict[str, torch.Tensor]) -> float:
        return float(cross_entropy(own.head(made, features.flatten(0, 1)), torch.arange(3).repeat_interleave(20)))

    whole, parts = (
        CReFF(each=20, head_epochs=20, head_batch=size).retrain_head(own, head, features, torch.Generator())
        for size in (0, 5)
    )
    assert lost(parts) < lost(whole) < lost(head)  # 240 steps, 20 steps, none
    ends = [
        played(config("creff", rounds=2, method={"head_epochs": 0, "head_start": start}), federation()).server
        for start in ("averaged", "new")
    ]
    same(ends[0].head, selected(ends[0].params, "head."))
    assert not any(torch.equal(value, ends[1].params[name]) for name, value in ends[1].head.items())


def test_creff_with_batch_norm_in_the_head():
    def build() -> tuple[torch.nn.Module, torch.nn.Module]:
        return torch.nn.Linear(4, 5), torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))

    normed = Net("normed head", build, (4,), 3)
    runner = played(
        config("creff", rounds=2, method={"match_steps": 2, "head_epochs": 2}), federation(EQUAL, [normed] * 4)
    )
    assert all(torch.isfinite(value).all() for value in runner.server.head.values())
