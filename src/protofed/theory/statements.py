"""Every lemma, theorem and corollary of the three papers that prove convergence, with both versions of its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from protofed.theory import fednh_bounds as fednh
from protofed.theory import fedproto_bounds as fedproto
from protofed.theory import mpfedcl_bounds as mpfedcl

Bound = Callable[..., float | list[float]]


class Statement(NamedTuple):
    """A lemma, theorem or corollary."""

    paper: str  # the method's name
    name: str
    equations: str  # where it is; numbers with "B" are those of FedProto's appendix B
    says: str
    printed: tuple[Bound, ...]  # as printed
    corrected: tuple[Bound, ...]  # the versions that hold; where a printed one holds, the same function
    verdict: str  # what was found, in one sentence


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "fedproto",
        "Lemma 1",
        "Eq. (B11)",
        "change of the loss during the local steps of a round",
        (fedproto.fedproto_lemma1,),
        (fedproto.fedproto_lemma1,),
        "correct",
    ),
    Statement(
        "fedproto",
        "Lemma 2",
        "Eq. (B19)",
        "change of the loss when new prototypes arrive",
        (fedproto.fedproto_lemma2,),
        (fedproto.fedproto_lemma2, fedproto.fedproto_lemma2_squared),
        "correct for the norm; the objective of Eq. (B1) has its square, which needs another factor",
    ),
    Statement(
        "fedproto",
        "Theorem 1",
        "Eq. (15), (B34)",
        "change of the loss over one round",
        (fedproto.fedproto_theorem1,),
        (fedproto.fedproto_theorem1,),
        "correct for the norm, away from the points where it is not smooth",
    ),
    Statement(
        "fedproto",
        "Corollary 1",
        "Eq. (16), (17), (B42) to (B45)",
        "learning rate and λ with which the loss decreases in every round",
        (fedproto.fedproto_corollary1_etas, fedproto.fedproto_corollary1_lambda),
        (
            fedproto.fedproto_largest_eta,
            fedproto.fedproto_largest_lambda,
            fedproto.fedproto_corollary1_safe_etas,
        ),
        "correct for a constant rate; limits per step are not sufficient if the rate changes within the round",
    ),
    Statement(
        "fedproto",
        "Theorem 2",
        "Eq. (18), (19), (B37) to (B40)",
        "rounds until the mean squared gradient is below ε",
        (
            fedproto.fedproto_theorem2_rounds,
            fedproto.fedproto_theorem2_eta,
            fedproto.fedproto_theorem2_lambda,
        ),
        (
            fedproto.fedproto_theorem2_enough,
            fedproto.fedproto_theorem2_eta,
            fedproto.fedproto_theorem2_lambda,
        ),
        "correct with T > in place of T =, as in Eq. (B50)",
    ),
    Statement(
        "mpfedcl",
        "Lemma 1",
        "Eq. (18), (A1) to (A6)",
        "change of the loss in the step of a round",
        (mpfedcl.mpfedcl_lemma1_printed,),
        (mpfedcl.mpfedcl_lemma1,),
        "false: step (A4)(c) uses an upper bound as a lower bound",
    ),
    Statement(
        "mpfedcl",
        "Lemma 2",
        "Eq. (19), (A7) to (A11)",
        "change of the loss when the pool changes",
        (mpfedcl.mpfedcl_lemma2_printed,),
        (mpfedcl.mpfedcl_lemma2,),
        "step (A10)(a) is false; the bound is false for two classes and holds for seven or more",
    ),
    Statement(
        "mpfedcl",
        "Theorem 1",
        "Eq. (20), (A12)",
        "change of the loss over one round",
        (mpfedcl.mpfedcl_theorem1_printed,),
        (mpfedcl.mpfedcl_theorem1,),
        "false, because Lemma 1 is",
    ),
    Statement(
        "mpfedcl",
        "Corollary 1",
        "Eq. (21), (A13)",
        "learning rate with which the loss decreases in every round",
        (mpfedcl.mpfedcl_corollary1_printed,),
        (mpfedcl.mpfedcl_corollary1,),
        "false with a contrastive loss; without it, 2 / L1 is correct",
    ),
    Statement(
        "mpfedcl",
        "Theorem 2",
        "Eq. (22), (A14) to (A19)",
        "rounds until the mean squared gradient is at most ε",
        (mpfedcl.mpfedcl_theorem2_rounds_printed, mpfedcl.mpfedcl_theorem2_eta_printed),
        (mpfedcl.mpfedcl_theorem2_rounds, mpfedcl.mpfedcl_theorem2_eta),
        "false, because Lemma 1 is",
    ),
    Statement(
        "fednh",
        "Lemma 1",
        "appendix B",
        "the gradient is at most M_G",
        (fednh.fednh_lemma1_printed,),
        (fednh.fednh_lemma1,),
        "correct; the proof uses a stronger assumption than the printed one, which is sufficient",
    ),
    Statement(
        "fednh",
        "Lemma 2",
        "appendix B",
        "the gradient with respect to the prototypes is bounded",
        (fednh.fednh_lemma2_printed,),
        (fednh.fednh_lemma2,),
        "lacks the factor s; √2 s is true and sharp",
    ),
    Statement(
        "fednh",
        "Lemma 3",
        "Eq. (5) to (18)",
        "change of the loss from the end of a round to the end of the next",
        (fednh.fednh_lemma3_printed, fednh.fednh_kappa),
        (fednh.fednh_lemma3, fednh.fednh_training, fednh.fednh_step_of_unit_rows, fednh.fednh_step_of_free_rows),
        "the proof has gaps: the factor 1 - ρ is cancelled by a sum that Eq. (17) drops",
    ),
    Statement(
        "fednh",
        "Lemma 4",
        "appendix B",
        "ρ and learning rate with which the loss decreases in every round",
        (fednh.fednh_lemma4_smallest_rho, fednh.fednh_lemma4_eta_printed),
        (fednh.fednh_lemma4_holds, fednh.fednh_lemma4_eta),
        "no ρ satisfies its condition; its conclusion follows from Assumption 1 alone",
    ),
    Statement(
        "fednh",
        "Theorem 1",
        "section 3.3",
        "Theorem 2, informally",
        (fednh.fednh_theorem2_smallest_rho,),
        (fednh.fednh_theorem2_smallest_epsilon,),
        "as Theorem 2",
    ),
    Statement(
        "fednh",
        "Theorem 2",
        "Eq. (19)",
        "rounds until the expected squared gradient is at most ε",
        (
            fednh.fednh_theorem2_smallest_rho,
            fednh.fednh_theorem2_eta_printed,
            fednh.fednh_theorem2_rounds_printed,
        ),
        (fednh.fednh_theorem2_smallest_epsilon, fednh.fednh_theorem2_eta, fednh.fednh_theorem2_rounds),
        "its conditions cannot be met; with ε > 2 M_G² alone it would say less than Lemma 1",
    ),
)
