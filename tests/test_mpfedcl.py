"""MP-FedCL's Eq. (7) to (13) by hand, and its clustering beside scikit-learn's."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from protofed.core import Batch, Prototypes, Upload
from protofed.methods.mpfedcl import Candidates, MpFedCL, PooledModel, PoolingServer
from protofed.methods.parts.clusters import dbscan, kmeans, lloyd, padded_by_class, random_points
from protofed.methods.parts.model_with_prototypes import ModelWithPrototypes
from protofed.net import Net
from protofed.nets.mlp import MlpMpFedCL
from protofed.trust.guard import sift
from toys import LABELS, config, everything, federation, figures, played


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SERVER = SimpleNamespace(generator=lambda purpose: generator())
"""A site at which every purpose has the same generator."""


def blobs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes of 60 points in two groups each."""
    draw = np.random.RandomState(seed)
    centres = draw.normal(0, 6, (3, 2, 4))
    z = np.concatenate([draw.normal(centres[c, g], 1, (30, 4)) for c in range(3) for g in range(2)])
    return torch.from_numpy(z).float(), torch.arange(3).repeat_interleave(60)


def inertia(z: torch.Tensor, centres: torch.Tensor) -> float:
    return float(torch.cdist(z.double(), centres.double()).min(1).values.square().sum())


def test_eq7_from_the_same_starts_it_is_scikit_learns():
    z, y = blobs()
    shuffled = torch.randperm(len(y), generator=generator())
    z, y = z[shuffled], y[shuffled]
    points, there = padded_by_class(z, y, 3)
    starts = points[:, :8]  # many centres for two groups: it takes several steps
    found = lloyd(points, there, starts)
    for label in range(3):
        own = z[y == label]
        reference = KMeans(8, init=starts[label].numpy(), n_init=1, tol=0).fit(own.numpy())
        assert reference.n_iter_ > 3
        torch.testing.assert_close(found.mean[label], torch.from_numpy(reference.cluster_centers_), rtol=0, atol=1e-4)
        assert inertia(own, found.mean[label]) == pytest.approx(reference.inertia_, rel=1e-4)


def test_kmeans_finds_groups_that_are_far_from_the_origin():
    """With |x|² = 7e7 in single precision, squared distances are known to about 8; here the groups are 4 apart."""
    near = torch.cat([torch.zeros(30, 8), torch.full((30, 8), 0.5**0.5)])
    found = kmeans(near + 3000, torch.zeros(60, dtype=torch.long), 1, 2, generator())
    assert sorted(found.support[0].tolist()) == [30, 30]
    assert torch.allclose(found.mean[0].sort(0).values, 3000 + torch.stack([near[0], near[-1]]), rtol=0, atol=0.01)


def test_of_several_tries_the_best_is_kept_also_far_from_the_origin():
    centres = 0.3 * torch.randn(4, 50, generator=generator(1))
    near = centres[torch.arange(80) % 4] + 0.02 * torch.randn(80, 50, generator=generator(2))
    z, y = near + 1000, torch.zeros(80, dtype=torch.long)
    for seed in range(5):
        single, tries = generator(seed), [0.0] * 5
        for number in range(5):
            tries[number] = inertia(z, kmeans(z, y, 1, 4, single, "random").mean[0])
        kept = inertia(z, kmeans(z, y, 1, 4, generator(seed), "random", 5).mean[0])
        assert kept <= 1.01 * min(tries)


def test_kmeans_finds_groups_and_is_a_function_of_the_generator():
    z, y = blobs(3)
    found = kmeans(z, y, 3, 2, generator(1))
    assert found.support.tolist() == [[30, 30]] * 3
    again = kmeans(z, y, 3, 2, generator(1))
    assert torch.equal(found.mean, again.mean)


# A class of 16 equal points and 4 points far away from them and from each other: five groups.
OUTLIERS = torch.tensor([[0.0, 0.0]] * 16 + [[100.0, 0.0], [0.0, 100.0], [-100.0, 0.0], [0.0, -100.0]])


def found_all(starts: str, tries: int = 1, seeds: int = 40) -> float:
    """The share of the seeds with which k-means finds the five groups."""
    one_class = torch.zeros(len(OUTLIERS), dtype=torch.long)
    found = [kmeans(OUTLIERS, one_class, 1, 5, generator(seed), starts, tries) for seed in range(seeds)]
    return sum(sorted(one.support[0].tolist()) == [1, 1, 1, 1, 16] for one in found) / seeds


def test_starts_far_apart_find_groups_that_random_starts_miss():
    assert found_all("kmeans++") == 1  # a start at an equal point has probability 0 after the first
    # Five of the 20 points at random: all four far ones and one of the 16 others has probability 16 / 15,504.
    assert found_all("random") < 0.1


def test_random_starts_are_different_points_of_the_class():
    z, y = torch.arange(12.0).unsqueeze(1), torch.tensor([0, 1] * 6)
    drawn = torch.stack([random_points(*padded_by_class(z, y, 2), 3, generator(seed)) for seed in range(300)])
    assert drawn.shape == (300, 2, 3, 1)
    assert all(len(set(values)) == 3 for values in drawn.flatten(0, 1).squeeze(-1).tolist())
    for label in (0, 1):  # each of 6 points is drawn by half of the 300: 150 with a standard deviation of 9
        values, counts = drawn[:, label].flatten().unique(return_counts=True)
        assert values.tolist() == z[y == label].flatten().tolist()
        assert (counts - 150).abs().max() < 45


def test_several_tries_keep_the_best_try_of_each_class():
    z, y = blobs(5)
    tries, draw = [], generator(2)
    for _ in range(4):  # the same generator, one try after another
        tries.append(kmeans(z, y, 3, 6, draw, "random"))
    spread = torch.tensor([[inertia(z[y == label], one.mean[label]) for label in range(3)] for one in tries])
    best = spread.min(0).values
    assert (spread > 1.01 * best).any(1).all()  # no single try is the best for every class
    found = kmeans(z, y, 3, 6, generator(2), "random", tries=4)
    for label in range(3):
        assert inertia(z[y == label], found.mean[label]) == pytest.approx(best[label].item(), rel=1e-5)
        assert any(torch.equal(found.mean[label], one.mean[label]) for one in tries)
        assert found.support[label].sum() == 60


@pytest.mark.parametrize("starts", ["kmeans++", "random"])
def test_a_class_with_fewer_examples_than_k_has_as_many_centres(starts):
    z = torch.tensor([[0.0, 0.0], [4.0, 4.0], [9.0, 9.0]])
    found = kmeans(z, torch.tensor([0, 0, 2]), 3, 3, generator(), starts, tries=2)
    assert (found.support > 0).sum(1).tolist() == [2, 0, 1]
    assert sorted(found.mean[0, found.support[0] > 0].tolist()) == [[0, 0], [4, 4]]
    assert found.mean[2, found.support[2] > 0].tolist() == [[9, 9]]
    nothing = kmeans(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), 3, 2, generator(), starts)
    assert not nothing.support.any()


def test_equal_points_are_one_centre():
    found = kmeans(torch.ones(5, 2), torch.zeros(5, dtype=torch.long), 1, 2, generator())
    assert found.support.sum() == 5
    assert torch.equal(found.mean[found.support > 0], torch.ones(int((found.support > 0).sum()), 2))


def test_dbscan_takes_the_largest_clusters():
    z = torch.cat([torch.zeros(6, 2), torch.full((9, 2), 10.0), torch.full((5, 2), 20.0), torch.tensor([[99.0, 0.0]])])
    z = z + torch.randn(z.shape, generator=generator()) * 0.01
    found = dbscan(z, torch.zeros(len(z), dtype=torch.long), 2, 2, eps=1.0, neighbours=3)
    assert found.support.tolist() == [[9, 6], [0, 0]]
    assert found.mean[0, 0].tolist() == pytest.approx([10, 10], abs=0.05)


def test_dbscan_that_finds_no_cluster_gives_the_mean():
    z = torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 200.0]])
    found = dbscan(z, torch.tensor([0, 0, 0]), 1, 2, eps=1.0, neighbours=2)
    assert found.support.tolist() == [[3, 0]]
    assert found.mean[0, 0].tolist() == pytest.approx([100 / 3, 200 / 3])
    assert dbscan(z[:1], torch.tensor([0]), 1, 2, eps=0.0, neighbours=4).support.tolist() == [[1, 0]]


# Two clients, k = 2, two dimensions, three classes. Class 0: both clients have two prototypes. Class 1: client 0 has one
# only. Class 2: nobody.
POOL = Prototypes(
    torch.tensor(
        [
            [[1.0, 0.0], [3.0, 0.0], [5.0, 0.0], [7.0, 0.0]],
            [[0.0, 2.0], [0, 0], [0.0, 6.0], [0.0, 10.0]],
            [[0.0, 0.0]] * 4,
        ]
    ),
    torch.tensor([[1.0, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]]),
)


def sent(pool: Prototypes, name: str = "pool") -> PooledModel:
    """What clients get of a pool."""
    return PooledModel({}, {name: pool})


def test_eq9_and_eq10_padding_by_hand():
    slots = MpFedCL(unit=False).prepare(sent(POOL))
    assert slots.seen.tolist() == [1, 1, 0]
    assert slots.u[0].tolist() == [[1, 0], [3, 0], [5, 0], [7, 0]]
    # Client 0 has fewer than two of class 1: both are the mean of all three, (0, 6). Client 1's stay.
    assert slots.u[1].tolist() == [[0, 6], [0, 6], [0, 6], [0, 10]]


def test_eq10_slot_by_slot_by_hand():
    slots = MpFedCL(unit=False, padding="slot").prepare(sent(POOL))
    assert slots.seen.tolist() == [1, 1, 0]
    assert slots.u[0].tolist() == [[1, 0], [3, 0], [5, 0], [7, 0]]
    assert slots.u[1].tolist() == [[0, 2], [0, 6], [0, 6], [0, 10]]  # client 0 keeps the one that it has
    only_class_1 = MpFedCL(unit=False, padding="slot").prepare(
        sent(POOL.of_classes(torch.tensor([False, True, False])))
    )
    assert only_class_1.u[1].tolist() == [[0, 2], [0, 6], [0, 10]]  # client 0 has a second prototype of no class
    empty = MpFedCL(padding="slot").prepare(sent(Prototypes.empty(3, 2, 4)))
    assert empty.u.shape == (3, 4, 2)
    assert MpFedCL().contrastive_loss(torch.tensor([[0.6, 0.8]]), BATCH, empty).item() == 0


def test_dbscan_sends_what_it_finds_and_every_cluster_counts():
    """Two clients and two classes in one dimension, up to k = 4 clusters of at least two points within a distance of 1.

    Client 0 has three clusters of class 0, at 1, 11 and 21, and one of class 1, at 5. Client 1 has one of each, at 3
    and 9.
    """
    method = MpFedCL(k=4, clustering="dbscan", eps=1.0, neighbours=2, padding="slot", unit=False, temperature=50.0)
    held = [([1, 1, 1, 1, 11, 11, 11, 21, 21, 5, 5], [0] * 9 + [1] * 2), ([3, 3, 9, 9], [0, 0, 1, 1])]
    uploads = []
    for client, (values, labels) in enumerate(held):
        z, y = torch.tensor(values).float().unsqueeze(1), torch.tensor(labels)
        trained = SimpleNamespace(features=lambda z=z, y=y: (z, y), net=SimpleNamespace(classes=2), params={})
        uploads.append(Upload(client, len(y), 1, 1.0, method.upload(trained)))
    accepted, rejected = sift(uploads)
    assert not rejected
    server = PoolingServer({}, Prototypes.empty(2, 1, 8), {})
    slots = method.prepare(method.broadcast(method.aggregate(SERVER, server, accepted), 0))
    # The slots of client 0 with one class or two, and the only one of client 1. The mean of class 1 is (5 + 9) / 2 = 7.
    assert slots.u[0, :, 0].tolist() == [1, 11, 21, 3]
    assert slots.u[1, :, 0].tolist() == [5, 7, 7, 9]
    found = method.contrastive_loss(torch.tensor([[10.0]]), BATCH, slots).item()  # v u / tau = u / 5
    pairs = [(1, 5), (11, 7), (21, 7), (3, 9)]
    assert found == pytest.approx(-sum(log_share(own / 5, other / 5) for own, other in pairs) / 4, rel=1e-5)
    # To the letter, a client with fewer than 4 has the mean of the class only: (1 + 11 + 21 + 3) / 4 = 9 for class 0.
    written = replace(method, padding="client").prepare(method.broadcast(method.aggregate(SERVER, server, accepted), 0))
    assert written.u[:, :, 0].tolist() == [[9] * 8, [7] * 8]


SLOTS = Candidates(
    torch.tensor([[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 0.5]], [[0.0, 0.0], [0.0, 0.0]]]),
    torch.tensor([True, True, False]),
)
BATCH = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.ones(1))


def log_share(own: float, other: float) -> float:
    return own - math.log(math.exp(own) + math.exp(other))


def test_eq11_by_hand():
    z = torch.tensor([[0.6, 0.8]])
    found = MpFedCL(unit=False, temperature=0.5).contrastive_loss(z, BATCH, SLOTS).item()
    # slot 0: v.u = 0.6 and 0.8; slot 1: 1.2 and 0.4; over tau: doubled
    assert found == pytest.approx(-(log_share(1.2, 1.6) + log_share(2.4, 0.8)) / 2, rel=1e-5)
    letter = MpFedCL(unit=False, temperature=0.5, positives="letter").contrastive_loss(z, BATCH, SLOTS).item()
    assert letter == pytest.approx(-(log_share(1.6, 1.2) + log_share(0.8, 2.4)) / 2, rel=1e-5)


def test_eq11_over_a_batch_is_the_mean_or_as_written_the_sum():
    """Three examples and one of padding. The last short batch of an epoch is the case in which no weight of the mean
    gives the sum."""
    z = torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.0, 2.0], [9.0, 9.0]])
    labels, weight = torch.tensor([0, 1, 1, 0]), torch.tensor([1.0, 1, 1, 0])
    single = [
        MpFedCL(unit=False).contrastive_loss(z[[row]], Batch(torch.zeros(1, 1), labels[[row]], torch.ones(1)), SLOTS)
        for row in range(3)
    ]
    for reduction, expected in (("mean", sum(single) / 3), ("sum", sum(single))):
        method = MpFedCL(unit=False, reduction=reduction)
        found = method.contrastive_loss(z, Batch(torch.zeros(4, 1), labels, weight), SLOTS)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_eq11_with_unit_lengths_by_hand():
    pool = Prototypes(torch.tensor([[[2.0, 0.0]], [[0.0, 9.0]]]), torch.ones(2, 1))
    slots = MpFedCL(k=1).prepare(sent(pool))
    found = MpFedCL(temperature=1.0).contrastive_loss(torch.tensor([[3.0, 4.0]]), BATCH, slots).item()
    assert found == pytest.approx(-log_share(0.6, 0.8), rel=1e-5)


def test_eq11_pulls_to_the_own_class_and_pushes_from_others():
    z = torch.tensor([[0.1, 0.1]], requires_grad=True)
    (grad,) = torch.autograd.grad(MpFedCL(unit=False).contrastive_loss(z, BATCH, SLOTS), z)
    step = -grad[0]
    assert step[0] > 0  # towards (1, 0) and (2, 0)
    assert step[1] < 0  # away from (0, 1) and (0, 0.5)


@pytest.mark.parametrize("positives", ["own", "letter"])
def test_while_the_pool_is_empty_there_is_no_contrast(positives):
    slots = MpFedCL().prepare(sent(Prototypes.empty(3, 2, 4)))
    z = torch.tensor([[0.6, 0.8]], requires_grad=True)
    loss = MpFedCL(positives=positives).contrastive_loss(z, BATCH, slots)
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, z)[0].any()


def test_a_sample_of_a_class_that_nobody_sent_is_left_out():
    batch = Batch(torch.zeros(1, 1), torch.tensor([2]), torch.ones(1))
    assert MpFedCL(unit=False).contrastive_loss(torch.tensor([[0.6, 0.8]]), batch, SLOTS).item() == 0


def test_eq8_and_the_average_by_hand():
    method = MpFedCL(k=1)
    server = method.start(federation().server(0, 0))

    def upload(client, value, size):
        own = Prototypes.of(torch.full((2, 5), float(value)), torch.tensor([0, 0]), 3)
        return Upload(client, size, 1, 1.0, ModelWithPrototypes({"w": torch.tensor([float(value)])}, own))

    after = method.aggregate(SERVER, server, [upload(1, 4, 30), upload(4, 8, 10)])
    assert after.params["w"].item() == 5
    assert after.pool.support[0].tolist() == [0, 2, 0, 0, 2, 0]
    later = method.aggregate(SERVER, after, [upload(1, 6, 1)])
    assert later.pool.mean[0, :, 0].tolist() == [0, 6, 0, 0, 8, 0]  # who was not there keeps its modes


def test_eq13_by_hand():
    net = lambda params, x: (x, torch.zeros(len(x), 3))  # noqa: E731
    scores = MpFedCL().predict(net, {}, torch.tensor([[4.0, 0.0], [0.0, 9.0]]), sent(POOL), ())["prototype"]
    assert (-scores).tolist() == [
        [1, pytest.approx(math.hypot(4, 2)), math.inf],
        [pytest.approx(math.hypot(1, 9)), 1, math.inf],
    ]


def test_k_1_is_the_single_prototype_method():
    ends = [
        everything(played(config("mpfedcl", method=how), federation())) for how in ({"k": 1}, {"clustering": "mean"})
    ]
    assert ends[0].keys() == ends[1].keys()
    for name in ends[0]:
        torch.testing.assert_close(ends[0][name], ends[1][name], rtol=1e-4, atol=1e-5)


def test_without_contrast_it_is_fedavg():
    ours = played(config("mpfedcl", method={"contrast": 0.0}), federation()).server.params
    plain = played(config("fedavg"), federation()).server.params
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_a_class_with_more_prototypes_than_the_cap_is_merged():
    assert MpFedCL(cap=4).merge(POOL, SERVER) == {}  # class 0 has four
    merged = MpFedCL(cap=3).merge(POOL, SERVER)["merged"]
    assert merged.mean.shape == (3, 3, 2)
    assert merged.support.sum(1).tolist() == [4, 3, 0]
    # Class 0 has more than three: two of its neighbours are one centre now. Class 1 has three: they stay.
    assert sorted(merged.support[0].tolist()) == [1, 1, 2]
    assert sorted(merged.mean[1].tolist()) == [[0, 2], [0, 6], [0, 10]]


def test_merged_prototypes_belong_to_no_client():
    merged = Prototypes(POOL.mean[:2], POOL.support[:2])
    slots = MpFedCL(unit=False).prepare(sent(merged, "merged"))
    assert slots.u[1].tolist() == [[0, 2], [0, 6], [0, 6], [0, 10]]  # only the missing one is the mean
    assert MpFedCL(unit=False).prepare(sent(merged)).u[1].tolist() == [[0, 6], [0, 6], [0, 6], [0, 10]]


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("labels", [LABELS, [[0, 1, 2] * 3] * 3], ids=["awkward", "equal"])
def test_a_cap_that_is_not_exceeded_changes_nothing(k, labels):
    plain = played(config("mpfedcl", method={"k": k}), federation(labels))
    largest = int((plain.server.pool.support > 0).sum(1).max())
    assert largest < plain.server.pool.support.shape[1] or labels is not LABELS  # fewer prototypes than slots
    for cap in (largest, 100):
        capped = played(config("mpfedcl", method={"k": k, "cap": cap}), federation(labels))
        assert everything(plain).keys() == everything(capped).keys()
        for name, value in everything(plain).items():
            assert torch.equal(value, everything(capped)[name]), (cap, name)
    assert [row["down_bytes"] for row in capped.rounds] == [row["down_bytes"] for row in plain.rounds]


def test_a_cap_that_is_exceeded_is_kept_to():
    plain, capped = (played(config("mpfedcl", method={"cap": cap}), federation()) for cap in (0, 3))
    down = capped.method.broadcast(capped.server, 0)
    assert list(down.prototypes) == ["merged"]
    assert down.pool.mean.shape[1] == 3
    assert capped.server.pool.mean.shape[1] == 12
    assert figures(capped)["accuracy"]["prototype"] is not None
    assert capped.rounds[-1]["down_params"] < plain.rounds[-1]["down_params"]
    assert any(not torch.equal(value, plain.server.params[name]) for name, value in capped.server.params.items())


def test_a_client_that_diverged_is_refused_whatever_the_clustering():
    for clustering in ("kmeans", "mean", "dbscan"):
        members = federation([[0, 1, 2] * 4] * 3, [Net("mlp", lambda: MlpMpFedCL().build((4,), 3), (4,), 3)] * 3)
        wild = replace(members.train[0], scale=1e-25)
        runner = played(
            config("mpfedcl", rounds=1, method={"clustering": clustering}),
            replace(members, train=(wild, *members.train[1:])),
        )
        assert list(runner.rounds[0]["rejected"]) == ["0"]


def test_table2_what_a_round_sends():
    large = Net("mlp", lambda: MlpMpFedCL().build((4,), 3), (4,), 3)
    runner = played(config("mpfedcl", rounds=1), federation([[0, 1, 2] * 4], [large]))
    weights = sum(value.numel() for value in runner.server.params.values())
    assert figures(runner)["cost"]["up_params"] == weights + 3 * 2 * 256  # on MNIST: 798,474 + 10 * 2 * 256 = 5,120


@pytest.mark.parametrize("clustering", ["kmeans", "mean", "dbscan"])
def test_every_clustering_runs_on_awkward_clients(clustering):
    runner = played(config("mpfedcl", rounds=2, method={"clustering": clustering, "k": 3}), federation())
    found = figures(runner)
    assert found["accuracy"]["prototype"]["mean"] > 0
    assert all(torch.isfinite(value).all() for value in runner.server.params.values())
