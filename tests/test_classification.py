"""Measures of classification: by hand, and beside scikit-learn's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, roc_auc_score

from protofed.engines.scoring import hit, predicted, tally
from protofed.examples import Examples
from protofed.measures.classification import auc, balanced_accuracy, calibration_error, confusion, macro_f1
from protofed.measures.evenness import evenness

# Four classes, of which 3 is neither among the labels nor among the answers; 1 is answered but is no label.
Y = torch.tensor([0, 0, 0, 0, 2, 2])
ANSWERS = torch.tensor([0, 0, 0, 1, 2, 0])


def test_confusion_by_hand():
    assert confusion(Y, ANSWERS, 4).tolist() == [[3, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]


def test_balanced_accuracy_by_hand_is_over_the_classes_that_occur():
    assert balanced_accuracy(Y, ANSWERS, 4) == (3 / 4 + 1 / 2) / 2


def test_macro_f1_by_hand_is_over_classes_that_are_labels_or_answers():
    # 0: precision 3/4, recall 3/4; 1: 0; 2: precision 1, recall 1/2, so 2/3; 3 does not count.
    assert macro_f1(Y, ANSWERS, 4) == pytest.approx((3 / 4 + 0 + 2 / 3) / 3)


def test_no_answer_is_wrong_but_no_class():
    answers = torch.tensor([-1, 0, 0, 0, 2, 2])
    assert confusion(Y, answers, 3).tolist() == [[3, 0, 0], [0, 0, 0], [0, 0, 2]]
    assert balanced_accuracy(Y, answers, 3) == (3 / 4 + 1) / 2
    assert macro_f1(Y, answers, 3) == pytest.approx((2 * 3 / (4 + 3) + 1) / 2)


def test_auc_by_hand():
    # Class 0 against the rest: pairs (0.9, 0.3), (0.9, 0.5), (0.5, 0.3), (0.5, 0.5): 1, 1, 1, a half. Class 1 has the
    # scores 0.1, 0.5 of others and 0.7, 0.2 of its own: 1, 1, 1, 0.
    scores = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7], [0.5, 0.2]])
    y = torch.tensor([0, 0, 1, 1])
    assert auc(scores, y) == pytest.approx((3.5 / 4 + 3 / 4) / 2)


def test_auc_where_there_is_nothing_to_compare():
    scores = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    assert auc(scores, torch.tensor([1, 1])) is None
    assert auc(scores[:0], torch.tensor([], dtype=torch.long)) is None
    assert auc(scores * torch.nan, torch.tensor([0, 1])) is None


def test_calibration_error_by_hand():
    # Confidences 0.95 (right), 0.95 (wrong), 0.61 (right), 0.62 (right): bins of a fifteenth put the first two together
    # (14/15, 1], the others into (9/15, 10/15]. Gaps: |1/2 - 0.95| * 2/4 + |1 - 0.615| * 2/4.
    sure = torch.tensor([0.95, 0.95, 0.61, 0.62], dtype=torch.double)
    found = calibration_error(torch.stack([sure, 1 - sure], 1), torch.tensor([0, 1, 0, 0]))
    assert found == pytest.approx(0.5 * 0.45 + 0.5 * 0.385)


def test_the_bins_are_open_below_and_closed_above():
    # With two bins 0.5 belongs to the lower one: alone there, and right, it is 0.5 off; 0.6 is wrong. In one bin they
    # would be |1/2 - 0.55|.
    probabilities = torch.tensor([[0.5, 0.5], [0.6, 0.4]], dtype=torch.double)
    assert calibration_error(probabilities, torch.tensor([0, 1]), bins=2) == pytest.approx((0.5 + 0.6) / 2)
    assert calibration_error(probabilities, torch.tensor([0, 1]), bins=1) == pytest.approx(0.05)


def test_whoever_is_as_sure_as_right_is_calibrated():
    four = torch.tensor([[0.75, 0.25]] * 4)
    assert calibration_error(four, torch.tensor([0, 0, 0, 1])) == pytest.approx(0)
    assert calibration_error(torch.tensor([[1.0, 0.0]]), torch.tensor([0])) == 0
    assert calibration_error(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == 1


def test_without_examples_there_is_nothing_to_say():
    nothing = torch.zeros(0, dtype=torch.long)
    assert confusion(nothing, nothing, 2).tolist() == [[0, 0], [0, 0]]
    assert balanced_accuracy(nothing, nothing, 2) is macro_f1(nothing, nothing, 2) is None
    assert calibration_error(torch.zeros(0, 2), nothing) is None
    assert calibration_error(torch.full((1, 2), torch.nan), torch.tensor([0])) is None


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("seed", range(5))
def test_scikit_learn_finds_the_same(seed):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (80,), generator=draw)
    y[y == seed] = (seed + 1) % 5  # a class that does not occur
    logits = torch.randn(80, 5, generator=draw) + 2 * torch.eye(5)[y]
    probabilities = (logits.softmax(-1) * 20).round() / 20  # with ties
    answers = predicted(logits)
    assert confusion(y, answers, 5).tolist() == confusion_matrix(y, answers, labels=range(5)).tolist()
    assert balanced_accuracy(y, answers, 5) == pytest.approx(balanced_accuracy_score(y, answers))
    assert macro_f1(y, answers, 5) == pytest.approx(f1_score(y, answers, average="macro"))
    areas = [roc_auc_score(y == label, probabilities[:, label]) for label in y.unique().tolist()]
    assert len(areas) == 4
    assert auc(probabilities, y) == pytest.approx(np.mean(areas))


def test_scikit_learns_one_against_the_rest_is_ours_where_all_classes_occur():
    draw = torch.Generator().manual_seed(9)
    y = torch.arange(60) % 3
    probabilities = (torch.randn(60, 3, generator=draw).double() + torch.eye(3)[y]).softmax(-1)
    assert auc(probabilities, y) == pytest.approx(roc_auc_score(y, probabilities, multi_class="ovr", average="macro"))


def test_auc_counts_ties_half_and_orders_minus_infinity():
    # Class 0 has the scores 3 and -inf, class 1 the scores 1, 3, 3. Wins of class 0: 1, a half, a half; 0, 0, 0.
    scores = torch.tensor([3.0, -math.inf, 1.0, 3.0, 3.0])
    assert auc(torch.stack([scores, -scores], 1), torch.tensor([0, 0, 1, 1, 1])) == 2 / 6


def test_the_answer_is_the_highest_score_if_it_is_finite():
    scores = torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf], [torch.nan, 1.0], [0.0, -torch.inf]])
    assert predicted(scores).tolist() == [1, -1, -1, 0]
    assert hit(scores, torch.tensor([1, 0, 1, 0])).tolist() == [True, False, False, True]


def test_evenness_by_hand():
    values = [0.5] * 9 + [0.1, 0.2, 0.9]  # twelve clients: the worst tenth are two
    found = evenness(values)
    assert found["mean"] == pytest.approx(5.7 / 12)
    assert found["std"] == pytest.approx(np.std(values))
    assert found["worst_tenth"] == pytest.approx((0.1 + 0.2) / 2)
    assert found["jain"] == pytest.approx(5.7**2 / (12 * (9 * 0.25 + 0.01 + 0.04 + 0.81)))


def test_evenness_at_its_ends():
    assert evenness([0.3] * 4)["jain"] == pytest.approx(1)
    assert evenness([0.0, 0.0, 0.0, 0.8])["jain"] == pytest.approx(1 / 4)
    assert evenness([0.0, 0.0])["jain"] == 1
    assert evenness([0.7])["worst_tenth"] == 0.7
    assert evenness([]) is None


def test_examples_are_counted_batch_by_batch_and_no_more_than_one_where_nobody_answers():
    data, asked = Examples(torch.zeros(1100, 1), torch.arange(1100) % 2, torch.arange(1100)), []

    def ones(x):
        asked.append(len(x))
        return {"head": torch.tensor([[0.0, 1.0]]).expand(len(x), 2)}

    assert tally(ones, data) == {"head": 550}
    assert asked == [512, 512, 76]
    assert tally(lambda x: asked.append(len(x)) or {}, data) == {}
    assert asked[3:] == [512]
