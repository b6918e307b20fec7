"""FedProto's global objective, Eq. (5), of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.engines.scoring import labelled
from protofed.errors import UserError
from protofed.measures.question import Measurement, Question, Rows
from protofed.methods.fedproto import FedProto
from protofed.methods.parts.distances import Distance, distance
from protofed.net import EVALUATION_BATCH
from protofed.plugins import label as short_name
from protofed.prototypes import Prototypes, safe_divide

_PIXEL_NOTE = (
    "The examples are labelled pixels: the cross-entropy is over those of the images, and the prototypes and the "
    "numbers of examples are over those of the maps of embeddings."
)
"""A note if the nets label pixels."""


class ClientTerms(NamedTuple):
    """What a client contributes to Eq. (5)."""

    cross_entropy: float  # L_S, summed over its training examples; of masks, over the pixels that have a label
    number: int  # of terms in this sum
    prototypes: Prototypes  # C_i^(j), Eq. (3); the support is |D_ij|


def prototype_term(clients: Sequence[Prototypes], server: Prototypes, kind: Distance) -> Tensor:
    """The second sum of Eq. (5), per class j [classes]: sum_i |D_ij| / N_j * d(C_i^(j), global C^(j)).

    N_j counts the examples of all clients. A class without examples, or without a global prototype, has 0.
    """
    support = torch.stack([part.support[:, 0] for part in clients])  # [clients, classes]: |D_ij|
    distances = torch.stack([distance(part.single()[:, 0], server.single()[:, 0], kind) for part in clients])
    known = torch.where(server.support[:, 0] > 0, safe_divide(support, support.sum(0)), 0)
    return (known * distances).sum(0)


def measure_objective(question: Question) -> Measurement:
    """Eq. (5) at the end of a run of fedproto: its two terms, and the second one per class."""
    method = question.state.config.method
    if not isinstance(method, FedProto):
        raise UserError(
            f"objective is FedProto's Eq. (5), but this is a run of {short_name(question.state.config.method_name)}. "
            "Use a run of fedproto."
        )
    if method.pull_schedule != "constant":
        raise UserError(
            f'objective needs one λ for all clients, but this run has method.pull_schedule = "{method.pull_schedule}". '
            "Use a run with a constant one."
        )
    terms = [_client_terms(question, client) for client in range(len(question.state.members))]
    clients = [term.prototypes for term in terms]
    support = torch.stack([part.support[:, 0] for part in clients])
    supervised = sum(term.cross_entropy for term in terms) / max(sum(term.number for term in terms), 1)
    per_class = prototype_term(clients, question.prototypes, method.distance)
    distances = float(per_class.sum())
    rows: Rows = {
        "all": {
            "supervised": supervised,
            "distance": distances,
            "objective": supervised + method.pull * distances,
            "examples": int(support.sum()),
            "clients": int((support.sum(1) > 0).sum()),
        }
    }
    for label, value, examples in zip(question.labels, per_class.tolist(), support.T, strict=True):
        rows[f"class {label}"] = {
            "distance": value,
            "examples": int(examples.sum()),
            "clients": int((examples > 0).sum()),
        }
    return Measurement(
        "FedProto's Eq. (5) on the clients' training examples, without dropout: the cross-entropy weighted by "
        f"|D_i| / N, the distance ({method.distance}) of local prototypes from global ones weighted by |D_ij| / N_j "
        f"and summed over classes, and the objective: the first plus pull = {method.pull:g} times the second.",
        rows,
        (_PIXEL_NOTE,) if any(net.grid for net in question.state.members.nets) else (),
    )


@torch.no_grad()
def _client_terms(question: Question, client: int) -> ClientTerms:
    model, examples = question.state.model(client), question.state.members.train[client]
    model.must_be_finite()
    loss, number = 0.0, 0
    for x, y in examples.batches(EVALUATION_BATCH):
        scores, labels = labelled(model.compute_scores(x)["head"], y)
        loss += float(F.cross_entropy(scores, labels, reduction="sum"))
        number += len(labels)
    prototypes = Prototypes.of(*model.net.features(model.params, examples), len(question.labels))
    return ClientTerms(loss, number, prototypes)
