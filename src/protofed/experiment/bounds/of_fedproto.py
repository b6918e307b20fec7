"""FedProto's Theorem 1 and Corollary 1 on the clients of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from protofed.experiment.bounds.paper import BoundRow, PaperBounds, holds
from protofed.experiment.bounds.probe import ClientProbe
from protofed.methods.fedproto import FedProto
from protofed.methods.parts.distances import SMOOTH_BELOW
from protofed.theory import fedproto_bounds as theory

STEEPEST = 4 / 3
"""The largest slope of a smoothed norm, d² (2w - d) / w², at d = 2w / 3."""


def _fedproto_premises(method: FedProto, steps: int) -> list[str]:
    broken = {
        f'method.distance = "{method.distance}": Lemma 2 is for the norm itself ("l2"); `bound` has the factor for '
        "this distance, if there is one": method.distance != "l2",
        f'method.distance = "l2": below {SMOOTH_BELOW} the norm is smoothed, and up to 4/3 times as steep; `bound` has '
        "this factor": method.distance == "l2",
        f'method.pull_schedule = "{method.pull_schedule}": λ changes with the rounds': method.pull_schedule
        != "constant",
        'method.pooling = "written": the weights of the prototypes do not sum to 1': method.pooling == "written",
        'method.between = "means": mini-batch gradients are biased, and the distances are summed over classes': (
            method.between == "means"
        ),
        'method.prototypes = "gathered": prototypes are not those of the model at the end of the round': (
            method.prototypes == "gathered"
        ),
    }
    return [sentence for sentence, is_broken in broken.items() if is_broken]


def _new_prototypes_factor(method: FedProto, probe: ClientProbe) -> float | None:
    """The factor of λ L2 eta E G in Lemma 2 for the method's distance; None if a class has its first prototype now.

    inf: there is no such bound for this distance.
    """
    y = probe.objective.batch.y
    labels, old, new = y.unique(), probe.objective.down.prototypes, probe.next_objective.down.prototypes
    if not ((old.support[labels, 0] > 0) == (new.support[labels, 0] > 0)).all():
        return None
    with torch.no_grad():
        z = probe.objective.net.embed(probe.end, probe.objective.batch.x)
    part = F.relu if method.distance == "relu_l2" else torch.Tensor.double
    before, after = ((part(z) - part(bank.lookup(y)[0])).double().norm(dim=-1) for bank in (old, new))
    distances, dim = float((before + after).mean()), z.shape[-1]
    steep = float(torch.where(torch.minimum(before, after) < SMOOTH_BELOW, STEEPEST, 1.0).mean())
    by_distance = {
        "l2": steep,
        "relu_l2": steep,
        "l1": STEEPEST * math.sqrt(dim),
        "squared": distances,
        "mse": distances / dim,
    }
    factor = by_distance.get(method.distance, math.inf)
    if method.between == "samples":
        return factor
    return len(labels) * STEEPEST if method.distance == "l2" else math.inf  # class means: a sum over classes


def _fedproto_rows(method: FedProto, probes: Sequence[ClientProbe]) -> list[BoundRow]:
    """A row per client. In Lemma 2, L2, G and E are the largest of all clients, because all of them make prototypes."""
    largest_l2, largest_g = max(p.lipschitz for p in probes), max(p.mean_norm for p in probes)
    most_steps = max(p.steps for p in probes)
    rows = []
    for probe in probes:
        constant = method.pull_schedule == "constant"
        pull = method.pull if constant else float(probe.objective.kept.pull["pull"])
        first, last = probe.objective.value(probe.start), probe.objective.value(probe.end)
        later = probe.next_objective.value(probe.next)
        shared = {"L2": largest_l2, "G": largest_g}
        training = theory.fedproto_lemma1(
            L1=probe.smoothness, sigma2=probe.variance, eta=probe.lr, E=probe.steps, S=probe.squares_sum
        )
        factor = _new_prototypes_factor(method, probe)
        lemma2 = theory.fedproto_lemma2(lam=pull, eta=probe.lr, E=most_steps, **shared)
        printed = None if factor is None else training + lemma2
        corrected = None if factor is None or math.isinf(factor) else training + factor * lemma2
        largest_lr, largest_pull = None, None
        if corrected is not None and factor is not None and factor > 0:
            lam = pull * factor * most_steps / probe.steps  # Lemma 2 has the factor and another E than the client's own
            square, limits = probe.squares[0], {"L1": probe.smoothness, "sigma2": probe.variance, **shared}
            largest_pull = theory.fedproto_corollary1_lambda(E=most_steps, square=square, **shared) / factor
            if probe.smoothness > 0:
                largest_lr = theory.fedproto_largest_eta(E=probe.steps, S=probe.squares_sum, lam=lam, **limits)
        rows.append(
            {
                "client": probe.client,
                "steps": probe.steps,
                "loss": first,
                "change": later - first,
                "printed": printed,
                "printed_holds": holds(later - first, printed, first),
                "bound": corrected,
                "holds": holds(later - first, corrected, first),
                "training_change": last - first,
                "training_bound": training,
                "training_holds": holds(last - first, training, first),
                "server_change": later - last,
                "server_bound": None if corrected is None else corrected - training,
                **probe.constants(),
                "largest_lr": largest_lr,
                "pull": pull,
                "largest_pull": largest_pull,
            }
        )
    return rows


FEDPROTO_BOUNDS: PaperBounds[FedProto] = PaperBounds(
    "FedProto's Theorem 1, Eq. (15)",
    "Corollary 1, Eq. (B42) and (17)",
    _fedproto_premises,
    _fedproto_rows,
    {"lr": "learning rate", "pull": "λ"},
)
