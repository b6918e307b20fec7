"""FedNH (Dai et al., AAAI 2023): the bounds of its section 3.3 and of its appendix B.

Client k minimises F_k(θ; W), the cross-entropy of s times the cosine between the embedding and the rows of W. In a
round it takes J steps of SGD on θ with the learning rate eta; then the server averages the θ_k with equal weights and
moves W by Eq. (4): W <- ρ W + (1 - ρ) times the mean of the clients' class means, each row scaled to length 1 (line 8
of Algorithm 1). All clients take part in every round.

Assumptions: 1: F_k is bounded below and L_g-smooth in θ. 2: mini-batch gradients are unbiased, with a variance of at
most sigma2. 3: their mean norm is at most M_G (as printed, (E||G||)² <= M_G²; the proof of Lemma 1 goes through the
mean of the squared norms, but the mean norm is sufficient everywhere), and embeddings are M_f-Lipschitz in θ.
"""

from __future__ import annotations

import math


def fednh_lemma1_printed(*, mean_square: float) -> float:
    """Lemma 1 as its proof has it: ||∇F_k|| is at most the root of the mean squared norm of mini-batch gradients.

    >>> fednh_lemma1_printed(mean_square=9)
    3.0
    """
    return math.sqrt(mean_square)


def fednh_lemma1(*, mean_norm: float) -> float:
    """Lemma 1 from Assumption 3 as printed: ||∇F_k|| = ||E G|| <= E ||G|| <= M_G. It is never larger than the other.

    >>> fednh_lemma1(mean_norm=2.5)
    2.5
    """
    return mean_norm


def fednh_lemma2_printed(*, classes: int) -> float:
    """Lemma 2 as printed: the gradient of F with respect to W has a norm of at most |C|.

    The h(W) of the lemma lacks the factor s of Eq. (2). With s > |C| / √2 the printed bound is false for F.

    >>> fednh_lemma2_printed(classes=10)
    10.0
    """
    return float(classes)


def fednh_lemma2(*, s: float) -> float:
    """Lemma 2, corrected: √2 s, for embeddings of unit length and any number of classes.

    The gradient of an example is s (p - e_y) times its embedding, and ||p - e_y|| <= √2. It comes as close to √2 s as
    one likes when the model is certain of a wrong class.

    >>> round(fednh_lemma2(s=30), 1)
    42.4
    """
    return math.sqrt(2) * s


def fednh_kappa(*, M_G: float, M_f: float, M_p: float, J: int, rho: float, classes: int) -> float:
    """κ of Lemma 3 as the proof defines it: 2 J M_G M_ι + 3 J M_G M_p M_f |C|, with M_ι = M_G / (1 - ρ), Eq. (18).

    M_p is the Lipschitz constant of F in W, from Lemma 2.

    >>> fednh_kappa(M_G=2, M_f=1, M_p=3, J=5, rho=0.5, classes=10)  # 80 + 900
    980.0
    """
    return 2 * J * M_G * M_G / (1 - rho) + 3 * J * M_G * M_p * M_f * classes


def fednh_training(*, L_g: float, sigma2: float, eta: float, J: int, S: float) -> float:
    """Eq. (8): the expected change of F_k in the J steps of a round; S is the sum of ||∇F_k||² over them. Correct.

    >>> fednh_training(L_g=2, sigma2=4, eta=0.5, J=3, S=10)
    0.5
    """
    return -(eta - L_g * eta**2 / 2) * S + L_g * J * eta**2 * sigma2 / 2


def fednh_lemma3_printed(*, L_g: float, sigma2: float, eta: float, J: int, S: float, rho: float, kappa: float) -> float:
    """Lemma 3, Eq. (5) as printed: the expected change of F_k from the end of a round to the end of the next one.

    Eq. (8) + (1 - ρ) κ eta. The proof has gaps: in Eq. (13) the powers must be ρ^l; Eq. (17) drops the sum over l,
    with which the factor 1 - ρ is cancelled; the first prototypes' step from W^0 is not proportional to eta; n_k in
    Eq. (16) has no place there; line 8 of Algorithm 1 is ignored.

    >>> fednh_lemma3_printed(L_g=2, sigma2=4, eta=0.5, J=3, S=10, rho=0.75, kappa=8)  # 0.5 + 0.25 · 8 · 0.5
    1.5
    """
    return fednh_training(L_g=L_g, sigma2=sigma2, eta=eta, J=J, S=S) + (1 - rho) * kappa * eta


def fednh_lemma3(
    *, L_g: float, sigma2: float, eta: float, J: int, S: float, M_G: float, s: float, moved: float
) -> float:
    """Lemma 3, corrected: Eq. (8) + 2 eta J M_G² + √2 s ||ΔW||, where `moved` is ||ΔW|| or a bound of it.

    The second term is Eq. (12), the third the Lipschitz constant of F in W (corrected Lemma 2) times the step of W. For
    ||ΔW|| use the measured step, `fednh_step_of_unit_rows` (with line 8), or `fednh_step_of_free_rows` (without).

    >>> round(fednh_lemma3(L_g=2, sigma2=4, eta=0.5, J=3, S=10, M_G=1, s=1, moved=2), 6)  # 0.5 + 3 + 2.828427
    6.328427
    """
    return fednh_training(L_g=L_g, sigma2=sigma2, eta=eta, J=J, S=S) + 2 * eta * J * M_G**2 + fednh_lemma2(s=s) * moved


def fednh_step_of_unit_rows(*, rho: float, classes: int) -> float:
    """A bound of ||W^t - W^(t-1)|| with line 8 of Algorithm 1: sqrt(|C|) 2 sin(asin((1 - ρ) / ρ) / 2) for ρ >= 1/2.

    A row w of length 1 becomes ρ w + (1 - ρ) m with ||m|| <= 1, whose angle to w has a sine of at most (1 - ρ) / ρ. For
    ρ < 1/2 the row may turn round: 2 sqrt(|C|). It vanishes with 1 - ρ, but not with eta.

    >>> round(fednh_step_of_unit_rows(rho=0.9, classes=4), 4)
    0.2226
    >>> fednh_step_of_unit_rows(rho=0.3, classes=4)
    4.0
    """
    turn = 2 * math.sin(math.asin((1 - rho) / rho) / 2) if rho >= 0.5 else 2.0
    return math.sqrt(classes) * turn


def fednh_step_of_free_rows(
    *, rho: float, classes: int, t: int, eta: float, J: int, M_G: float, M_f: float, first: float
) -> float:
    """A bound of the expected ||W^t - W^(t-1)|| without line 8, in round t = 1, 2, ...: Eq. (13) to (16), corrected.

    sqrt(|C|) 3 eta J M_G M_f (1 - ρ) (1 + ρ + ... + ρ^(t-2)) + ρ^(t-1) (1 - ρ) `first`. `first` is the distance from
    W^0 to the first mean of the clients' class means. As t grows, the factor 1 - ρ is cancelled by the sum.

    >>> fednh_step_of_free_rows(rho=0.5, classes=4, t=1, eta=0.1, J=5, M_G=1, M_f=1, first=2)  # only the first step
    1.0
    >>> fednh_step_of_free_rows(rho=0.5, classes=4, t=2, eta=0.1, J=5, M_G=1, M_f=1, first=2)  # 2 · 1.5 · 0.5 + 0.5
    2.0
    """
    drift = math.sqrt(classes) * 3 * eta * J * M_G * M_f * (1 - rho ** (t - 1))
    return drift + rho ** (t - 1) * (1 - rho) * first


def fednh_lemma4_smallest_rho(*, M_G: float, J: int, kappa: float) -> float:
    """Lemma 4: ρ must be above 1 - M_G² J / κ.

    No ρ satisfies it: by the definition of κ, (1 - ρ) κ >= 2 J M_G², and the condition says (1 - ρ) κ < J M_G².

    >>> fednh_lemma4_smallest_rho(M_G=2, J=5, kappa=200)
    0.9
    """
    return 1 - M_G**2 * J / kappa


def fednh_lemma4_holds(*, M_G: float, M_f: float, M_p: float, J: int, rho: float, classes: int) -> bool:
    """Whether ρ satisfies the condition of Lemma 4, with the κ of this ρ. It never does.

    >>> fednh_lemma4_holds(M_G=0.1, M_f=0.1, M_p=0.2, J=1, rho=0.999999, classes=2)
    False
    """
    kappa = fednh_kappa(M_G=M_G, M_f=M_f, M_p=M_p, J=J, rho=rho, classes=classes)
    return fednh_lemma4_smallest_rho(M_G=M_G, J=J, kappa=kappa) < rho < 1


def fednh_lemma4_eta_printed(*, L_g: float, sigma2: float, M_G: float, J: int, rho: float, kappa: float) -> float:
    """Lemma 4 as printed: the limit of the learning rate, 2 (M_G² J - (1 - ρ) κ) / (L_g (M_G² + J sigma2)).

    The limit is meant to make the right-hand side of Eq. (5) negative. The proof puts J M_G², an upper bound, for the
    sum of squared gradients, which would need a lower bound. 0: there is no rate.

    >>> fednh_lemma4_eta_printed(L_g=2, sigma2=1, M_G=2, J=4, rho=0.5, kappa=16)  # 2 (16 - 8) / (2 (4 + 4))
    1.0
    """
    return max(0.0, 2 * (M_G**2 * J - (1 - rho) * kappa) / (L_g * (M_G**2 + J * sigma2)))


def fednh_lemma4_eta(*, L_g: float, sigma2: float, J: int, S: float, rho: float, kappa: float) -> float:
    """Lemma 4, corrected: Eq. (5) is negative below 2 (S - (1 - ρ) κ) / (L_g (S + J sigma2)). 0: there is no rate.

    S is the sum of squared gradients of the round. With S = J M_G² the denominator is L_g J (M_G² + sigma2); the print
    lacks a factor J. The lemma's conclusion, a lower bound of F_k, needs no condition: Assumption 1 already has it.

    >>> fednh_lemma4_eta(L_g=2, sigma2=1, J=4, S=16, rho=0.5, kappa=16)  # 2 (16 - 8) / (2 (16 + 4))
    0.4
    """
    return max(0.0, 2 * (S - (1 - rho) * kappa) / (L_g * (S + J * sigma2)))


def fednh_theorem2_smallest_rho(*, M_G: float, J: int, epsilon: float, kappa: float) -> float:
    """Theorem 2: ρ must be above the larger of 1 - M_G² J / κ and 1 - epsilon J / κ. Theorem 1 is its informal form.

    The second condition says (1 - ρ) κ < epsilon J; with (1 - ρ) κ >= 2 J M_G² this means epsilon > 2 M_G². But
    Lemma 1 already gives ||∇F_k||² <= M_G², for every θ.

    >>> fednh_theorem2_smallest_rho(M_G=2, J=5, epsilon=1, kappa=200)  # the larger of 0.9 and 0.975
    0.975
    """
    return 1 - min(M_G**2, epsilon) * J / kappa


def fednh_theorem2_smallest_epsilon(*, M_G: float, M_f: float, M_p: float, J: int, rho: float, classes: int) -> float:
    """The accuracy epsilon that Theorem 2 can promise with this ρ: (1 - ρ) κ / J. It is at least 2 M_G².

    >>> fednh_theorem2_smallest_epsilon(M_G=2, M_f=1, M_p=3, J=5, rho=0.5, classes=10)  # 0.5 · 980 / 5
    98.0
    """
    return (1 - rho) * fednh_kappa(M_G=M_G, M_f=M_f, M_p=M_p, J=J, rho=rho, classes=classes) / J


def fednh_theorem2_eta_printed(*, L_g: float, sigma2: float, J: int, rho: float, kappa: float, epsilon: float) -> float:
    """Theorem 2 as printed: the first limit of the learning rate.

    (2 epsilon - 2 (1 - ρ κ / J)) / (L_g (epsilon + sigma2)). The brackets are misprinted: see `fednh_theorem2_eta`.
    (The second limit is that of Lemma 4.)

    >>> fednh_theorem2_eta_printed(L_g=1, sigma2=1, J=2, rho=0.5, kappa=4, epsilon=3)  # (6 - 0) / 4
    1.5
    """
    return (2 * epsilon - 2 * (1 - rho * kappa / J)) / (L_g * (epsilon + sigma2))


def fednh_theorem2_eta(*, L_g: float, sigma2: float, J: int, rho: float, kappa: float, epsilon: float) -> float:
    """Theorem 2, corrected: (2 epsilon - 2 (1 - ρ) κ / J) / (L_g (epsilon + sigma2)). 0: there is no rate.

    >>> fednh_theorem2_eta(L_g=1, sigma2=1, J=2, rho=0.5, kappa=4, epsilon=3)  # (6 - 2) / 4
    1.0
    """
    return max(0.0, (2 * epsilon - 2 * (1 - rho) * kappa / J) / (L_g * (epsilon + sigma2)))


def fednh_theorem2_rounds_printed(
    *, L_g: float, sigma2: float, eta: float, J: int, rho: float, kappa: float, epsilon: float, delta: float
) -> float:
    """Theorem 2 as printed: there must be more rounds than this.

    2 delta / (J eta [epsilon (2 - L_g eta) - L_g² sigma2 eta - 2 (1 - ρ) κ / J]). L_g² is a misprint for L_g. inf if
    the bracket is not positive. delta is F_k before the first round minus a lower bound of F_k.

    >>> fednh_theorem2_rounds_printed(L_g=2, sigma2=1, eta=0.5, J=2, rho=0.5, kappa=1, epsilon=4, delta=3)  # 6 / 1.5
    4.0
    """
    gain = epsilon * (2 - L_g * eta) - L_g**2 * sigma2 * eta - 2 * (1 - rho) * kappa / J
    return 2 * delta / (J * eta * gain) if gain > 0 else math.inf


def fednh_theorem2_rounds(
    *, L_g: float, sigma2: float, eta: float, J: int, rho: float, kappa: float, epsilon: float, delta: float
) -> float:
    """Theorem 2, corrected: 2 delta / (J eta [epsilon (2 - L_g eta) - L_g sigma2 eta - 2 (1 - ρ) κ / J]).

    >>> fednh_theorem2_rounds(L_g=2, sigma2=1, eta=0.5, J=2, rho=0.5, kappa=1, epsilon=4, delta=3)  # 6 / 2.5
    2.4
    """
    gain = epsilon * (2 - L_g * eta) - L_g * sigma2 * eta - 2 * (1 - rho) * kappa / J
    return 2 * delta / (J * eta * gain) if gain > 0 else math.inf
