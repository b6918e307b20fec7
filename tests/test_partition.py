from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.data.partitions import PARTITIONS
from protofed.data.partitions.base import Holding, Labels, deal_positions, stratified_share
from protofed.data.partitions.by_class import Dirichlet, NWay, Shards
from protofed.data.partitions.by_origin import ByDomain, FromFile, Natural
from protofed.data.partitions.by_size import DirichletPowerLaw, FedProxPowerLaw, Iid, Pooled, PowerLaw
from protofed.data.sources import SOURCES
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.run import run

TRAIN = np.repeat(np.arange(10), 200)
TEST = np.repeat(np.arange(10), 50)
SEEDS = st.integers(0, 1000)
CLIENTS = st.integers(1, 12)


LABELS = Labels(TRAIN, TEST, 10, ("a", "b", "c"), np.arange(2000) % 3, np.arange(500) % 3)
"""Every example also comes from one of three places."""


IMAGES = Labels(np.arange(6665) % 20, np.zeros(0, np.int64), 20)
"""The number of images and classes of the segmentation data of prototype-guided FL."""


def split(partition, clients=8, seed=0, labels=LABELS) -> list[Holding]:
    return partition.split(labels, clients, seed)


def digest(parts: list[Holding]) -> str:
    arrays = [array.astype("<i8").tobytes() for part in parts for array in part[:2]]
    return hashlib.sha256(b"|".join(arrays)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("by_domain", "d637b0291f3ab138"),
        ("dirichlet", "f854a8db51d93042"),
        ("dirichlet_power_law", "5f1170d14eef9637"),
        ("fedprox_power_law", "ffba2e51fbba5ab9"),
        ("iid", "fdf1bafbcc907594"),
        ("natural", "7c6025ee4833c99d"),
        ("nway", "7ea64ea731a36c49"),
        ("pooled", "592ccf6dd5f1a14b"),
        ("power_law", "06db1b2fa9ddcff8"),
        ("shards", "b7f1fe718a4da753"),
    ],
)
def test_partitions_never_change(name, expected):
    """Golden hashes: draws come from streams that numpy keeps frozen."""
    own = {"natural": 0, "pooled": 0}
    assert digest(split(PARTITIONS[name](), own.get(name, 8), seed=3)) == expected


@given(SEEDS, CLIENTS)
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize(
    "partition",
    [
        Iid(),
        Dirichlet(smallest=0),
        Dirichlet(alpha=5.0, smallest=0, capped=False),
        DirichletPowerLaw(),
        DirichletPowerLaw(alpha=0.01, gamma=1.5),
        PowerLaw(ways=0),
        Shards(ways=10),
        ByDomain(),
        Natural(),
        Pooled(),
    ],
    ids=repr,
)
def test_nothing_is_lost_or_given_twice(partition, seed, clients):
    own = {ByDomain: max(3, clients), Natural: 0, Pooled: 0}
    parts = split(partition, own.get(type(partition), clients), seed)
    for place, labels in enumerate((TRAIN, TEST)):
        given_out = np.concatenate([part[place] for part in parts])
        assert sorted(given_out.tolist()) == list(range(len(labels)))


@given(SEEDS, CLIENTS, st.integers(1, 10), st.integers(1, 12), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_nway_gives_what_was_asked(seed, clients, ways, shots, stdev):
    parts = split(NWay(ways=ways, shots=shots, stdev=stdev, test=7), clients, seed)
    every = np.concatenate([part.train for part in parts])
    assert len(set(every.tolist())) == len(every)  # disjoint
    for part in parts:
        labels, counts = np.unique(TRAIN[part.train], return_counts=True)
        assert max(min(2, ways), ways - stdev) <= len(labels) <= min(10, ways + stdev)
        assert len(set(counts.tolist())) == 1  # the same k for each class of a client
        assert max(1, shots - stdev) <= counts[0] <= shots + stdev
        tested, asked = np.unique(TEST[part.test], return_counts=True)
        assert tested.tolist() == labels.tolist()
        assert set(asked.tolist()) == {7}
        assert len(set(part.test.tolist())) == len(part.test)


def test_nway_test_slices_are_disjoint_while_there_is_enough():
    parts = split(NWay(ways=5, shots=10, test=6), clients=8)  # 8 x 6 < 50
    every = np.concatenate([part.test for part in parts])
    assert len(set(every.tolist())) == len(every)


@pytest.mark.parametrize("name", sorted(PARTITIONS.keys() - {"natural", "pooled", "file"}))  # these draw nothing
def test_same_seed_same_partition_other_seed_another(name):
    partition = PARTITIONS[name]()
    assert digest(split(partition, seed=1)) == digest(split(partition, seed=1)) != digest(split(partition, seed=2))


def test_small_alpha_gives_skewed_clients():
    def classes(alpha: float) -> float:
        parts = split(Dirichlet(alpha=alpha, smallest=0), clients=10)
        return float(
            np.mean([np.max(np.bincount(TRAIN[part.train], minlength=10)) / max(1, len(part.train)) for part in parts])
        )

    assert classes(1e-9) > 0.5  # draws underflow
    assert classes(0.05) > 0.5 > 0.2 > classes(100.0)


def test_dirichlet_test_sets_have_the_shares_of_the_training_sets():
    for part in split(Dirichlet(alpha=0.3), clients=4):
        mine, exam = (
            np.bincount(labels, minlength=10) / per for labels, per in ((TRAIN[part.train], 200), (TEST[part.test], 50))
        )
        assert np.abs(mine - exam).max() <= 0.03  # rounding of a share of 50


def test_dirichlet_gives_the_test_examples_of_a_class_without_training_examples_to_somebody():
    labels = Labels(np.array([0, 0, 2, 2]), np.array([0, 1, 2, 3]), 4)
    for clients in (1, 2):
        parts = split(Dirichlet(smallest=0), clients, labels=labels)
        assert sorted(np.concatenate([part.test for part in parts])) == [0, 1, 2, 3]


def test_dirichlet_can_ask_for_several_classes_per_client():
    def fewest(seed, **options):
        parts = split(Dirichlet(alpha=0.2, **options), clients=20, seed=seed)
        return min(len(np.unique(TRAIN[part.train])) for part in parts)

    without = [fewest(seed) for seed in range(12)]
    assert min(without) == 1
    assert min(fewest(seed, min_classes=2) for seed in range(12)) >= 2
    enough = next(seed for seed in range(12) if without[seed] >= 2)  # the first draw is accepted: nothing changes
    assert digest(split(Dirichlet(alpha=0.2, min_classes=2), 20, enough)) == digest(
        split(Dirichlet(alpha=0.2), 20, enough)
    )


@given(SEEDS, st.integers(5, 12), st.integers(1, 10))
@settings(max_examples=25, deadline=None)
def test_shards_have_as_many_classes_as_asked_and_even_shares(seed, clients, ways):
    parts = split(Shards(ways=ways), clients, seed)
    every = np.concatenate([part.train for part in parts])
    assert len(set(every.tolist())) == len(every)
    if clients * ways >= 10:
        assert len(every) == len(TRAIN)  # every class has somebody
    counts = np.stack([np.bincount(TRAIN[part.train], minlength=10) for part in parts])
    assert ((counts > 0).sum(1) == ways).all()
    for column in counts.T:
        assert np.ptp(column[column > 0], axis=0) <= 1 if (column > 0).any() else True


@given(SEEDS, st.integers(5, 20), st.integers(1, 10), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_power_law_gives_the_smallest_and_uneven_sizes(seed, clients, ways, smallest):
    parts = split(PowerLaw(ways=ways, smallest=smallest), clients, seed)
    counts = np.stack([np.bincount(TRAIN[part.train], minlength=10) for part in parts])
    assert ((counts > 0).sum(1) <= ways).all()
    assert (np.sort(counts, 1)[:, -ways:] >= smallest).all()
    every = np.concatenate([part.train for part in parts])
    assert len(set(every.tolist())) == len(every)


def test_fedprox_gives_consecutive_classes_the_smallest_and_even_shares_without_sigma():
    """10 clients with 2 classes: a class has 2 clients, which get 5 each and half of the other 190."""
    for client, part in enumerate(split(FedProxPowerLaw(sigma=0.0), 10)):
        counts = np.bincount(TRAIN[part.train], minlength=10)
        assert counts[[client, (client + 1) % 10]].tolist() == [100, 100]
        assert counts.sum() == 200
        assert set(TEST[part.test]) == {client, (client + 1) % 10}
    sizes = [len(part.train) for part in split(FedProxPowerLaw(sigma=0.0, smallest=6), 30)]
    assert set(sizes) == {2 * (6 + (200 - 6 * 6) // 6)}  # rounded down: two examples of each class are left out
    with pytest.raises(UserError, match=r"class 0 has 200 training examples for the 6 clients .* Use 33 or less"):
        split(FedProxPowerLaw(smallest=34), 30)


def test_fedprox_draws_a_size_per_client_and_class_as_its_mnist_has_them():
    """70,000 digits, 1,000 clients. Prototype-guided FL's Table 1 has nine tenths of them: 61,676, deviation 164.7."""
    digits = np.repeat(np.arange(10), [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])
    labels = Labels(digits, np.zeros(0, np.int64), 10)
    for seed in range(4):
        parts = split(FedProxPowerLaw(), 1000, seed, labels)
        every = np.concatenate([part.train for part in parts])
        assert len(set(every.tolist())) == len(every)
        counts = np.stack([np.bincount(digits[part.train], minlength=10) for part in parts])
        assert ((counts > 0).sum(1) == 2).all()
        assert counts[counts > 0].min() == 5
        nine_tenths = np.floor(0.9 * counts.sum(1))
        assert 61_600 < nine_tenths.sum() < 61_750
        assert 110 < nine_tenths.std() < 210
        assert 0.84 < counts.max(1).sum() / counts.sum() < 0.89  # one weight per client would give 0.54


def test_sizes_are_more_uneven_the_larger_sigma_and_the_smaller_gamma():
    def spread(partition) -> float:
        sizes = [len(part.train) for part in split(partition, 20)]
        return float(np.std(sizes) / np.mean(sizes))

    assert spread(PowerLaw(sigma=0.0)) < 0.1 < 0.5 < spread(PowerLaw(sigma=2.0))
    assert spread(DirichletPowerLaw(gamma=10.0)) < spread(DirichletPowerLaw(gamma=1.5))


def test_gamma_is_the_pareto_index_of_the_sizes():
    """Sizes are proportional to weights of at least 1, and P(weight > w) = w^-gamma."""
    sizes = np.sort([len(part.train) for part in split(DirichletPowerLaw(gamma=3.0), 100, labels=IMAGES)])
    assert sizes.sum() == 6665
    above_double = np.mean(sizes > 2 * sizes[0])
    assert 0.125 / 2 < above_double < 0.125 * 2  # 2^-3; with density size^-3 it would be 2^-2
    # Prototype-guided FL, Table 1: 100 clients, 6,665 images, standard deviation 25.7.
    spreads = [np.std([len(part.train) for part in split(DirichletPowerLaw(), 100, s, IMAGES)]) for s in range(9)]
    assert 25 < np.median(spreads) < 36


def test_a_small_alpha_gives_few_classes_with_power_law_sizes():
    def classes(alpha: float) -> float:
        parts = split(DirichletPowerLaw(alpha=alpha), 20)
        return float(np.mean([len(np.unique(TRAIN[part.train])) for part in parts]))

    assert classes(0.01) < 4 < 8 < classes(100.0)


def test_by_domain_gives_every_client_one_domain():
    parts = split(ByDomain(), 7)
    for client, part in enumerate(parts):
        assert set(LABELS.train_group[part.train]) == set(LABELS.test_group[part.test]) == {client % 3}
    assert len(split(ByDomain(), 0)) == 3


def test_shots_are_so_many_of_each_class_and_client():
    """The test sets and the choice of clients stay as they are; more shots add examples to those of fewer."""
    everything, five, nine = (split(ByDomain(shots=shots), 7, seed=2) for shots in (0, 5, 9))
    for full, few, more in zip(everything, five, nine, strict=True):
        assert np.bincount(TRAIN[few.train]).tolist() == [5] * 10
        assert np.bincount(TRAIN[more.train]).tolist() == [9] * 10
        assert set(few.train) < set(more.train) < set(full.train)
        assert np.array_equal(few.train, np.sort(few.train))
        assert np.array_equal(few.test, full.test)
    assert digest(five) != digest(split(ByDomain(shots=5), 7, seed=3))


def test_a_class_with_fewer_examples_than_shots_is_taken_completely():
    y, domain = np.array([0, 0, 0, 1, 0, 1, 1]), np.array([0, 0, 0, 0, 1, 1, 1])
    parts = split(ByDomain(shots=2), 0, labels=Labels(y, y, 2, ("a", "b"), domain, domain))
    assert [np.bincount(y[part.train]).tolist() for part in parts] == [[2, 1], [1, 2]]
    assert parts[0].train[-1] == 3  # the only example of class 1
    assert [part.test.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6]]


def test_natural_clients_are_the_groups():
    parts = split(Natural(), 0)
    assert [set(LABELS.train_group[part.train]) for part in parts] == [{0}, {1}, {2}]
    assert len(split(Natural(), 2)) == 2


def test_a_thousand_clients_are_partitioned_in_no_time_and_without_a_copy(mnist_root):
    data = SOURCES["mnist"](mnist_root)
    began = time.perf_counter()
    parts = PowerLaw().split(data.partition_labels(), 1000, 0)
    assert time.perf_counter() - began < 2
    sizes = np.array([len(part.train) for part in parts])
    assert (len(parts), sizes.sum(), sizes.min()) == (1000, 60_000, 10)
    assert sizes.std() > 1.5 * sizes.mean()
    assert all(len(np.unique(data.train.y[part.train])) == 2 for part in parts)
    assert all(data.train.subset(part.train).x is data.train.x for part in parts)


@given(SEEDS, st.sampled_from([0.1, 0.2, 0.25, 0.5, 1.0]))
@settings(max_examples=20, deadline=None)
def test_a_share_of_each_class_is_set_aside(seed, share):
    held = stratified_share(TRAIN[:1234], share, random_state(seed))
    for label in range(7):
        own = held[TRAIN[:1234] == label]
        assert own.sum() == int(len(own) * share + 1e-9)


def test_deal_by_hand():
    shares = np.array([[0.5, 0.5], [1.0, 0.0]])
    first, second = deal_positions(np.array([0, 0, 0, 0, 1, 1]), shares, random_state(0))
    assert len(first) == 4
    assert set(second.tolist()) < {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (NWay(ways=11), 8, "partition.ways: got 11, but there are 10 classes. Use 10 or fewer."),
        (
            NWay(ways=10, shots=50, stdev=0),
            8,
            "partition.shots: got 50, but class 0 has 200 training examples and the 8 clients "
            "that hold it need 400. Use 25 shots or fewer, fewer clients or fewer ways.",
        ),
        (NWay(test=51), 8, "partition.test: got 51, but class 0 has 50 test examples. Use 50 or fewer."),
        (Shards(ways=11), 8, "partition.ways: got 11, but there are 10 classes. Use 10 or fewer."),
        (
            PowerLaw(ways=10, smallest=30),
            8,
            "partition.smallest: got 30, but class 0 has 200 training examples for the 8 clients that have it. Use 25 or less, or fewer clients.",
        ),
        (ByDomain(), 2, "data.clients: got 2, but there are 3 domains (a, b, c). Use 3 or more."),
        (Natural(), 4, "data.clients: got 4, but the data have 3 groups. Use 3 or fewer."),
        (Pooled(), 4, "data.clients: got 4, but partition pooled has one client. Leave data.clients out."),
        (
            Iid(),
            3000,
            "data.clients: got 3000, but there are 2,000 training examples. Use 2,000 or fewer, or more examples (data.limit, if it is set).",
        ),
        (
            Dirichlet(smallest=100),
            50,
            "data.clients: got 50, but there are 2,000 training examples, fewer than 100 per client (partition.smallest). Use 20 or fewer, or more examples (data.limit, if it is set).",
        ),
        (
            Dirichlet(alpha=0.01, smallest=90),
            20,
            "partition.smallest: got 90, but in each of 1,000 draws of Dirichlet(0.01) over 20 clients and 2000 "
            "examples some client had fewer. Use a smaller number, a larger alpha or fewer clients.",
        ),
        (
            Dirichlet(alpha=0.1, smallest=2, min_classes=9),
            20,
            "partition.min_classes: got 9, but in each of 1,000 draws of Dirichlet(0.1) over 20 clients and 2000 "
            "examples some client had fewer, or fewer than 2 examples. "
            "Use a smaller number, a larger alpha or fewer clients.",
        ),
        (Dirichlet(min_classes=11), 8, "partition.min_classes: got 11, but there are 10 classes. Use 10 or fewer."),
    ],
)
def test_infeasible_requests_say_what_would_do(partition, clients, message):
    with pytest.raises(UserError) as caught:
        split(partition, clients)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["by_domain", "natural"])
def test_data_that_do_not_say_where_they_come_from(name):
    with pytest.raises(UserError) as caught:
        split(PARTITIONS[name](), labels=Labels(TRAIN, TEST, 10))
    assert str(caught.value) == (
        f"partition.name: got {name}, but these data do not say where each example comes from. "
        "Use another partition, such as dirichlet."
    )


def test_a_partition_is_loaded_back_from_its_file(tmp_path):
    table = {"run": {"rounds": 1}, "data": {"clients": 4}, "eval": {"test": "own", "validation": 0.2}}
    first = run({**table, "partition": {"name": "dirichlet"}}, tmp_path / "a").state.members
    path = str(tmp_path / "a" / "partition.json")
    again = {"run": {"rounds": 1, "seed": 5}, "partition": {"name": "file", "path": path}, "eval": table["eval"]}
    second = run(again, tmp_path / "b").state.members
    for a, b in zip(first.parts, second.parts, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    hashes = [json.loads((tmp_path / name / "partition.json").read_text())["sha256"] for name in "ab"]
    assert hashes[0] == hashes[1]
    for change, message in (
        ({"partition": {"name": "file"}}, "partition.path is not set. Set it to the partition.json of a run."),
        ({"data": {"clients": 3}}, r"data.clients: got 3, but .* has 4. Leave data.clients out."),
    ):
        with pytest.raises(UserError, match=message):
            run({**again, **change})
    with pytest.raises(UserError, match="belongs to other data: it has position"):
        split(FromFile(path), 0, labels=Labels(TRAIN[:10], TEST, 10))
    with pytest.raises(UserError, match="the examples at its positions have other labels"):
        split(FromFile(path), 0, labels=Labels((TRAIN + 1) % 10, TEST, 10))
    (tmp_path / "half.json").write_text('{"clients": [{"train": [1]}]}')
    with pytest.raises(UserError, match=r"is not a complete partition.json"):
        split(FromFile(str(tmp_path / "half.json")), 0)


def test_examples_that_a_seed_draws_are_part_of_the_hash_and_need_their_seed(tmp_path):
    table = {"run": {"rounds": 1, "seed": 0}, "data": {"clients": 4, "limit": 300}, "partition": {"name": "shards"}}
    run(table, tmp_path / "a")
    path = str(tmp_path / "a" / "partition.json")
    again = {"run": {"rounds": 1, "seed": 0}, "data": {"limit": 300}, "partition": {"name": "file", "path": path}}
    assert Members.of(Config.of(again)).describe()["sha256"] == json.loads(Path(path).read_text())["sha256"]
    with pytest.raises(UserError, match=r"with data\.limit, its run\.seed, which draws the examples"):
        Members.of(Config.of({**again, "run": {"rounds": 1, "seed": 1}}))
    pooled = [
        Members.of(Config.of({"data": {"limit": 300}, "partition": {"name": "pooled"}, "run": {"seed": seed}}))
        for seed in (0, 0, 1)
    ]
    first, same, other = (members.describe()["sha256"] for members in pooled)
    assert first == same != other
