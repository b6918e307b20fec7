"""FedProto (Tan et al., AAAI 2022): the bounds of its section "Convergence Analysis" and of its appendix B.

Equation numbers with "B" are those of the appendix. E counts local steps, not epochs. The objective of a client is
L = L_S + λ d(f(φ; x), C), where C is the global prototype of the example's class, which changes once per round. The
paper's times are: tE + 1/2 is the start of round t + 1, (t+1)E its last step, (t+1)E + 1/2 the moment after the server
has sent new prototypes.

Assumptions: 1: L is L1-smooth. 2: mini-batch gradients are unbiased, with a variance of at most sigma2. 3: their
expected norm is at most G. 4: every embedding function is L2-Lipschitz in its parameters. All clients take part in
every round and take E steps of plain SGD with the learning rate eta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def fedproto_lemma1(*, L1: float, sigma2: float, eta: float, E: int, S: float) -> float:
    """Lemma 1, Eq. (B11): the expected change of L from the start of a round to its last step is at most this.

    -(eta - L1 eta²/2) S + L1 E eta² sigma2 / 2, where S is the sum of ||∇L||² over the E points that the steps start
    from. Premises: Assumptions 1 and 2. For one step the expectation is over its mini-batch; for E steps S is an
    expectation, too. The printed form is correct.

    >>> fedproto_lemma1(L1=2, sigma2=4, eta=0.5, E=3, S=10)  # -(0.5 - 0.25) 10 + 2 · 3 · 0.25 · 4 / 2
    0.5
    """
    return -(eta - L1 * eta**2 / 2) * S + L1 * E * eta**2 * sigma2 / 2


def fedproto_lemma2(*, lam: float, L2: float, eta: float, E: int, G: float) -> float:
    """Lemma 2, Eq. (B19): the expected change of L when new prototypes arrive is at most λ L2 eta E G.

    Premises: Assumptions 3 and 4; d is the norm itself, as in Eq. (B21), not its square, as in Eq. (B1); the weights of
    the clients' prototypes sum to 1 and do not change; every client takes part in this round and in the one before; an
    uploaded prototype is the mean embedding by the model at the end of the round; the client's classes already had
    global prototypes. For the squared norm see `fedproto_lemma2_squared`.

    >>> fedproto_lemma2(lam=0.5, L2=2, eta=0.1, E=10, G=3)
    3.0
    """
    return lam * L2 * eta * E * G


def fedproto_lemma2_squared(*, lam: float, L2: float, eta: float, E: int, G: float, distances: float) -> float:
    """Lemma 2 for the squared norm of Eq. (B1), which the printed proof does not cover: λ L2 eta E G `distances`.

    `distances` is the mean over examples of ||f - C|| + ||f - C'||, with the old and the new prototype of the class. It
    follows from ||a - b||² - ||a - c||² <= ||b - c|| (||a - b|| + ||a - c||). For the mean squared error, divide by the
    embedding size.

    >>> fedproto_lemma2_squared(lam=0.5, L2=2, eta=0.1, E=10, G=3, distances=4)
    12.0
    """
    return fedproto_lemma2(lam=lam, L2=L2, eta=eta, E=E, G=G) * distances


def fedproto_theorem1(
    *, L1: float, L2: float, sigma2: float, G: float, eta: float, lam: float, E: int, S: float
) -> float:
    """Theorem 1, Eq. (15), (B34): the expected change of L over one round is at most the sum of Lemmas 1 and 2.

    >>> fedproto_theorem1(L1=2, L2=2, sigma2=4, G=3, eta=0.5, lam=0.25, E=3, S=10)  # 0.5 + 0.25 · 2 · 0.5 · 3 · 3
    2.75
    """
    return fedproto_lemma1(L1=L1, sigma2=sigma2, eta=eta, E=E, S=S) + fedproto_lemma2(lam=lam, L2=L2, eta=eta, E=E, G=G)


def fedproto_largest_eta(*, L1: float, L2: float, sigma2: float, G: float, lam: float, E: int, S: float) -> float:
    """Eq. (B42): with a smaller constant learning rate, the right-hand side of Theorem 1 is negative. 0: there is none.

    2 (S - λ L2 E G) / (L1 (S + E sigma2)).

    >>> fedproto_largest_eta(L1=2, L2=1, sigma2=1, G=1, lam=0.5, E=4, S=6)  # 2 (6 - 2) / (2 (6 + 4))
    0.4
    """
    return max(0.0, 2 * (S - lam * L2 * E * G) / (L1 * (S + E * sigma2)))


def fedproto_largest_lambda(*, L2: float, G: float, E: int, S: float) -> float:
    """Eq. (B43): S / (L2 E G). With a smaller λ, there are learning rates for which the bound is negative.

    The gradients in S are those of the objective, which contains λ.

    >>> fedproto_largest_lambda(L2=1, G=1, E=4, S=6)
    1.5
    """
    return S / (L2 * E * G) if L2 * E * G > 0 else math.inf


def fedproto_corollary1_etas(
    *, L1: float, L2: float, sigma2: float, G: float, lam: float, squares: Sequence[float]
) -> list[float]:
    """Corollary 1, Eq. (16), (B44) as printed: a limit of the learning rate for each of the E local steps.

    `squares` are the values of ||∇L||² at the points that the steps start from; the limit of a step has their sum up to
    this step. A constant rate below all limits is below the last one, which is `fedproto_largest_eta`, and the bound is
    negative. If the rate changes from step to step, the limits are not sufficient: see
    `fedproto_corollary1_safe_etas`.

    >>> fedproto_corollary1_etas(L1=1, L2=1, sigma2=1, G=1, lam=0, squares=[1, 0])  # 2 · 1 / (1 + 2), twice
    [0.6666666666666666, 0.6666666666666666]
    """
    sums = [sum(squares[: step + 1]) for step in range(len(squares))]
    return [fedproto_largest_eta(L1=L1, L2=L2, sigma2=sigma2, G=G, lam=lam, E=len(squares), S=S) for S in sums]


def fedproto_corollary1_safe_etas(
    *, L1: float, L2: float, sigma2: float, G: float, lam: float, squares: Sequence[float]
) -> list[float]:
    """Corollary 1, corrected for a learning rate per step: 2 (||∇L||² - λ L2 G) / (L1 (||∇L||² + sigma2)).

    With different rates, Theorem 1 has the sum over steps of -(eta_e - L1 eta_e²/2) ||∇L_e||² + L1 eta_e² sigma2 / 2 +
    λ L2 G eta_e. Below its limit, each term of this sum is negative.

    >>> fedproto_corollary1_safe_etas(L1=1, L2=1, sigma2=1, G=1, lam=0, squares=[1, 0])
    [1.0, 0.0]
    """
    return [
        fedproto_largest_eta(L1=L1, L2=L2, sigma2=sigma2, G=G, lam=lam, E=1, S=square) if square + sigma2 > 0 else 0.0
        for square in squares
    ]


def fedproto_corollary1_lambda(*, L2: float, G: float, E: int, square: float) -> float:
    """Corollary 1, Eq. (17), (B45): the limit of λ, ||∇L||² / (L2 E G), with the gradient at the start of the round.

    It is the condition that the first limit of `fedproto_corollary1_etas` is positive.

    >>> fedproto_corollary1_lambda(L2=2, G=5, E=10, square=4)
    0.04
    """
    return fedproto_largest_lambda(L2=L2, G=G, E=E, S=square)


def fedproto_theorem2_rounds(
    *, L1: float, L2: float, sigma2: float, G: float, eta: float, lam: float, E: int, epsilon: float, delta: float
) -> float:
    """Theorem 2, Eq. (18), (B37) as printed: T = this many rounds bring the mean of ||∇L||² below epsilon.

    2 delta / (E epsilon (2 eta - L1 eta²) - E eta (L1 eta sigma2 + 2 λ L2 G)); inf if the denominator is not positive.
    delta is L at the first time 1/2 (the print has L_0) minus a lower bound of L. The proof, Eq. (B50), needs more
    rounds than this: see `fedproto_theorem2_enough`.

    >>> fedproto_theorem2_rounds(L1=1, L2=1, sigma2=1, G=1, eta=0.5, lam=0.25, E=2, epsilon=2, delta=3)  # 6 / (3 - 1)
    3.0
    """
    gain = E * epsilon * (2 * eta - L1 * eta**2) - E * eta * (L1 * eta * sigma2 + 2 * lam * L2 * G)
    return 2 * delta / gain if gain > 0 else math.inf


def fedproto_theorem2_enough(
    *, L1: float, L2: float, sigma2: float, G: float, eta: float, lam: float, E: int, epsilon: float, delta: float
) -> float:
    """Theorem 2, corrected: the smallest whole number of rounds T with T > `fedproto_theorem2_rounds`, Eq. (B50).

    With equality the proof only gives "at most epsilon" instead of the "< epsilon" of Eq. (19).

    >>> fedproto_theorem2_enough(L1=1, L2=1, sigma2=1, G=1, eta=0.5, lam=0.25, E=2, epsilon=2, delta=3)
    4
    """
    rounds = fedproto_theorem2_rounds(
        L1=L1, L2=L2, sigma2=sigma2, G=G, eta=eta, lam=lam, E=E, epsilon=epsilon, delta=delta
    )
    return math.floor(rounds) + 1 if math.isfinite(rounds) else math.inf


def fedproto_theorem2_eta(*, L1: float, L2: float, sigma2: float, G: float, lam: float, epsilon: float) -> float:
    """Theorem 2, Eq. (B39): the limit of the learning rate, 2 (epsilon - λ L2 G) / (L1 (epsilon + sigma2)).

    >>> fedproto_theorem2_eta(L1=2, L2=1, sigma2=3, G=1, lam=0.5, epsilon=2)  # 2 · 1.5 / (2 · 5)
    0.3
    """
    return max(0.0, 2 * (epsilon - lam * L2 * G) / (L1 * (epsilon + sigma2)))


def fedproto_theorem2_lambda(*, L2: float, G: float, epsilon: float) -> float:
    """Theorem 2, Eq. (B40): the limit of λ, epsilon / (L2 G).

    >>> fedproto_theorem2_lambda(L2=2, G=5, epsilon=1)
    0.1
    """
    return epsilon / (L2 * G) if L2 * G > 0 else math.inf
