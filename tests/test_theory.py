"""The papers' bounds: values computed by hand, and every bound on clients whose constants are known exactly.

The clients are quadratic, plus the term of the method. Mini-batch noise is a fixed vector with a random sign, and all
sequences of signs are enumerated, so that expectations are exact.
"""

from __future__ import annotations

import inspect
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protofed.studies.reproduce.papers import ENTRIES
from protofed.theory import fednh_bounds as nh
from protofed.theory import fedproto_bounds as fp
from protofed.theory import mpfedcl_bounds as mp
from protofed.theory.statements import STATEMENTS

PAGE = (Path(__file__).parents[1] / "docs" / "theory.md").read_text(encoding="utf-8")
DRAWS = 10_000
ROUNDING = 1e-9
"""Sums of a few hundred doubles of size 1 to 1000."""


def norm(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x, axis=-1)


def over_draws(bound: Any, **constants: Any) -> np.ndarray:
    """A scalar function for every draw."""
    names, columns = list(constants), np.broadcast_arrays(*constants.values())
    return np.array([bound(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)])


def never_above(left: np.ndarray, right: np.ndarray) -> bool:
    return bool((left <= right + ROUNDING * (1 + np.abs(right))).all())


def share_above(left: np.ndarray, right: np.ndarray) -> float:
    return float((left > right + ROUNDING * (1 + np.abs(right))).mean())


def share_of_failures(name: str, left: np.ndarray, right: np.ndarray) -> float:
    """In how many draws a printed bound fails; docs/theory.md must say it."""
    share = share_above(left, right)
    assert f"| {name} | {100 * share:.0f} % |" in PAGE, (name, share)
    return share


# ---- hand-computed values; each docstring has another one ----


def test_fedproto_by_hand():
    assert fp.fedproto_lemma1(L1=4, sigma2=3, eta=0.25, E=2, S=8) == -(0.25 - 0.125) * 8 + 4 * 2 * 0.0625 * 3 / 2
    assert fp.fedproto_lemma2(lam=2, L2=0.5, eta=0.25, E=2, G=3) == 1.5
    assert fp.fedproto_lemma2_squared(lam=2, L2=0.5, eta=0.25, E=2, G=3, distances=0.5) == 0.75
    assert fp.fedproto_theorem1(L1=4, L2=0.5, sigma2=3, G=3, eta=0.25, lam=2, E=2, S=8) == -1 + 0.75 + 1.5
    assert fp.fedproto_largest_eta(L1=4, L2=0.5, sigma2=3, G=3, lam=2, E=2, S=8) == 2 * (8 - 6) / (4 * (8 + 6))
    assert fp.fedproto_largest_eta(L1=4, L2=0.5, sigma2=3, G=3, lam=3, E=2, S=8) == 0  # 8 < 9
    assert fp.fedproto_largest_lambda(L2=0.5, G=3, E=2, S=8) == 8 / 3
    assert fp.fedproto_largest_lambda(L2=0, G=3, E=2, S=8) == math.inf
    etas = fp.fedproto_corollary1_etas(L1=4, L2=0.5, sigma2=3, G=3, lam=1, squares=[5, 3])
    assert etas == [2 * (5 - 3) / (4 * (5 + 6)), 2 * (8 - 3) / (4 * (8 + 6))]
    safe = fp.fedproto_corollary1_safe_etas(L1=4, L2=0.5, sigma2=3, G=3, lam=1, squares=[5, 1, 0])
    assert safe == [2 * (5 - 1.5) / (4 * (5 + 3)), 0, 0]
    assert fp.fedproto_corollary1_safe_etas(L1=4, L2=0.5, sigma2=0, G=3, lam=0, squares=[0]) == [0]
    assert fp.fedproto_corollary1_lambda(L2=0.5, G=3, E=2, square=6) == 2
    words = {"L1": 2, "L2": 0.5, "sigma2": 1, "G": 2, "eta": 0.5, "lam": 0.5, "E": 4, "delta": 8}
    assert fp.fedproto_theorem2_rounds(epsilon=4, **words) == 16 / (4 * 4 * 0.5 - 4 * 0.5 * (1 + 1))
    assert fp.fedproto_theorem2_enough(epsilon=4, **words) == 5
    assert fp.fedproto_theorem2_rounds(epsilon=2, **words) == math.inf  # 4 · 2 · 0.5 - 4 = 0
    assert fp.fedproto_theorem2_enough(epsilon=2, **words) == math.inf
    assert fp.fedproto_theorem2_eta(L1=2, L2=0.5, sigma2=1, G=2, lam=0.5, epsilon=4) == 2 * 3.5 / (2 * 5)
    assert fp.fedproto_theorem2_lambda(L2=0.5, G=2, epsilon=4) == 4
    assert fp.fedproto_theorem2_lambda(L2=0, G=2, epsilon=4) == math.inf


def test_mpfedcl_by_hand():
    assert mp.mpfedcl_lemma1_printed(L1=2, delta2=3, eta=0.5, square=4) == -(0.5 - 0.25) * 12
    assert mp.mpfedcl_lemma1(L1=2, delta2=3, eta=0.5, square=4) == -(0.5 - 0.75) * 4
    assert mp.mpfedcl_lemma2_printed(classes=3, L2=2, eta=0.5, G=1, tau=0.25, v=3) == 24
    assert mp.mpfedcl_lemma2(L2=2, eta=0.5, G=1, tau=0.25, v=3, E=2) == 144
    assert mp.mpfedcl_lemma2(L2=2, eta=0.5, G=1, tau=0.25, v=3, model_steps=1) == 24
    same = {"L2": 2, "G": 1, "tau": 0.25, "v": 3}
    assert mp.mpfedcl_theorem1_printed(L1=2, delta2=3, eta=0.5, square=4, classes=3, **same) == -3 + 24
    assert mp.mpfedcl_theorem1(L1=2, delta2=3, eta=0.5, square=4, **same) == 1 + 72
    assert mp.mpfedcl_corollary1_printed(L1=2, delta2=3, square=32, classes=3, **same) == 1 - 48 / 96
    assert mp.mpfedcl_corollary1_printed(L1=2, delta2=3, square=0, classes=3, **same) == 0
    assert mp.mpfedcl_corollary1(L1=2, delta2=4, square=288, **same) == 0.25 * (1 - 144 / 288)
    assert mp.mpfedcl_corollary1(L1=2, delta2=4, square=100, **same) == 0
    few = {"L1": 2, "L2": 1, "delta2": 1.5, "G": 1, "eta": 0.5, "tau": 1, "epsilon": 8, "delta": 6}
    assert mp.mpfedcl_theorem2_rounds_printed(v=0.5, classes=3, **few) == 6 / (0.25 * 12 - 0.5)
    assert mp.mpfedcl_theorem2_rounds(v=0.125, **few) == 6 / (0.125 * 8 - 6 * 0.5 * 0.125)
    assert mp.mpfedcl_theorem2_rounds(v=1, **few) == math.inf
    assert mp.mpfedcl_theorem2_rounds_printed(v=6, classes=3, **few) == math.inf
    assert mp.mpfedcl_theorem2_eta_printed(L1=2, delta2=3, epsilon=32, classes=3, **same) == 0.5
    assert mp.mpfedcl_theorem2_eta(L1=2, delta2=4, epsilon=288, **same) == 0.125


def test_fednh_by_hand():
    assert nh.fednh_lemma1_printed(mean_square=16) == 4
    assert nh.fednh_lemma1(mean_norm=3) == 3
    assert nh.fednh_lemma2_printed(classes=7) == 7
    assert nh.fednh_lemma2(s=2) == math.sqrt(2) * 2
    kappa = nh.fednh_kappa(M_G=3, M_f=2, M_p=1, J=2, rho=0.75, classes=5)
    assert kappa == 2 * 2 * 3 * 12 + 3 * 2 * 3 * 1 * 2 * 5
    assert nh.fednh_training(L_g=4, sigma2=3, eta=0.25, J=2, S=8) == -0.25
    assert nh.fednh_lemma3_printed(L_g=4, sigma2=3, eta=0.25, J=2, S=8, rho=0.75, kappa=16) == -0.25 + 1
    corrected = nh.fednh_lemma3(L_g=4, sigma2=3, eta=0.25, J=2, S=8, M_G=2, s=3, moved=0.5)
    assert corrected == pytest.approx(-0.25 + 4 + 1.5 * math.sqrt(2))
    angle = math.asin(0.25)
    assert nh.fednh_step_of_unit_rows(rho=0.8, classes=9) == pytest.approx(3 * 2 * math.sin(angle / 2))
    assert nh.fednh_step_of_unit_rows(rho=0.4, classes=9) == 6
    words = {"rho": 0.5, "classes": 9, "eta": 0.5, "J": 2, "M_G": 1, "M_f": 2, "first": 8}
    assert nh.fednh_step_of_free_rows(t=1, **words) == 4
    assert nh.fednh_step_of_free_rows(t=3, **words) == 3 * 3 * 2 * 0.75 + 1
    assert nh.fednh_lemma4_smallest_rho(M_G=3, J=2, kappa=72) == 0.75
    assert not nh.fednh_lemma4_holds(M_G=3, M_f=2, M_p=1, J=2, rho=0.99, classes=5)
    assert nh.fednh_lemma4_eta_printed(L_g=2, sigma2=3, M_G=3, J=2, rho=0.5, kappa=12) == 2 * 12 / (2 * (9 + 6))
    assert nh.fednh_lemma4_eta_printed(L_g=2, sigma2=3, M_G=3, J=2, rho=0.5, kappa=40) == 0
    assert nh.fednh_lemma4_eta(L_g=2, sigma2=3, J=2, S=18, rho=0.5, kappa=12) == 2 * 12 / (2 * (18 + 6))
    assert nh.fednh_theorem2_smallest_rho(M_G=3, J=2, epsilon=18, kappa=72) == 0.75
    assert nh.fednh_theorem2_smallest_rho(M_G=3, J=2, epsilon=4.5, kappa=72) == 0.875
    smallest = nh.fednh_theorem2_smallest_epsilon(M_G=3, M_f=2, M_p=1, J=2, rho=0.75, classes=5)
    assert smallest == 0.25 * kappa / 2
    words = {"L_g": 2, "sigma2": 1, "J": 2, "rho": 0.5, "kappa": 8, "epsilon": 4}
    assert nh.fednh_theorem2_eta_printed(**words) == (8 - 2 * (1 - 2)) / 10
    assert nh.fednh_theorem2_eta(**words) == (8 - 4) / 10
    few = {"L_g": 2, "sigma2": 1, "eta": 0.25, "J": 2, "rho": 0.5, "epsilon": 4, "delta": 3}
    assert nh.fednh_theorem2_rounds_printed(kappa=2, **few) == 6 / (0.5 * (6 - 1 - 1))
    assert nh.fednh_theorem2_rounds(kappa=2, **few) == 6 / (0.5 * (6 - 0.5 - 1))
    assert nh.fednh_theorem2_rounds(kappa=20, **few) == math.inf
    assert nh.fednh_theorem2_rounds_printed(kappa=20, **few) == math.inf


def test_every_statement_has_functions_with_premises_and_is_listed():
    wanted = {
        "fedproto": ("Lemma 1", "Lemma 2", "Theorem 1", "Corollary 1", "Theorem 2"),
        "mpfedcl": ("Lemma 1", "Lemma 2", "Theorem 1", "Corollary 1", "Theorem 2"),
        "fednh": ("Lemma 1", "Lemma 2", "Lemma 3", "Lemma 4", "Theorem 1", "Theorem 2"),
    }
    assert {paper: tuple(s.name for s in STATEMENTS if s.paper == paper) for paper in wanted} == wanted
    listed = {bound for statement in STATEMENTS for bound in (*statement.printed, *statement.corrected)}
    defined = {
        bound
        for module in (fp, mp, nh)
        for name, bound in inspect.getmembers(module, inspect.isfunction)
        if bound.__module__ == module.__name__
    }
    assert listed == defined
    names = {entry.name for entry in ENTRIES}
    for statement in STATEMENTS:
        assert f"{statement.paper}-{statement.name.lower().replace(' ', '')}" in names
        for bound in (*statement.printed, *statement.corrected):
            assert bound.__doc__
            assert ">>>" in bound.__doc__


# ---- FedProto: quadratic clients with linear embeddings and the norm as distance ----

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


# ---- MP-FedCL: quadratic clients with embeddings w + x, a prototype per class and client ----


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


# ---- FedNH: quadratic clients with embeddings (cos, sin)(b · θ), J = 2 steps, two rounds ----

J = 2
TWO_ROUNDS = np.array(list(product((-1.0, 1.0), repeat=2 * J)))  # [16, steps of both rounds]
CLASSES = 3


class CircleClients:
    """Two clients with an example per class, whose angle is b · θ; F = h/2 ||θ - a||² + cross-entropy of s W f."""

    def __init__(self, seed: int = 0, unit: bool = True) -> None:
        random = np.random.RandomState(seed)
        self.unit, n = unit, (DRAWS, 2)
        self.h, self.a = random.uniform(0.1, 2, n), random.normal(size=(*n, 2))
        self.b = random.normal(size=(*n, CLASSES, 2))
        self.s, self.rho = random.uniform(0.5, 5, DRAWS), random.uniform(0.3, 0.99, DRAWS)
        self.eta = random.uniform(0.001, 0.2, DRAWS)
        angle = random.uniform(0, 2 * np.pi, (DRAWS, 1, CLASSES))
        self.first_heads = np.stack([np.cos(angle), np.sin(angle)], -1).repeat(len(TWO_ROUNDS), 1)
        direction = random.normal(size=(*n, 2))
        self.noise = direction / norm(direction)[..., None] * random.uniform(0, 1, n)[..., None]
        self.theta = random.normal(size=(DRAWS, 1, 2)).repeat(len(TWO_ROUNDS), 1)
        self.sigma2 = norm(self.noise) ** 2
        speed = norm(self.b).max(-1)  # M_f of each client
        self.M_f = speed.max(1)
        self.L_g = self.h + speed**2 * (2 * self.s + self.s**2)[:, None]
        self.speed = speed

    def angles(self, theta: np.ndarray) -> np.ndarray:
        return np.einsum("nkcd,nksd->nksc", self.b, theta)

    def embed(self, theta: np.ndarray) -> np.ndarray:
        angle = self.angles(theta)
        return np.stack([np.cos(angle), np.sin(angle)], -1)

    def value(self, theta: np.ndarray, heads: np.ndarray) -> np.ndarray:
        logits = self.s[:, None, None, None, None] * np.einsum("nksed,nscd->nksec", self.embed(theta), heads)
        own = np.einsum("nksec,ec->nkse", logits, np.eye(CLASSES))
        entropy = (np.log(np.exp(logits).sum(-1)) - own).mean(-1)
        return self.h[..., None] / 2 * norm(theta - self.a[:, :, None]) ** 2 + entropy

    def gradient(self, theta: np.ndarray, heads: np.ndarray) -> np.ndarray:
        f, angle = self.embed(theta), self.angles(theta)
        logits = self.s[:, None, None, None, None] * np.einsum("nksed,nscd->nksec", f, heads)
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        tangent = np.stack([-np.sin(angle), np.cos(angle)], -1)
        turns = np.einsum("nksec,nscd,nksed->nkse", p - np.eye(CLASSES), heads, tangent)
        turns *= self.s[:, None, None, None]
        entropy = np.einsum("nkse,nked->nksd", turns, self.b) / CLASSES
        return self.h[..., None, None] * (theta - self.a[:, :, None]) + entropy

    def train(self, theta: np.ndarray, heads: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The end of a round, the expected sum of squared gradients, and the largest mean norm of a batch's."""
        total, largest = np.zeros(self.h.shape), np.zeros(self.h.shape)
        for step in range(first, first + J):
            full = self.gradient(theta, heads)
            batch = full + TWO_ROUNDS[None, None, :, step, None] * self.noise[:, :, None]
            total, largest = total + (norm(full) ** 2).mean(-1), np.maximum(largest, norm(batch).mean(-1))
            theta = theta - self.eta[:, None, None, None] * batch
        return theta, total, largest

    def move_heads(self, heads: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Eq. (4): every client has one example per class."""
        rho = self.rho[:, None, None, None]
        new = rho * heads + (1 - rho) * self.embed(theta).mean(1)
        return new / norm(new)[..., None] if self.unit else new


@pytest.mark.slow
def test_fednh_lemma_3_corrected_holds_in_all_draws():
    c = CircleClients()
    start = np.repeat(c.theta[:, None], 2, 1)
    end, _, norms = c.train(start, c.first_heads, 0)
    heads = c.move_heads(c.first_heads, end)
    second = np.repeat(end.mean(1, keepdims=True), 2, 1)
    last, S, later_norms = c.train(second, heads, J)
    change = (c.value(last, heads) - c.value(end, c.first_heads)).mean(-1)
    moved = norm((heads - c.first_heads).reshape(DRAWS, len(TWO_ROUNDS), -1)).max(-1)
    limit = over_draws(nh.fednh_step_of_unit_rows, rho=c.rho, classes=CLASSES)
    assert never_above(moved, limit)
    assert share_above(moved, limit / 2) > 0.01
    for client in range(2):
        reach = np.maximum(norm(end - c.a[:, :, None]), norm(second - c.a[:, :, None])).max(-1)[:, client]
        lipschitz = c.h[:, client] * reach + 2 * c.s * c.speed[:, client]
        m_g = np.maximum(np.maximum(norms.max(1), later_norms.max(1)), lipschitz)
        words = {"L_g": c.L_g[:, client], "sigma2": c.sigma2[:, client], "eta": c.eta, "J": J, "S": S[:, client]}
        for step in (moved, limit):
            bound = over_draws(nh.fednh_lemma3, M_G=m_g, s=c.s, moved=step, **words)
            assert never_above(change[:, client], bound)
        training = (c.value(last, heads) - c.value(second, heads)).mean(-1)[:, client]
        assert never_above(training, over_draws(nh.fednh_training, **words))


@pytest.mark.slow
def test_fednh_prototypes_move_further_than_eq_17_says():
    """Without line 8, four rounds, no noise: the corrected bound holds in all draws, the printed one does not."""
    c = CircleClients(1, unit=False)
    c.noise *= 0
    theta, heads, norms = np.repeat(c.theta[:, None], 2, 1), c.first_heads, np.zeros(DRAWS)
    steps = []
    for t in range(1, 5):
        theta, _, largest = c.train(theta, heads, 0)
        new = c.move_heads(heads, theta)
        steps.append(norm((new - heads).reshape(DRAWS, len(TWO_ROUNDS), -1))[:, 0])
        if t == 1:
            first = norm((c.embed(theta).mean(1) - heads).reshape(DRAWS, len(TWO_ROUNDS), -1))[:, 0]
        norms, heads = np.maximum(norms, largest.max(1)), new
        theta = np.repeat(theta.mean(1, keepdims=True), 2, 1)
    words = {"rho": c.rho, "classes": CLASSES, "eta": c.eta, "J": J, "M_G": norms, "M_f": c.M_f, "first": first}
    for t, step in enumerate(steps, 1):
        assert never_above(step, over_draws(nh.fednh_step_of_free_rows, t=t, **words))
    printed = 3 * (1 - c.rho) * c.eta * J * norms * c.M_f * CLASSES
    assert share_of_failures("FedNH, the step of W by Eq. (17), first round", steps[0], printed) > 0.01
    assert share_above(steps[3], printed) > 0


def test_fednh_lemmas_1_and_2_hold_in_all_draws_and_lemma_2_needs_s():
    random = np.random.RandomState(0)
    batches = random.normal(size=(DRAWS, 5, 3)) + random.normal(size=(DRAWS, 1, 3))
    full = norm(batches.mean(1))
    tight = over_draws(nh.fednh_lemma1, mean_norm=norm(batches).mean(1))
    loose = over_draws(nh.fednh_lemma1_printed, mean_square=(norm(batches) ** 2).mean(1))
    assert never_above(full, tight)
    assert never_above(tight, loose)
    f = random.normal(size=(DRAWS, 4))
    f /= norm(f)[:, None]
    heads = random.normal(size=(DRAWS, 10, 4))
    heads /= norm(heads)[..., None]
    for s, fails in ((1.0, False), (30.0, True)):
        logits = s * np.einsum("ncd,nd->nc", heads, f)
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        gradient = s * norm(p - np.eye(10)[0])  # the embedding has length 1, so this is the norm over W
        assert never_above(gradient, np.full(DRAWS, nh.fednh_lemma2(s=s)))
        printed = np.full(DRAWS, nh.fednh_lemma2_printed(classes=10))
        assert (share_of_failures(f"FedNH, Lemma 2, s = {s:.0f}, 10 classes", gradient, printed) > 0.1) == fails
    assert gradient.max() > 0.999 * nh.fednh_lemma2(s=30)  # sharp


def test_fednh_conditions_of_lemma_4_and_theorem_2_are_never_met():
    random = np.random.RandomState(0)
    for _ in range(DRAWS):
        m_g, m_f, m_p = random.exponential(size=3) + 1e-3
        j, classes, rho = int(random.randint(1, 100)), int(random.randint(2, 100)), random.uniform(0, 1)
        words = {"M_G": m_g, "M_f": m_f, "M_p": m_p, "J": j, "rho": rho, "classes": classes}
        assert not nh.fednh_lemma4_holds(**words)
        kappa, smallest = nh.fednh_kappa(**words), nh.fednh_theorem2_smallest_epsilon(**words)
        assert smallest > 2 * m_g**2  # while Lemma 1 gives m_g**2 for nothing
        assert nh.fednh_theorem2_smallest_rho(M_G=m_g, J=j, epsilon=m_g**2, kappa=kappa) > rho
        assert nh.fednh_theorem2_eta(L_g=1, sigma2=1, J=j, rho=rho, kappa=kappa, epsilon=m_g**2) == 0
        assert nh.fednh_lemma4_eta(L_g=1, sigma2=1, J=j, S=j * m_g**2, rho=rho, kappa=kappa) == 0


def test_fednh_misprints_of_lemma_4_and_theorem_2():
    """The printed limits allow rates with which Eq. (5) is positive, even where its condition is met by another κ."""
    words = {"L_g": 1.0, "sigma2": 0.0, "J": 4, "rho": 0.5, "kappa": 4.0}
    rate = nh.fednh_lemma4_eta_printed(M_G=1.0, **words)
    assert rate == 4
    assert nh.fednh_lemma3_printed(eta=rate * 0.9, S=4.0, **words) > 0  # even with S = J M_G²
    safe = nh.fednh_lemma4_eta(S=4.0, **words)
    assert safe == 1
    assert nh.fednh_lemma3_printed(eta=safe * 0.9, S=4.0, **words) < 0
    assert nh.fednh_lemma3_printed(eta=safe * 0.9, S=2.0, **words) > 0  # S <= J M_G² is the wrong direction
    random = np.random.RandomState(0)
    for _ in range(DRAWS):
        L_g, sigma2, kappa, rho = *random.exponential(size=3), random.uniform(0, 1)
        epsilon = (1 - rho) * kappa / 4 * random.uniform(1.01, 5)
        words = {"L_g": L_g, "sigma2": sigma2, "J": 4, "rho": rho, "kappa": kappa, "epsilon": epsilon}
        eta = nh.fednh_theorem2_eta(**words) * random.uniform(0.01, 0.99)
        rounds = nh.fednh_theorem2_rounds(eta=eta, delta=1.0, **words)
        assert math.isfinite(rounds)
        mean = (2 / (rounds * 4) + L_g * eta**2 * sigma2 + 2 * (1 - rho) * kappa * eta / 4) / (2 * eta - L_g * eta**2)
        assert mean == pytest.approx(epsilon)  # the last line of the proof
