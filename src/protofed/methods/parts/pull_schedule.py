"""Schedules of FedProto's λ: constant, rising linearly, or as Corollary 1 of its paper has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from protofed.core import Batch, Loss, Params, Trained
from protofed.theory.fedproto_bounds import fedproto_corollary1_lambda

if TYPE_CHECKING:
    from protofed.core import Net

PullSchedule = Literal["constant", "linear", "corollary"]
LINEAR_ROUNDS = 10
"""Rounds of a client after which `linear` has reached its value."""
COROLLARY_SHARE = 0.5
"""The share of its limit that `corollary` uses; the limit itself is estimated from below and not safe."""


def first_pull(schedule: PullSchedule, pull: float, round: int) -> dict[str, Tensor]:
    """What a new client keeps: λ for its first round; `constant` needs nothing.

    It is 0 for a client that is there from round 0 on, when there are no prototypes yet, and the complete λ for one
    that joins a finished run, which has no other round.
    """
    return {} if schedule == "constant" else {"pull": torch.tensor(pull if round else 0.0)}


def next_pull(
    schedule: PullSchedule,
    pull: float,
    trained: Trained[Any, Any],
    loss: Callable[[Net, Params, Batch, Any, Any], Loss],
) -> dict[str, Tensor]:
    """What a client keeps after a round: λ for its next round."""
    if schedule == "constant":
        return {}
    if schedule == "linear":
        return {"pull": (trained.kept.pull["pull"] + pull / LINEAR_ROUNDS).clamp(max=pull)}
    if not trained.steps:  # nothing moved, so that nothing can be estimated
        return {"pull": trained.kept.pull["pull"]}
    limit = corollary_limit(trained, loss)
    return {"pull": torch.tensor(min(pull, COROLLARY_SHARE * limit))}


def corollary_limit(trained: Trained[Any, Any], loss: Callable[[Net, Params, Batch, Any, Any], Loss]) -> float:
    """||∇L||² / (L2 E G) of Eq. (17), with constants from the round that has just ended; 0 for a client without data.

    ∇L is the gradient over all training examples at the end of the round, with its prototypes and its λ; L2 is the
    largest change of an embedding per change of the body; G is the larger norm of ∇L at the start and at the end. If
    nothing moved there is no limit (inf).
    """
    if not trained.num_examples:
        return 0.0
    batch = Batch.of(*trained.data.take(torch.arange(trained.num_examples)))
    first, last = (_squared_gradient(trained, params, batch, loss) for params in (trained.start, trained.params))
    moved = (trained.features()[0] - trained.features(before=True)[0]).double().norm(dim=-1).max()
    body = [name for name in trained.params if name.startswith("body.") and name in trained.net.trainable]
    change = torch.cat([(trained.params[name] - trained.start[name]).flatten() for name in body]).double().norm()
    lipschitz = float(moved / change) if change > 0 else 0.0
    return fedproto_corollary1_lambda(L2=lipschitz, G=max(first, last) ** 0.5, E=trained.steps, square=last)


def _squared_gradient(trained: Trained[Any, Any], params: Params, batch: Batch, loss: Callable[..., Loss]) -> float:
    """||∇L||² over the parameters that train."""
    trainable = {
        name: value.detach().requires_grad_()
        for name, value in sorted(params.items())
        if trained.net.trains(name, value)
    }
    with torch.enable_grad():
        total = loss(trained.net, params | trainable, batch, trained.down, trained.kept).total
    grads = torch.autograd.grad(total, list(trainable.values()), allow_unused=True, materialize_grads=True)
    return float(sum(grad.double().square().sum() for grad in grads))
