"""FedNH's Lemma 3 on the clients of a round, with the measured terms of Eq. (9) next to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protofed.core import Params
from protofed.experiment.bounds.paper import BoundRow, PaperBounds, holds
from protofed.experiment.bounds.probe import ClientProbe, vector
from protofed.methods.fednh import FedNH
from protofed.net import added
from protofed.theory import fednh_bounds as theory


def _fednh_premises(method: FedNH, steps: int) -> list[str]:
    broken = {
        "method.learn_scale = true: s changes with the steps; the lemmas have a fixed s": method.learn_scale,
        'method.weights = "count": class means are not weighted equally': method.weights == "count",
        "method.unit_means = true: class means are scaled to length 1 before they are sent": method.unit_means,
        "line 8 of Algorithm 1 scales the prototypes to length 1, which the printed proof ignores": method.rho < 1,
    }
    return [sentence for sentence, is_broken in broken.items() if is_broken]


def _scale(method: FedNH, params: Params) -> float:
    return max((abs(float(value)) for value in added(params).values()), default=method.scale)


def _fednh_rows(method: FedNH, probes: Sequence[ClientProbe]) -> list[BoundRow]:
    """A row per client: the J steps of the round, then the server's step to the next round's θ and W.

    In what follows from the server's step, J is the largest of all clients, because it averages all of them.
    """
    largest_f, largest_g = max(p.lipschitz for p in probes), max(p.mean_norm for p in probes)
    most_steps = max(p.steps for p in probes)
    rows = []
    for probe in probes:
        net, names = probe.objective.net, probe.objective.names
        head, classes = net.linear_head, net.classes
        first, last = probe.objective.value(probe.start), probe.objective.value(probe.end)
        new_head = probe.end | {head: probe.next[head]}
        with_new_head, later = probe.next_objective.value(new_head), probe.next_objective.value(probe.next)
        moved = float((probe.next[head] - probe.end[head]).double().norm())
        scale = max(_scale(method, params) for params in (probe.start, probe.end, probe.next))
        words: dict[str, Any] = {
            "L_g": probe.smoothness,
            "sigma2": probe.variance,
            "eta": probe.lr,
            "J": probe.steps,
            "S": probe.squares_sum,
        }
        training = theory.fednh_training(**words)
        server = theory.fednh_lemma3(  # without the change of training
            L_g=0, sigma2=0, S=0, eta=probe.lr, J=most_steps, M_G=largest_g, s=scale, moved=moved
        )
        corrected = training + server
        printed = kappa = smallest_epsilon = None
        if method.rho < 1:
            constants: dict[str, Any] = {
                "M_G": largest_g,
                "M_f": largest_f,
                "M_p": theory.fednh_lemma2(s=scale),
                "J": most_steps,
                "rho": method.rho,
                "classes": classes,
            }
            kappa = theory.fednh_kappa(**constants)
            smallest_epsilon = theory.fednh_theorem2_smallest_epsilon(**constants)
            printed = theory.fednh_lemma3_printed(rho=method.rho, kappa=kappa, **words)
        change = later - first
        rows.append(
            {
                "client": probe.client,
                "steps": probe.steps,
                "loss": first,
                "change": change,
                "printed": printed,
                "printed_holds": holds(change, printed, first),
                "bound": corrected,
                "holds": holds(change, corrected, first),
                "training_change": last - first,
                "training_bound": training,
                "training_holds": holds(last - first, training, first),
                "server_change": later - last,
                "server_bound": server,
                **probe.constants(),
                "theta_step": float((vector(probe.next, names) - vector(probe.end, names)).norm()),
                "theta_step_bound": 2 * probe.lr * most_steps * largest_g,
                "W_step": moved,
                "W_step_bound": theory.fednh_step_of_unit_rows(rho=method.rho, classes=classes),
                "theta_change": later - with_new_head,
                "W_change": with_new_head - last,
                "highest_square": max(probe.squares),
                "lemma1": theory.fednh_lemma1(mean_norm=largest_g) ** 2,
                "kappa": kappa,
                "smallest_epsilon": smallest_epsilon,
                "rho": method.rho,
            }
        )
    return rows


FEDNH_BOUNDS: PaperBounds[FedNH] = PaperBounds(
    "FedNH's Lemma 3, Eq. (5), with the measured step of W",
    "Lemma 4",
    _fednh_premises,
    _fednh_rows,
    {},
    "No rho meets the conditions of Lemma 4 and Theorem 2: they need (1 - rho) kappa < J M_G^2, but kappa is at least "
    "2 J M_G^2 / (1 - rho). `smallest_epsilon` is what Theorem 2 could promise, `lemma1` (M_G^2) what Lemma 1 gives "
    "without any condition.",
)
