"""CReFF by hand: matched gradients, the retrained head, and what goes on from the plain average."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from protofed.core import Prototypes
from protofed.methods.creff import CReFF, head_gradient
from protofed.net import Net, selected
from test_baselines import EQUAL, same
from toys import config, federation, played


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


def test_creffs_retrained_head_beats_fedavgs_on_a_long_tail():
    labels = [[0] * 40 + [1] * 10 + [2] * 2] * 3
    slowly = {"lr": 0.02, "momentum": 0.0}
    how = {"match_lr": 2.0, "head_lr": 0.1}  # for three rounds; its defaults are for many
    ours = played(config("creff", rounds=3, method=how, train=slowly), federation(labels)).rounds[-1]
    plain = played(config("fedavg", rounds=3, train=slowly), federation(labels)).rounds[-1]
    assert ours["accuracy_global"] > plain["accuracy_global"] + 0.3


def test_creffs_next_round_starts_from_the_plain_average():
    ours = played(config("creff", rounds=3, method={"match_steps": 2, "head_epochs": 2}), federation())
    same(ours.server.params, played(config("fedavg", rounds=3), federation()).server.params)


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
