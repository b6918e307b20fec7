"""MP-FedCL (Qiao et al. 2023): the bounds of its appendix.

Every client takes one full gradient step per round, and the server averages the models. L is the average of the
clients' objectives, each the cross-entropy plus the contrastive loss L_R of Eq. (11) against the pool of prototypes.

Assumptions: 1: L is convex, zeta-Lipschitz (neither is used) and L1-smooth. 2: the mean of ||∇L_i||² over clients is at
most delta2 ||∇L||²; delta2 >= 1 by Jensen's inequality. 3: the expected norm of a client's gradient is at most G. 4:
every embedding function is L2-Lipschitz in its parameters.
"""

from __future__ import annotations

import math


def mpfedcl_lemma1_printed(*, L1: float, delta2: float, eta: float, square: float) -> float:
    """Lemma 1, Eq. (18) as printed: L changes by at most -(eta - L1 eta²/2) delta2 ||∇L||² in a round. Not true.

    Step (A4)(c) uses Assumption 2, an upper bound of the mean of ||∇L_i||², as a lower bound. `square` is ||∇L||².

    >>> mpfedcl_lemma1_printed(L1=1, delta2=4, eta=0.5, square=2)  # -(0.5 - 0.125) 4 · 2
    -3.0
    """
    return -(eta - L1 * eta**2 / 2) * delta2 * square


def mpfedcl_lemma1(*, L1: float, delta2: float, eta: float, square: float) -> float:
    """Lemma 1, corrected: L changes by at most -(eta - L1 delta2 eta²/2) ||∇L||² in a round.

    The mean over clients of <∇L, ∇L_i> is exactly ||∇L||², so (A4) needs no assumption; (A3) is correct. If all clients
    take part, the averaged step is -eta ∇L, and delta2 = 1 may be used. If one client is drawn at random, delta2 is
    needed, and the change is an expectation.

    >>> mpfedcl_lemma1(L1=1, delta2=4, eta=0.5, square=2)  # -(0.5 - 0.5) 2
    -0.0
    """
    return -(eta - L1 * delta2 * eta**2 / 2) * square


def mpfedcl_lemma2_printed(*, classes: int, L2: float, eta: float, G: float, tau: float, v: float) -> float:
    """Lemma 2, Eq. (19) as printed: new prototypes raise L by at most A_p L2 eta G ||v|| / tau, with A_p = classes - 1.

    `v` is the mean over clients of the embedding norms that Eq. (11) sums (the print has v_i without a norm): the sum
    over the examples of a batch, or their mean if the loss is a mean over examples. Step (A10)(a), log Σ exp(x) <= Σ x,
    is false (for x = 0 it says log C <= 0). The bound holds where it is at least `mpfedcl_lemma2`: with three or more
    classes if the server's model makes the prototypes, with seven or more if the clients' models do. With two classes
    it is false.

    >>> mpfedcl_lemma2_printed(classes=10, L2=2, eta=0.1, G=3, tau=0.5, v=1)  # 9 · 2 · 0.1 · 3 / 0.5
    10.8
    """
    return (classes - 1) * L2 * eta * G * v / tau


def mpfedcl_lemma2(
    *, L2: float, eta: float, G: float, tau: float, v: float, E: int = 1, model_steps: float = 3
) -> float:
    """Lemma 2, corrected: 2 `model_steps` L2 eta E G ||v|| / tau, for any number of classes and E local steps.

    If no prototype moves by more than m, the log-probability of a class changes by at most 2 m ||v|| / tau: its own
    score and the logarithm of the denominator change by at most m ||v|| / tau each. The model that makes a client's
    prototypes moves by at most `model_steps` times eta E G from round to round: 1 for the server's model, which step
    (A10)(h) counts, and 3 for the client's own model after training, which makes them in Algorithm 1 (two local
    trainings and the server's step; Eq. (15) of FedNH). Premises: Assumptions 3 and 4; one prototype per class, the
    mean of the embeddings (k-means centres may jump); embeddings and prototypes are not scaled; all clients take part;
    all classes had prototypes before.

    >>> mpfedcl_lemma2(L2=2, eta=0.25, G=3, tau=0.5, v=1)  # 2 · 3 · 2 · 0.25 · 3 / 0.5
    18.0
    >>> mpfedcl_lemma2(L2=2, eta=0.25, G=3, tau=0.5, v=1, model_steps=1)
    6.0
    """
    return 2 * model_steps * L2 * eta * G * E * v / tau


def mpfedcl_theorem1_printed(
    *, L1: float, L2: float, delta2: float, G: float, eta: float, tau: float, v: float, square: float, classes: int
) -> float:
    """Theorem 1, Eq. (20) as printed: the sum of both printed lemmas. Not true, because Lemma 1 is not.

    >>> mpfedcl_theorem1_printed(L1=1, L2=2, delta2=4, G=3, eta=0.5, tau=0.5, v=1, square=2, classes=3)  # -3 + 12
    9.0
    """
    return mpfedcl_lemma1_printed(L1=L1, delta2=delta2, eta=eta, square=square) + mpfedcl_lemma2_printed(
        classes=classes, L2=L2, eta=eta, G=G, tau=tau, v=v
    )


def mpfedcl_theorem1(
    *, L1: float, L2: float, delta2: float, G: float, eta: float, tau: float, v: float, square: float
) -> float:
    """Theorem 1, corrected: L changes by at most the sum of both corrected lemmas in a round.

    >>> mpfedcl_theorem1(L1=1, L2=2, delta2=4, G=3, eta=0.5, tau=0.5, v=1, square=2)  # 0 + 36
    36.0
    """
    return mpfedcl_lemma1(L1=L1, delta2=delta2, eta=eta, square=square) + mpfedcl_lemma2(
        L2=L2, eta=eta, G=G, tau=tau, v=v
    )


def mpfedcl_corollary1_printed(
    *, L1: float, L2: float, delta2: float, G: float, tau: float, v: float, square: float, classes: int
) -> float:
    """Corollary 1, Eq. (21) as printed: up to this learning rate, L decreases in the round. Not true in general.

    2 / L1 - 2 A_p L2 G v / (L1 tau delta2 ||∇L||²). 0: there is no such rate.

    >>> mpfedcl_corollary1_printed(L1=2, L2=1, delta2=2, G=1, tau=1, v=1, square=4, classes=5)  # 1 - 8 / 16
    0.5
    """
    raised = (classes - 1) * L2 * G * v / tau
    return max(0.0, 2 / L1 * (1 - raised / (delta2 * square))) if square > 0 else 0.0


def mpfedcl_corollary1(*, L1: float, L2: float, delta2: float, G: float, tau: float, v: float, square: float) -> float:
    """Corollary 1, corrected: 2 / (L1 delta2) (1 - B / ||∇L||²), with B = 6 L2 G v / tau. 0: there is no such rate.

    >>> mpfedcl_corollary1(L1=2, L2=1, delta2=2, G=1, tau=1, v=1, square=12)  # 0.5 (1 - 6 / 12)
    0.25
    """
    raised = mpfedcl_lemma2(L2=L2, eta=1, G=G, tau=tau, v=v)
    return max(0.0, 2 / (L1 * delta2) * (1 - raised / square)) if square > 0 else 0.0


def mpfedcl_theorem2_rounds_printed(
    *,
    L1: float,
    L2: float,
    delta2: float,
    G: float,
    eta: float,
    tau: float,
    v: float,
    classes: int,
    epsilon: float,
    delta: float,
) -> float:
    """Theorem 2, Eq. (A17) as printed: this many rounds bring the mean of ||∇L||² to at most epsilon.

    delta / ((eta - L1 eta²/2) delta2 epsilon - A_p L2 eta G v / tau); inf if the denominator is not positive. `delta`
    (Δ) is L at the start minus a lower bound of L; delta2 is that of Assumption 2.

    >>> words = dict(L1=1, L2=1, delta2=4, G=1, eta=0.5, tau=1, v=0.5, epsilon=2, delta=3)
    >>> mpfedcl_theorem2_rounds_printed(classes=5, **words)  # 3 / (3 - 1)
    1.5
    """
    gain = (eta - L1 * eta**2 / 2) * delta2 * epsilon - (classes - 1) * L2 * eta * G * v / tau
    return delta / gain if gain > 0 else math.inf


def mpfedcl_theorem2_rounds(
    *, L1: float, L2: float, delta2: float, G: float, eta: float, tau: float, v: float, epsilon: float, delta: float
) -> float:
    """Theorem 2, corrected: delta / ((eta - L1 delta2 eta²/2) epsilon - eta B), with B = 6 L2 G v / tau.

    >>> words = dict(L1=1, L2=1, delta2=2, G=1, eta=0.5, tau=1, epsilon=2, delta=3)
    >>> mpfedcl_theorem2_rounds(v=1 / 12, **words)  # 3 / (0.5 - 0.25)
    12.0
    """
    gain = (eta - L1 * delta2 * eta**2 / 2) * epsilon - mpfedcl_lemma2(L2=L2, eta=eta, G=G, tau=tau, v=v)
    return delta / gain if gain > 0 else math.inf


def mpfedcl_theorem2_eta_printed(
    *, L1: float, L2: float, delta2: float, G: float, tau: float, v: float, classes: int, epsilon: float
) -> float:
    """Theorem 2, Eq. (22), (A19) as printed: Corollary 1 with epsilon in place of ||∇L||².

    >>> mpfedcl_theorem2_eta_printed(L1=2, L2=1, delta2=2, G=1, tau=1, v=1, classes=5, epsilon=4)
    0.5
    """
    return mpfedcl_corollary1_printed(L1=L1, L2=L2, delta2=delta2, G=G, tau=tau, v=v, square=epsilon, classes=classes)


def mpfedcl_theorem2_eta(
    *, L1: float, L2: float, delta2: float, G: float, tau: float, v: float, epsilon: float
) -> float:
    """Theorem 2, corrected: the corrected Corollary 1 with epsilon in place of ||∇L||². The rate must be below it.

    >>> mpfedcl_theorem2_eta(L1=2, L2=1, delta2=2, G=1, tau=1, v=1, epsilon=12)
    0.25
    """
    return mpfedcl_corollary1(L1=L1, L2=L2, delta2=delta2, G=G, tau=tau, v=v, square=epsilon)
