from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.data.partition import PARTITIONS, Dirichlet, Iid, NWay, Part, deal
from protofed.draws import random_state
from protofed.errors import UserError

TRAIN = np.repeat(np.arange(10), 200)
TEST = np.repeat(np.arange(10), 50)
SEEDS = st.integers(0, 1000)
CLIENTS = st.integers(1, 12)


def split(partition, clients=8, seed=0, train=TRAIN, test=TEST) -> list[Part]:
    return partition.split(train, test, 10, clients, seed)


def digest(parts: list[Part]) -> str:
    return hashlib.sha256(b"|".join(array.astype("<i8").tobytes() for part in parts for array in part)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "expected"), [("dirichlet", "f854a8db51d93042"), ("iid", "fdf1bafbcc907594"), ("nway", "7ea64ea731a36c49")]
)
def test_partitions_never_change(name, expected):
    """Golden hashes: draws come from streams that numpy keeps frozen."""
    assert digest(split(PARTITIONS[name](), seed=3)) == expected


@given(SEEDS, CLIENTS)
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("partition", [Iid(), Dirichlet(smallest=0), Dirichlet(alpha=5.0, smallest=0, capped=False)])
def test_nothing_is_lost_or_given_twice(partition, seed, clients):
    parts = split(partition, clients, seed)
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


@pytest.mark.parametrize("name", sorted(PARTITIONS))
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


def test_deal_by_hand():
    shares = np.array([[0.5, 0.5], [1.0, 0.0]])
    first, second = deal(np.array([0, 0, 0, 0, 1, 1]), shares, random_state(0))
    assert len(first) == 4
    assert set(second.tolist()) < {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (NWay(ways=11), 8, "partition.ways: got 11, but there are 10 classes. Use 10 or fewer."),
        (NWay(ways=10, shots=50, stdev=0), 8, "partition.shots: got 50, but class 0 has 200 training examples for the 8 clients "
         "that hold it, which want 400. Use 25 shots or fewer, fewer clients or fewer ways."),
        (NWay(test=51), 8, "partition.test: got 51, but class 0 has 50 test examples. Use 50 or fewer."),
        (Iid(), 3000, "data.clients: got 3000, but there are 2,000 training examples. Use 2000 clients or fewer."),
        (Dirichlet(smallest=100), 50, "data.clients: got 50, but there are 2,000 training examples, too few for 100 each (partition.smallest). Use 20 clients or fewer."),
        (Dirichlet(alpha=0.01, smallest=90), 20, "partition.smallest: got 90, but 1,000 draws of Dirichlet(0.01) over 20 clients and 2000 "
         "examples gave some client fewer. Use a smaller number, a larger alpha or fewer clients."),
    ],
)  # fmt: skip
def test_infeasible_requests_say_what_would_do(partition, clients, message):
    with pytest.raises(UserError) as caught:
        split(partition, clients)
    assert str(caught.value) == message
