"""Eq. (3), (4) and (6) of FedProto, by hand."""

from __future__ import annotations

import pytest
import torch

from protofed.prototypes import Prototypes
from toys import bank


def test_eq3_prototype_is_the_mean_embedding_of_a_class():
    z = torch.tensor([[1.0, 0.0], [3.0, 4.0], [7.0, 7.0]])
    made = Prototypes.of(z, torch.tensor([1, 1, 2]), classes=4)
    assert made.mean[:, 0].tolist() == [[0, 0], [2, 2], [7, 7], [0, 0]]
    assert made.support[:, 0].tolist() == [0, 2, 1, 0]


def test_class_with_one_sample_is_that_sample():
    made = Prototypes.of(torch.tensor([[5.0, -1.0]]), torch.tensor([0]), classes=1)
    assert made.mean.tolist() == [[[5, -1]]]


def test_no_samples_at_all_give_no_prototypes_and_no_nan():
    made = Prototypes.of(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), classes=3)
    assert made.support.sum() == 0
    assert torch.isfinite(made.mean).all()


# Two clients hold class 0: means (2, 0) from 1 example and (6, 4) from 3; only one holds class 1; nobody holds class 2.
PARTS = [bank({0: [2, 0]}, {0: 1}), bank({0: [6, 4], 1: [1, 1]}, {0: 3, 1: 5})]


@pytest.mark.parametrize(
    ("pooling", "class0", "class1"),
    [
        ("clients", [4, 2], [1, 1]),  # (2 + 6) / 2, (0 + 4) / 2
        ("examples", [5, 3], [1, 1]),  # 1/4 * 2 + 3/4 * 6, 3/4 * 4
        ("written", [2.5, 1.5], [1, 1]),  # the same once more divided by the two holders
    ],
)
def test_eq6_poolings(pooling, class0, class1):
    pooled = Prototypes.pool(PARTS, pooling)
    assert pooled.mean[:, 0].tolist() == [class0, class1, [0, 0]]
    assert pooled.support[:, 0].tolist() == [4, 5, 0]


@pytest.mark.parametrize("pooling", ["clients", "examples", "written"])
def test_order_of_clients_does_not_matter(pooling):
    torch.testing.assert_close(Prototypes.pool(PARTS, pooling), Prototypes.pool(PARTS[::-1], pooling))


def test_what_stands_in_an_unseen_row_does_not_count():
    poisoned = bank({0: [1, 1]})
    poisoned.mean[1] = torch.nan
    assert Prototypes.pool([poisoned, bank({1: [3, 3]})]).mean[:, 0].tolist() == [[1, 1], [3, 3], [0, 0]]


def test_support_may_be_a_fraction():
    halves = [Prototypes(torch.full((1, 1, 1), 4.0), torch.full((1, 1), 0.25))] * 2
    assert Prototypes.pool(halves, "examples").mean.item() == 4
    assert Prototypes.from_sums(torch.tensor([[1.0]]), torch.tensor([0.5])).mean.item() == 2


def test_several_modes_are_not_pooled_by_their_number():
    with pytest.raises(ValueError, match="one prototype per class, got 2"):
        Prototypes.pool([Prototypes.empty(3, 2, modes=2)])
    with pytest.raises(ValueError, match="one prototype per class, got 2"):
        Prototypes.empty(3, 2, modes=2).lookup(torch.tensor([0]))


def test_eq4_nearest_prototype_and_unseen_class_is_never_nearest():
    known = bank({0: [0, 0], 1: [3, 4]})  # class 2 unseen, its mean is (0, 0) too
    distances = known.distances(torch.tensor([[0.0, 0.0], [3.0, 3.0]]))
    assert distances[0].tolist() == [0, 5, torch.inf]
    assert distances[1, 1] == 1
    assert distances.argmin(-1).tolist() == [0, 1]


def test_distance_is_to_the_nearest_of_several_modes():
    two = Prototypes(torch.tensor([[[0.0], [10.0]], [[4.0], [99.0]]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    assert two.distances(torch.tensor([[9.0]])).tolist() == [[1, 5]]


def test_missing_classes_are_filled_from_another_bank():
    filled = bank({0: [1, 1]}).or_else(bank({0: [9, 9], 1: [2, 2]}))
    assert filled.mean[:, 0].tolist() == [[1, 1], [2, 2], [0, 0]]


def test_only_rows_with_support_are_packed():
    packed = PARTS[1].pack()
    assert packed["mean"].tolist() == [[6, 4], [1, 1]]
    assert packed["rows"].tolist() == [0, 1]
    back = Prototypes.unpack(packed)
    assert torch.equal(back.mean, PARTS[1].mean)
    assert torch.equal(back.support, PARTS[1].support)
