"""MP-FedCL's bounds on quadratic clients with embeddings w + x, a prototype per class and client.

Mini-batch noise is a fixed vector with a random sign, and all sequences of signs are enumerated, so that expectations
are exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bound_draws import DRAWS, ROUNDING, never_above, norm, over_draws, share_above, share_of_failures
from protofed.theory import mpfedcl_bounds as mp


class ShiftedClients:
    """Two clients with an example per class; the contrastive loss is Eq. (11) with the example's own class."""

    def __init__(self, seed: int, classes: int) -> None:
        random = np.random.RandomState(seed)
        self.classes, self.x = classes, random.normal(size=(DRAWS, 2, classes, 2)) * 2
        self.h, self.a = random.uniform(0.2, 2, DRAWS), random.normal(size=(DRAWS, 2, 2)) * 3
        self.tau, self.eta = random.uniform(0.5, 20, DRAWS), random.uniform(0.01, 1.5, DRAWS)
        before, pool = random.normal(size=(DRAWS, 2)), random.normal(size=(DRAWS, 2, classes, 2))
        self.w, self.pool, earlier = self.one_round(before, pool)
        self.next, self.next_pool, self.gradients = self.one_round(self.w, self.pool)
        self.G = np.maximum(norm(earlier).max(1), norm(self.gradients).max(1))
        self.square = norm(self.gradients.mean(1)) ** 2
        self.delta2 = (norm(self.gradients) ** 2).mean(1) / self.square
        width = np.max(norm(self.pool[:, :, :, None] - self.pool[:, :, None]), (1, 2, 3))
        self.L1 = self.h + (width / (2 * self.tau)) ** 2  # a variance is at most a quarter of the squared width
        self.v = norm(self.next[:, None, None] + self.x).mean((1, 2))

    def scores(self, w: np.ndarray, pool: np.ndarray) -> np.ndarray:
        """[draws, clients, examples, slots, classes]"""
        v = w[:, None, None] + self.x
        return np.einsum("nied,njcd->niejc", v, pool) / self.tau[:, None, None, None, None]

    def losses(self, w: np.ndarray, pool: np.ndarray) -> np.ndarray:
        """Of every client, [draws, clients]."""
        scores = self.scores(w, pool)
        own = np.einsum("niejc,ec->niej", scores, np.eye(self.classes))
        contrast = (np.logaddexp.reduce(scores, -1) - own).mean((2, 3))
        return self.h[:, None] / 2 * norm(w[:, None] - self.a) ** 2 + contrast

    def one_round(self, w: np.ndarray, pool: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = self.scores(w, pool)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        towards = np.einsum("niejc,njcd->niejd", p - np.eye(self.classes)[None, None, :, None], pool)
        gradients = self.h[:, None, None] * (w[:, None] - self.a) + towards.mean((2, 3)) / self.tau[:, None, None]
        local = w[:, None] - self.eta[:, None, None] * gradients
        return local.mean(1), local[:, :, None] + self.x, gradients


@pytest.mark.parametrize("classes", [2, 3, 8])
def test_mpfedcl_corrected_bounds_hold_in_all_draws_and_printed_ones_fail(classes):
    c = ShiftedClients(classes, classes)
    before, after = c.losses(c.w, c.pool).mean(1), c.losses(c.next, c.pool).mean(1)
    later = c.losses(c.next, c.next_pool).mean(1)
    lemma1 = {"L1": c.L1, "delta2": c.delta2, "eta": c.eta, "square": c.square}
    assert never_above(after - before, over_draws(mp.mpfedcl_lemma1, **lemma1))
    assert never_above(after - before, over_draws(mp.mpfedcl_lemma1, **{**lemma1, "delta2": 1.0}))
    printed = over_draws(mp.mpfedcl_lemma1_printed, **lemma1)
    assert share_of_failures(f"MP-FedCL, Lemma 1, {classes} classes", after - before, printed) > 0.5
    lemma2 = {"L2": 1.0, "eta": c.eta, "G": c.G, "tau": c.tau, "v": c.v}
    assert never_above(later - after, over_draws(mp.mpfedcl_lemma2, **lemma2))
    both = {**lemma1, **lemma2}
    assert never_above(later - before, over_draws(mp.mpfedcl_theorem1, **both))
    printed = over_draws(mp.mpfedcl_theorem1_printed, classes=classes, **both)
    assert share_of_failures(f"MP-FedCL, Theorem 1, {classes} classes", later - before, printed) > 0.01
    del both["eta"]
    limit = over_draws(mp.mpfedcl_corollary1, **both)
    safe = (c.eta <= limit) & (limit > 0)
    assert safe.sum() > 50
    assert ((later - before)[safe] <= ROUNDING).all()


def test_mpfedcl_lemma_1_needs_delta_if_one_client_is_drawn():
    c = ShiftedClients(5, 3)
    steps = [c.losses(c.w - c.eta[:, None] * c.gradients[:, i], c.pool).mean(1) for i in range(2)]
    change = np.mean(steps, 0) - c.losses(c.w, c.pool).mean(1)
    words = {"L1": c.L1, "eta": c.eta, "square": c.square}
    assert never_above(change, over_draws(mp.mpfedcl_lemma1, delta2=c.delta2, **words))
    assert share_above(change, over_draws(mp.mpfedcl_lemma1, delta2=1.0, **words)) > 0.01


def test_mpfedcl_lemma_2_step_by_step():
    """log Σ exp <= Σ is false; the ratio of sums is not the sum of ratios; with two classes A_p = 1 is too small."""
    assert math.log(3 * math.exp(0)) > 0
    old, new = np.array([0.0, 1.0]), np.array([1.0, 2.0])
    assert np.exp(new).sum() / np.exp(old).sum() < np.exp(new - old).sum() - 1  # (A9) has = between them
    d, confident = 0.1, 20.0  # the positive's score falls by d, the other class has all probability and rises by d
    change = -np.log(np.exp(-d) / (np.exp(-d) + np.exp(confident + d))) + np.log(1 / (1 + np.exp(confident)))
    assert change == pytest.approx(2 * d)
    printed = mp.mpfedcl_lemma2_printed(classes=2, L2=1, eta=d, G=1, tau=1, v=1)
    assert change > 1.9 * printed
    assert change <= mp.mpfedcl_lemma2(L2=1, eta=d, G=1, tau=1, v=1, model_steps=1) + ROUNDING
    random = np.random.RandomState(0)
    for classes in (3, 10):
        scores, moved = random.normal(size=(2, DRAWS, classes)) * 3
        change = (scores - np.log(np.exp(scores).sum(-1, keepdims=True)))[:, 0]
        change -= (scores + moved - np.log(np.exp(scores + moved).sum(-1, keepdims=True)))[:, 0]
        largest = np.abs(moved).max(-1)
        assert never_above(change, 2 * largest)
        assert never_above(change, (classes - 1) * largest)


def test_mpfedcl_corollary_1_printed_allows_a_rate_with_which_the_loss_rises():
    """Very different clients (delta2 = 100): the printed limit hardly counts the rise by new prototypes."""
    words = {"L1": 1, "L2": 1, "delta2": 100, "G": 1, "tau": 1, "v": 0.45, "square": 1}
    rate = mp.mpfedcl_corollary1_printed(classes=3, **words)
    assert rate > 1.9
    rise = -(rate - rate**2 / 2) * 1 + 2 * rate * 0.45  # the sharp step, and prototypes that move by eta G
    assert rise > 1
    assert mp.mpfedcl_corollary1(**words) == 0
    without = {**words, "v": 0.0}
    assert mp.mpfedcl_corollary1_printed(classes=3, **without) == 2  # 2 / L1, correct if all clients take part
    assert mp.mpfedcl_theorem2_rounds_printed(classes=3, eta=0.5, epsilon=1, delta=1, **_without(without)) < 1
    assert mp.mpfedcl_theorem2_rounds(eta=0.01, epsilon=1, delta=1, **_without(without)) == pytest.approx(200)


def _without(words: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in words.items() if key != "square"}


def test_mpfedcl_theorem_2_holds_on_quadratics_and_its_printed_form_does_not():
    """Two clients h/2 (w ± a)², no contrast: the exact mean of the squared gradients over T rounds."""
    random, failed = np.random.RandomState(0), 0
    for _ in range(DRAWS):
        h, a, w = random.uniform(0.5, 2), random.uniform(0, 3), random.uniform(0.5, 3)
        eta, rounds = random.uniform(0.01, 0.5) / h, random.randint(1, 6)
        path = w * (1 - eta * h) ** np.arange(rounds)
        squares, delta = (h * path) ** 2, h * w**2 / 2
        delta2 = float(((h * path) ** 2 + (h * a) ** 2).max() / squares.min())  # an upper bound over the rounds
        words = {"L1": h, "L2": 1, "G": 1, "tau": 1, "v": 0, "eta": eta, "delta": delta}
        gain = eta - h * eta**2 / 2
        epsilon = delta / (rounds * gain)  # the corrected theorem with delta2 = 1 needs exactly `rounds`
        assert mp.mpfedcl_theorem2_rounds(delta2=1, epsilon=epsilon, **words) == pytest.approx(rounds)
        assert squares.mean() <= epsilon * (1 + ROUNDING)
        failed += squares.mean() > epsilon / delta2 * (1 + ROUNDING)  # that the printed one promises in these rounds
    assert failed > DRAWS / 2
