"""FedNH's bounds on quadratic clients with embeddings (cos, sin)(b · θ), J = 2 steps, two rounds.

Mini-batch noise is a fixed vector with a random sign, and all sequences of signs are enumerated, so that expectations
are exact.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from bound_draws import DRAWS, never_above, norm, over_draws, share_above, share_of_failures
from protofed.theory import fednh_bounds as nh

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
