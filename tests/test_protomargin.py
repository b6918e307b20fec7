"""Prototype-guided aggregation, Eq. (4) to (15), by hand: two classes, three clients, points on a line."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from protofed.core import Prototypes, Upload
from protofed.methods.parts.margins import (
    aggregate_mean_margin,
    channels_scaled,
    other_class_distances,
    same_class_distances,
    semantic_margins,
)
from protofed.methods.protomargin import GuidedServer, GuidedUpload, ProtoMargin
from toys import bank, config, federation, figures, played

# On a line, two classes. a: class 0 at 0, class 1 at 4. b: class 0 at 1, class 1 at 7.
A, B = bank({0: [0.0], 1: [4.0]}, classes=2), bank({0: [1.0], 1: [7.0]}, classes=2)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_eq5_to_eq7_by_hand():
    assert same_class_distances(A, B).tolist() == [1, 3]
    assert other_class_distances(A, B).tolist() == [7, 3]  # |0 - 7|, |4 - 1|
    assert semantic_margins(A, B).tolist() == pytest.approx([(7 - 1) / (7 + 1), (3 - 3) / (3 + 3)])


def test_eq6_averages_over_the_other_common_classes_only():
    a = bank({0: [0.0], 1: [4.0], 2: [9.0]})
    b = bank({0: [1.0], 2: [5.0]})  # class 1 is not common
    assert other_class_distances(a, b).tolist() == [5, 0, 8]
    assert semantic_margins(a, b).tolist() == pytest.approx([(5 - 1) / 6, 0, (8 - 4) / 12])


@pytest.mark.parametrize("b", [bank({1: [7.0]}, classes=2), Prototypes.empty(2, 1)], ids=["one common", "none"])
def test_with_one_or_no_common_class_the_margin_is_0(b):
    assert semantic_margins(A, b).tolist() == [0, 0]


def test_an_only_common_class_has_margin_minus_1_if_the_empty_mean_of_eq6_is_0():
    b = bank({1: [7.0]}, classes=2)  # d+ = |4 - 7| = 3 and d- = 0: (0 - 3) / (0 + 3)
    assert semantic_margins(A, b, "minus_one").tolist() == [0, -1]
    assert semantic_margins(A, B, "minus_one").tolist() == semantic_margins(A, B).tolist()  # two common classes
    same = bank({1: [4.0]}, classes=2)  # d+ = d- = 0
    assert semantic_margins(A, same, "minus_one").tolist() == [0, 0]


@pytest.mark.parametrize("single", ["zero", "minus_one"])
def test_where_all_prototypes_coincide_the_margin_is_0(single):
    same = bank({0: [1.0], 1: [1.0]}, classes=2)
    assert semantic_margins(same, same, single).tolist() == [0, 0]


def test_distances_of_rounding_errors_are_no_margin():
    """In two dimensions a scaled prototype is (0, 1) or (1, 0), and pooled weights do not sum to exactly 1."""
    one = bank({0: [0.0, 1.0], 1: [0.0, 1.0]}, classes=2)
    parts = [bank({0: [0.0, 1.0], 1: [0.0, 1.0]}, {0: n, 1: 8 - n}, classes=2) for n in range(1, 8)]
    pooled = Prototypes.pool(parts, "examples")
    assert pooled.mean[:, 0, 1].tolist() != [1, 1]  # otherwise this test shows nothing
    assert semantic_margins(one, pooled).tolist() == [0, 0]
    far = bank({0: [0.0, 1.0], 1: [0.0, 1 + 2**-14]}, classes=2)  # 512 epsilons: a distance
    assert semantic_margins(far, far).tolist() == [1, 1]
    longer = [Prototypes(1000 * prototypes.mean, prototypes.support) for prototypes in (one, pooled)]
    assert semantic_margins(*longer).tolist() == [0, 0]


def test_channels_are_scaled_one_prototype_at_a_time():
    scaled = channels_scaled(bank({0: [2.0, 6.0, 4.0], 2: [5.0, 5.0, 5.0]}))
    assert scaled.mean[:, 0].tolist() == [[0, 1, 0.5], [0, 0, 0], [0, 0, 0]]
    assert scaled.support[:, 0].tolist() == [1, 0, 1]


def test_eq15_in_both_readings_by_hand():
    three = bank({0: [0.0], 1: [4.0], 2: [10.0]})
    assert aggregate_mean_margin(three, "letter") == 1
    assert aggregate_mean_margin(three) == pytest.approx(((4 + 10) / 2 + (4 + 6) / 2 + (10 + 6) / 2) / 3)
    assert aggregate_mean_margin(Prototypes.empty(3, 2)) == 0


def sent(client: int, prototypes: Prototypes, moved: list[float], weight: float, examples: int = 1) -> Upload:
    return Upload(
        client, examples, 1, 1.0, GuidedUpload({"w": torch.tensor([weight])}, prototypes, torch.tensor(moved))
    )


UPLOADS = [
    sent(0, A, [0.5, 0.25], 1.0, 10),
    sent(1, B, [0.0, 0.0], 2.0, 30),
    sent(2, bank({1: [9.0]}, classes=2), [0.0, -1.0], 4.0, 40),  # it has one class
]
KNOWN = bank({0: [1.0], 1: [7.0]}, classes=2)


def test_eq13_in_the_first_round_clients_count_by_their_examples():
    server = GuidedServer({"w": torch.zeros(1)}, Prototypes.empty(2, 1), torch.zeros(0), torch.zeros(2, 0))
    after = ProtoMargin().aggregate(None, server, UPLOADS)
    assert after.attention.tolist() == pytest.approx([1 / 8, 3 / 8, 4 / 8])
    assert after.params["w"].item() == pytest.approx(1 / 8 + 6 / 8 + 16 / 8)


@pytest.mark.parametrize("margins", ["both", "local", "aggregate"])
def test_eq9_to_eq14_by_hand(margins):
    server = GuidedServer({"w": torch.zeros(1)}, KNOWN, torch.zeros(0), torch.zeros(2, 0))
    after = ProtoMargin(margins=margins).aggregate(None, server, UPLOADS)
    local = [sigmoid(0.75), sigmoid(0.0), sigmoid(-1.0)]  # Eq. (11), (8)
    # Eq. (9): client 0 as A against B above; client 1 stands where the aggregate does; client 2 has one common class.
    apart = [sigmoid(6 / 8 + 0), sigmoid(2.0), sigmoid(0.0)]
    shares = {"local": [[v / sum(local) for v in local]], "aggregate": [[v / sum(apart) for v in apart]]}
    shares["both"] = shares["local"] + shares["aggregate"]
    expected = [sum(column) / len(column) for column in zip(*shares[margins], strict=True)]
    assert after.attention.tolist() == pytest.approx(expected)
    told = ProtoMargin().log_entries(after)
    assert told["margins_local"] == pytest.approx([0.75, 0.0, -1.0])
    assert told["margins_aggregate"] == pytest.approx([6 / 8, 2.0, 0.0])
    assert after.params["w"].item() == pytest.approx(expected[0] + 2 * expected[1] + 4 * expected[2])


@pytest.mark.parametrize(("attention", "sign"), [("margin", 1), ("deviation", -1)])
def test_eq11_as_printed_and_as_its_text_says(attention, sign):
    server = GuidedServer({"w": torch.zeros(1)}, KNOWN, torch.zeros(0), torch.zeros(2, 0))
    after = ProtoMargin(attention=attention).aggregate(None, server, UPLOADS)
    local = [sigmoid(sign * total) for total in (0.75, 0.0, -1.0)]
    aggregate = [sigmoid(sign * total) for total in (6 / 8, 2.0, 0.0)]  # as in the test above
    expected = [(a / sum(local) + b / sum(aggregate)) / 2 for a, b in zip(local, aggregate, strict=True)]
    assert after.attention.tolist() == pytest.approx(expected)
    assert after.margins[1].tolist() == pytest.approx([6 / 8, 2.0, 0.0])  # recorded without the sign
    assert (after.attention[1] > after.attention[2]) == (attention == "margin")  # client 1 has not moved


@pytest.mark.parametrize(("attention", "sign"), [("margin", -1), ("deviation", 1)])
def test_table3_the_distance_of_the_same_class_alone(attention, sign):
    server = GuidedServer({"w": torch.zeros(1)}, KNOWN, torch.zeros(0), torch.zeros(2, 0))
    method = ProtoMargin(margins="aggregate", attention=attention, exponent="distance")
    moved = [1.0 + 3.0, 0.0, 2.0]  # d+ of clients 0, 1 and 2, summed over classes
    scores = [sigmoid(sign * distance) for distance in moved]
    after = method.aggregate(None, server, UPLOADS)
    assert after.attention.tolist() == pytest.approx([score / sum(scores) for score in scores])


@pytest.mark.parametrize(("single", "margin"), [("zero", 0.0), ("minus_one", -1.0)])
def test_a_client_with_one_common_class_in_both_readings(single, margin):
    server = GuidedServer({"w": torch.zeros(1)}, KNOWN, torch.zeros(0), torch.zeros(2, 0))
    after = ProtoMargin(margins="aggregate", single=single).aggregate(None, server, UPLOADS)
    scores = [sigmoid(6 / 8), sigmoid(2.0), sigmoid(margin)]
    assert after.attention.tolist() == pytest.approx([score / sum(scores) for score in scores])


def test_eq10_by_hand():
    uploads = [
        sent(0, bank({0: [0.0], 1: [4.0]}, {0: 1, 1: 2}, classes=2), [0.0, 0.0], 0.0),
        sent(1, bank({0: [8.0]}, {0: 3}, classes=2), [0.0, 0.0], 0.0),
    ]
    server = GuidedServer({"w": torch.zeros(1)}, Prototypes.empty(2, 1), torch.zeros(0), torch.zeros(2, 0))
    after = ProtoMargin().aggregate(None, server, uploads)
    assert after.prototypes.mean[:, 0, 0].tolist() == [6, 4]
    assert after.prototypes.support[:, 0].tolist() == [4, 2]


@pytest.mark.parametrize(("absent", "support"), [("forget", [0, 1]), ("keep", [5, 1])])
def test_a_class_that_nobody_has_is_forgotten_or_kept(absent, support):
    server = GuidedServer({"w": torch.zeros(1)}, bank({0: [3.0]}, {0: 5}, classes=2), torch.zeros(0), torch.zeros(2, 0))
    after = ProtoMargin(absent=absent).aggregate(None, server, [sent(0, bank({1: [1.0]}, classes=2), [0.0, 0.0], 0.0)])
    assert after.prototypes.support[:, 0].tolist() == support


def test_identical_clients_count_the_same():
    server = GuidedServer({"w": torch.zeros(1)}, KNOWN, torch.zeros(0), torch.zeros(2, 0))
    attention = ProtoMargin().aggregate(None, server, [sent(n, A, [0.3, 0.1], 0.0, n + 1) for n in range(4)]).attention
    assert attention.tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("known", [KNOWN, Prototypes.empty(2, 1)])
def test_attention_is_positive_sums_to_one_and_knows_no_order(known):
    method = ProtoMargin()
    attention = method.client_weights(known, method.margin_sums(known, UPLOADS), UPLOADS)
    assert (attention > 0).all()
    assert attention.sum().item() == pytest.approx(1)
    turned = UPLOADS[::-1]
    again = method.client_weights(known, method.margin_sums(known, turned), turned)
    assert again.tolist() == pytest.approx(attention.flip(0).tolist())


def test_eq4_and_eq8_prototypes_before_and_after_training():
    y = torch.tensor([0, 0, 1])
    z = {
        True: torch.tensor([[0.0, 2.0, 1.0], [0.0, 4.0, 2.0], [5.0, 0.0, 0.0]]),
        False: torch.tensor([[0.0, 1.0, 0.0], [0.0, 3.0, 0.0], [6.0, 0.0, 3.0]]),
    }
    trained = SimpleNamespace(
        features=lambda before: (z[before], y), net=SimpleNamespace(classes=2), params={"w": torch.zeros(1)}
    )
    message = ProtoMargin().upload(trained)
    # scaled: before (0, 1, .5) and (1, 0, 0); after (0, 1, 0) and (1, 0, .5).
    assert message.prototypes.mean[:, 0].tolist() == [[0, 1, 0], [1, 0, 0.5]]
    assert message.prototypes.support[:, 0].tolist() == [2, 1]
    near, far = 0.5, (2**0.5, 2**0.5)  # (0, 1, .5) to (1, 0, .5); (1, 0, 0) to (0, 1, 0)
    assert message.local_margins.tolist() == pytest.approx(
        [(far[0] - near) / (far[0] + near), (far[1] - near) / (far[1] + near)]
    )
    other_way = ProtoMargin().closeness(message.prototypes, message.prototypes)
    assert other_way.tolist() == [1, 1]  # nothing moved


@pytest.mark.parametrize("margins", ["local", "aggregate", "both"])
def test_very_low_sums_still_have_weights(margins):
    """With many classes and exponent = "distance", sigmoids of the sums are 0 in single precision."""
    method, sums = ProtoMargin(margins=margins), torch.tensor([[-200.0, -201.0, -500.0]] * 2)
    share = math.exp(1) / (1 + math.exp(1))  # sigmoid(x) is exp(x) for such x
    assert method.client_weights(KNOWN, sums, UPLOADS).tolist() == pytest.approx([share, 1 - share, 0])


def test_a_client_without_examples_does_not_count():
    server = GuidedServer({"w": torch.zeros(1)}, KNOWN, torch.zeros(0), torch.zeros(2, 0))
    empty = sent(3, Prototypes.empty(2, 1), [0.0, 0.0], 9.0, 0)
    assert ProtoMargin().aggregate(None, server, [*UPLOADS, empty]).attention[3] == 0
    assert ProtoMargin().aggregate(None, server, [empty, empty]).attention.tolist() == [0.5, 0.5]


def test_a_run_tells_its_attention_and_sends_little_more_than_fedavg():
    runner = played(config("protomargin", rounds=3), federation())
    for row in runner.rounds:
        assert sum(row["attention"]) == pytest.approx(1)
        assert len(row["attention"]) == len(row["clients"])
    assert runner.rounds[0]["attention"][0] == pytest.approx(12 / 28)
    more = figures(runner)["cost"]["up_params"] - figures(played(config("fedavg"), federation()))["cost"]["up_params"]
    held = 3 + 2 + 1 + 0 + 1 + 2
    assert more == held * runner.members.nets[0].dim + 6 * 3
