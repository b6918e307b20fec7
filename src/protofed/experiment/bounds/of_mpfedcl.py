"""MP-FedCL's Theorem 1 and Corollary 1 on all clients of a round together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from protofed.experiment.bounds.paper import BoundRow, PaperBounds, holds
from protofed.experiment.bounds.probe import ClientProbe, vector
from protofed.methods.mpfedcl import MpFedCL
from protofed.theory import mpfedcl_bounds as theory


def _mpfedcl_premises(method: MpFedCL, steps: int) -> list[str]:
    broken = {
        f"up to {steps} local steps per round: the theorem is for one; here, its first part has the learning rate "
        "times the number of steps, which is not proved": steps > 1,
        "Assumption 1 says that the loss is convex; that of a net is not (the proof does not use it)": True,
        f'method.clustering = "{method.clustering}": centres may jump; Lemma 2 is for one mean per class': (
            method.modes > 1
        ),
        "method.unit = true: embeddings and prototypes are scaled to length 1; Lemma 2 is for v and u as they are": (
            method.unit
        ),
        f"method.cap = {method.cap}: a merged pool has centres of prototypes": method.cap > 0,
        f"method.contrast = {method.contrast:g}: L_R has another weight than 1": method.contrast != 1,
    }
    return [sentence for sentence, is_broken in broken.items() if is_broken]


def _mpfedcl_rows(method: MpFedCL, probes: Sequence[ClientProbe]) -> list[BoundRow]:
    """One row: L is the mean of the clients' objectives, weighted by their examples like the models.

    With several steps per round, the printed bounds, the first part of the corrected one, and the limits are those of
    one step with the learning rate times their number.
    """
    total = sum(probe.num_examples for probe in probes)
    weights = [probe.num_examples / total for probe in probes]

    def mean(value: Callable[[ClientProbe], float]) -> float:
        return sum(weight * value(probe) for weight, probe in zip(weights, probes, strict=True))

    names, steps, lr = probes[0].objective.names, max(p.steps for p in probes), probes[0].lr
    start, later = probes[0].start, probes[0].next
    first, moved, last = (
        mean(lambda p: p.objective.value(p.start)),
        mean(lambda p: p.objective.value(p.next)),
        mean(lambda p: p.next_objective.value(p.next)),
    )
    gradient = sum((w * p.first_gradient for w, p in zip(weights, probes, strict=True)), start=torch.zeros(()))
    after = sum((w * p.objective.gradient(p.next) for w, p in zip(weights, probes, strict=True)), start=torch.zeros(()))
    square = float(gradient.square().sum())
    delta2 = mean(lambda p: p.squares[0]) / square if square > 0 else 1.0
    distance = float((vector(later, names) - vector(start, names)).norm())
    smoothness = float((after - gradient).norm()) / distance if distance > 0 else 0.0

    def embedding_norm(probe: ClientProbe) -> float:
        with torch.no_grad():
            z = method.scaled(probe.objective.net.embed(probe.next, probe.objective.batch.x)).norm(dim=-1)
        return method.contrast * float(z.mean() if method.reduction == "mean" else z.sum())

    seen = [torch.equal(p.objective.down.seen, p.next_objective.down.seen) for p in probes]
    classes = int(probes[0].objective.down.seen.sum())
    shared = {
        "L2": max(p.lipschitz for p in probes),
        "G": max(p.mean_norm for p in probes),
        "tau": method.temperature,
        "v": mean(embedding_norm),
    }
    step = {"L1": smoothness, "delta2": delta2, "eta": lr * steps, "square": square}
    training = theory.mpfedcl_lemma1(**step)
    raised = theory.mpfedcl_lemma2(eta=lr, E=steps, **shared)
    applies = all(seen) and classes > 1
    printed = (
        theory.mpfedcl_lemma1_printed(**step) + theory.mpfedcl_lemma2_printed(classes=classes, eta=lr * steps, **shared)
        if applies
        else None
    )
    bound = training + raised if applies else None
    limits = {"L1": smoothness, "delta2": delta2, "square": square, **shared}
    change = last - first
    return [
        {
            "client": None,
            "steps": steps,
            "loss": first,
            "change": change,
            "printed": printed,
            "printed_holds": holds(change, printed, first),
            "bound": bound,
            "holds": holds(change, bound, first),
            "training_change": moved - first,
            "training_bound": training,
            "training_holds": holds(moved - first, training, first),
            "server_change": last - moved,
            "server_bound": raised if applies else None,
            "S": square,
            "L1": smoothness,
            "delta2": delta2,
            "L2": shared["L2"],
            "G": shared["G"],
            "v": shared["v"],
            "lr": lr,
            "largest_lr": theory.mpfedcl_corollary1(**limits) / steps if smoothness > 0 else None,
            "largest_lr_printed": theory.mpfedcl_corollary1_printed(classes=classes, **limits) / steps
            if smoothness > 0 and applies
            else None,
        }
    ]


MPFEDCL_BOUNDS: PaperBounds[MpFedCL] = PaperBounds(
    "MP-FedCL's Theorem 1, Eq. (20), corrected",
    "Corollary 1, Eq. (21), corrected",
    _mpfedcl_premises,
    _mpfedcl_rows,
    {"lr": "learning rate"},
)
