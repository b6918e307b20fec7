"""FedProto's bounds on quadratic clients with linear embeddings and the norm as distance.

Mini-batch noise is a fixed vector with a random sign, and all sequences of signs are enumerated, so that expectations
are exact.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from bound_draws import DRAWS, ROUNDING, never_above, norm, over_draws, share_above, share_of_failures
from protofed.theory import fedproto_bounds as fp

STEPS = 3
SIGNS = np.array(list(product((-1.0, 1.0), repeat=STEPS)))  # [8, steps]
CLIENTS = 3


class LinearClients:
    """Per draw three clients with the objective h/2 ||w - a||² + λ ||A w - C||, one round from w with C = Σ q A w."""

    def __init__(self, seed: int = 0, draws: int = DRAWS, eta: Any = None, lam: Any = None) -> None:
        random = np.random.RandomState(seed)
        shape = (draws, CLIENTS)
        self.h = random.uniform(0.2, 2, shape)
        self.a, self.w = random.normal(size=(2, *shape, 2)) * 3
        self.matrix = random.normal(size=(*shape, 2, 2))
        shares = random.uniform(0.1, 1, shape)
        self.q = shares / shares.sum(1, keepdims=True)
        direction = random.normal(size=(*shape, 2))
        self.noise = direction / norm(direction)[..., None] * random.uniform(0, 2, shape)[..., None]
        self.eta = random.uniform(0.01, 0.8, draws) if eta is None else eta
        self.lam = random.uniform(0, 1, draws) if lam is None else lam
        self.walk()

    def embed(self, w: np.ndarray) -> np.ndarray:
        """[draws, clients, sequences, 2]."""
        return np.einsum("nkij,nksj->nksi", self.matrix, w)

    def value(self, w: np.ndarray, prototype: np.ndarray, power: int = 1) -> np.ndarray:
        quadratic = self.h[..., None] / 2 * norm(w - self.a[:, :, None]) ** 2
        return quadratic + self.lam[:, None, None] * norm(self.embed(w) - prototype) ** power

    def gradient(self, w: np.ndarray, prototype: np.ndarray) -> np.ndarray:
        gap = self.embed(w) - prototype
        pull = np.einsum("nkij,nksi->nksj", self.matrix, gap / np.maximum(norm(gap), 1e-300)[..., None])
        return self.h[..., None, None] * (w - self.a[:, :, None]) + self.lam[:, None, None, None] * pull

    def walk(self) -> None:
        """One round for every sequence of signs, and the exact constants of it."""
        w = np.repeat(self.w[:, :, None], len(SIGNS), 2)
        mean = np.einsum("nk,nksi->nsi", self.q, self.embed(w))[:, None]  # the same for all clients
        self.start, self.old, nearest = w, mean, np.full((*self.h.shape, len(SIGNS)), np.inf)
        self.squares, norms = [], []
        for step in range(STEPS):
            full = self.gradient(w, mean)
            batch = full + SIGNS[None, None, :, step, None] * self.noise[:, :, None]
            self.squares.append(norm(full) ** 2)
            norms.append(norm(batch))
            after = w - self.eta[:, None, None, None] * batch
            nearest = np.minimum(nearest, distance_to_segment(mean, self.embed(w), self.embed(after)))
            w = after
        self.end, self.new = w, np.einsum("nk,nksi->nsi", self.q, self.embed(w))[:, None]
        spectral = np.linalg.norm(self.matrix, 2, axis=(-2, -1))
        self.L1 = self.h + self.lam[:, None] * spectral**2 / np.maximum(nearest.min(-1), 1e-300)
        self.L2 = spectral.max(1)
        self.G = np.max([norms_of_step.mean(-1) for norms_of_step in norms], 0).max(1)
        self.largest_norm = np.max(norms, 0).max((1, 2))
        self.sigma2 = norm(self.noise) ** 2
        self.S = np.sum([squares.mean(-1) for squares in self.squares], 0)

    def change(self) -> np.ndarray:
        """The exact expected change of the first client's loss over the round."""
        return (self.value(self.end, self.new) - self.value(self.start, self.old)).mean(-1)[:, 0]

    def constants(self) -> dict[str, Any]:
        return {"L1": self.L1[:, 0], "L2": self.L2, "sigma2": self.sigma2[:, 0], "G": self.G, "lam": self.lam}


def distance_to_segment(point: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    along = b - a
    share = ((point - a) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-300)
    return norm(point - a - np.clip(share, 0, 1)[..., None] * along)


@pytest.fixture(scope="module")
def linear() -> LinearClients:
    return LinearClients()


def test_fedproto_lemmas_and_theorem_1_hold_in_all_draws(linear):
    c = linear.constants()
    training = (linear.value(linear.end, linear.old) - linear.value(linear.start, linear.old)).mean(-1)[:, 0]
    lemma1 = over_draws(fp.fedproto_lemma1, L1=c["L1"], sigma2=c["sigma2"], eta=linear.eta, E=STEPS, S=linear.S[:, 0])
    assert never_above(training, lemma1)
    arrival = (linear.value(linear.end, linear.new) - linear.value(linear.end, linear.old)).mean(-1)[:, 0]
    lemma2 = over_draws(fp.fedproto_lemma2, lam=linear.lam, L2=c["L2"], eta=linear.eta, E=STEPS, G=c["G"])
    assert never_above(arrival, lemma2)
    theorem1 = over_draws(fp.fedproto_theorem1, eta=linear.eta, E=STEPS, S=linear.S[:, 0], **c)
    assert never_above(linear.change(), theorem1)
    assert np.allclose(theorem1, lemma1 + lemma2)
    assert share_above(training, lemma1 - 1e-2) > 0.001  # there are draws in which the bound is nearly attained


def test_fedproto_lemma_2_fails_for_the_squared_distance_and_its_correction_does_not(linear):
    """Sequence by sequence, with the largest norm of a mini-batch gradient as G."""
    left = linear.value(linear.end, linear.new, 2) - linear.value(linear.end, linear.old, 2)
    worst = left[:, 0].max(-1)
    bound = {"lam": linear.lam, "L2": linear.L2, "eta": linear.eta, "E": STEPS, "G": linear.largest_norm}
    printed = over_draws(fp.fedproto_lemma2, **bound)
    assert share_of_failures("FedProto, Lemma 2, with the squared norm", worst, printed) > 0.01
    gaps = norm(linear.embed(linear.end) - linear.old) + norm(linear.embed(linear.end) - linear.new)
    for sequence in range(len(SIGNS)):
        corrected = over_draws(fp.fedproto_lemma2_squared, distances=gaps[:, 0, sequence], **bound)
        assert never_above(left[:, 0, sequence], corrected)


def test_fedproto_corollary_1_makes_the_loss_decrease(linear):
    c = linear.constants()
    limit = over_draws(fp.fedproto_largest_eta, E=STEPS, S=linear.S[:, 0], **c)
    below = (linear.eta < limit) & (limit > 0)
    assert below.sum() > 1000
    assert (linear.change()[below] < 0).all()
    largest = over_draws(fp.fedproto_largest_lambda, L2=c["L2"], G=c["G"], E=STEPS, S=linear.S[:, 0])
    assert ((limit > 0) == (linear.lam < largest)).all()  # the two limits say the same
    first = linear.squares[0].mean(-1)[:, 0]
    printed = over_draws(fp.fedproto_corollary1_lambda, L2=c["L2"], G=c["G"], E=STEPS, square=first)
    assert (printed <= largest + ROUNDING).all()


@pytest.mark.slow
def test_choosing_lambda_and_eta_by_corollary_1_makes_the_expected_decrease_positive():
    """λ and then the learning rate are halved until they satisfy Eq. (17) and (16), with exact constants."""
    draws = 2000
    eta, lam = np.full(draws, 0.5), np.full(draws, 4.0)
    for _ in range(200):
        clients = LinearClients(1, draws, eta, lam)
        c = clients.constants()
        square = clients.squares[0].mean(-1)[:, 0]
        too_large = lam >= over_draws(fp.fedproto_corollary1_lambda, L2=c["L2"], G=c["G"], E=STEPS, square=square)
        sums = np.cumsum([squares.mean(-1)[:, 0] for squares in clients.squares], 0)
        limits = np.min([over_draws(fp.fedproto_largest_eta, E=STEPS, S=S, **c) for S in sums], 0)
        too_fast = ~too_large & (eta >= limits)
        if not (too_large | too_fast).any():
            break
        lam, eta = np.where(too_large, lam / 2, lam), np.where(too_fast, eta / 2, eta)
    assert not (too_large | too_fast).any()
    assert (clients.change() < 0).all()
    assert (lam < 4).mean() > 0.5  # the choice matters
    assert (LinearClients(1, draws, np.full(draws, 0.5), np.full(draws, 4.0)).change() > 0).mean() > 0.1


def test_fedproto_corollary_1_is_not_sufficient_if_the_rate_changes_within_the_round():
    """Two steps, ||∇L||² = 1 and 0, sigma2 = 1, λ = 0: rates below the limits whose bound is positive."""
    words = {"L1": 1, "L2": 1, "sigma2": 1, "G": 1, "lam": 0, "squares": [1, 0]}
    rates = (0.01, 0.66)
    assert all(rate < limit for rate, limit in zip(rates, fp.fedproto_corollary1_etas(**words), strict=True))
    change = sum(-(r - r**2 / 2) * g + r**2 / 2 for r, g in zip(rates, words["squares"], strict=True))
    assert change == pytest.approx(0.2079, abs=1e-4)
    assert rates[1] > fp.fedproto_corollary1_safe_etas(**words)[1]
    random = np.random.RandomState(0)
    for _ in range(DRAWS):
        squares = random.exponential(size=4) * random.randint(0, 2, 4)
        L1, sigma2, lam = random.uniform(0.1, 3), random.exponential(), random.uniform(0, 0.2)
        safe = fp.fedproto_corollary1_safe_etas(L1=L1, L2=1, sigma2=sigma2, G=1, lam=lam, squares=list(squares))
        eta = np.array(safe) * random.uniform(0, 1, 4)
        total = (-(eta - L1 * eta**2 / 2) * squares + L1 * eta**2 * sigma2 / 2 + lam * eta).sum()
        assert total <= ROUNDING


@pytest.mark.slow
def test_fedproto_theorem_2_holds_in_all_draws():
    """Three rounds without noise; epsilon is the smallest one for which Theorem 2 needs at most three rounds."""
    rounds, checked = 3, 0
    for seed in range(2, 12):
        clients = LinearClients(seed)
        clients.noise *= 0
        clients.eta = clients.eta / 20
        parts = []
        first = None
        for _ in range(rounds):
            clients.walk()
            first = clients.value(clients.start, clients.old).mean(-1)[:, 0] if first is None else first
            parts.append((clients.L1[:, 0], clients.L2, clients.G, clients.S[:, 0]))
            clients.w = clients.end[:, :, 0]
        L1, L2, G = (np.max([part[at] for part in parts], 0) for at in range(3))
        mean_square = np.sum([part[3] for part in parts], 0) / (rounds * STEPS)
        eta, lam, valid = clients.eta, clients.lam, clients.eta * L1 < 2
        eps = (2 * first / (rounds * STEPS) + 2 * lam * L2 * eta * G) / (2 * eta - L1 * eta**2) * 1.001
        for at in np.flatnonzero(valid):
            words = {"L1": L1[at], "L2": L2[at], "sigma2": 0.0, "G": G[at], "lam": lam[at]}
            needed = fp.fedproto_theorem2_enough(eta=eta[at], E=STEPS, epsilon=eps[at], delta=first[at], **words)
            assert needed <= rounds
            assert eta[at] < fp.fedproto_theorem2_eta(epsilon=eps[at], **words)
            assert lam[at] < fp.fedproto_theorem2_lambda(L2=L2[at], G=G[at], epsilon=eps[at])
            assert mean_square[at] < eps[at]
            checked += 1
        if checked >= DRAWS:
            break
    assert checked >= DRAWS
