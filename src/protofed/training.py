"""A client's round: the batch schedule, the phases, and the optimiser's step.

Everything here is written for one client. What an engine may map over clients is pure: `Optimiser.step` and the
method's `loss`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from protofed import draws
from protofed.core import AnyMethod, Batch, Client, Loss, Net, Params, Phase, Site, Trained
from protofed.errors import UserError
from protofed.examples import Change, changer
from protofed.net import selected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from protofed.examples import Examples


@dataclass(frozen=True)
class TrainSection:
    """The [train] section: how every client trains."""

    epochs: Annotated[int, Ge(0)] = 1
    """local epochs in a round"""
    batch: Annotated[int, Ge(1)] = 8
    """examples in a batch"""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """sgd or adam; a new one in every round"""
    lr: Annotated[float, Gt(0)] = 0.05
    """the learning rate"""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.5
    """of sgd; adam has its own"""
    decay: Annotated[float, Gt(0), Le(1)] = 1.0
    """the learning rate of round t = 0, 1, ... is lr * decay^t"""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """how strongly weights are drawn to 0: added to the gradient, times the weight"""
    clip: Annotated[float, Ge(0)] = 0.0
    """the largest L2 norm of a gradient; 0: as it comes"""
    drop_last: bool = False
    """leave out an epoch's last, short batch (never its only one)"""
    augment: tuple[Change, ...] = ()
    """what is done to training images: "crop" (shifted by up to an eighth of the side), "flip" (mirrored), or both"""

    def rate(self, round: int) -> float:
        """The learning rate of a round."""
        return self.lr * self.decay**round


def batch_schedule(
    site: Site, examples: int, phases: Sequence[Phase], training: TrainSection, purpose: str = "batches"
) -> list[list[list[Tensor]]]:
    """For each phase and each of its epochs the batches, as positions; every epoch is a permutation of its own."""
    generator = site.generator(purpose)
    if site.net.batch_norm and training.batch == 1:
        raise UserError(
            f"train.batch: got 1, but net {site.net.name} has batch norm, for which one example has no statistics. "
            "Use 2 or more."
        )

    def epoch() -> list[Tensor]:
        batches = list(torch.randperm(examples, generator=generator).split(training.batch)) if examples else []
        short = len(batches) > 1 and len(batches[-1]) < training.batch
        lonely = site.net.batch_norm and examples and len(batches[-1]) == 1  # one example has no statistics
        return batches[:-1] if (short and training.drop_last) or lonely else batches

    return [[epoch() for _ in range(phase.epochs)] for phase in phases]


class Optimiser(NamedTuple):
    """A pure optimiser: (parameters, gradients, state) -> (parameters, state), one client's at a time."""

    training: TrainSection
    lr: float | Tensor

    def start(self, params: Params) -> dict[str, Params]:
        """The state before the first step."""
        zeros = {name: torch.zeros_like(value) for name, value in params.items()}
        if self.training.optimiser == "sgd":
            return {"velocity": zeros}
        return {
            "first": zeros,
            "second": {name: value.clone() for name, value in zeros.items()},
            "count": {"": torch.zeros(())},
        }

    def step(self, params: Params, grads: Params, state: dict[str, Params]) -> tuple[Params, dict[str, Params]]:
        """One step: clip the gradient of all parameters together, add weight decay, then SGD with momentum or Adam."""
        how = self.training
        if how.clip:
            norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
            factor = (how.clip / (norm + 1e-6)).clamp(max=1)
            grads = {name: grad * factor for name, grad in grads.items()}
        if how.weight_decay:
            grads = {name: grad + how.weight_decay * params[name] for name, grad in grads.items()}
        move = self.sgd if how.optimiser == "sgd" else self.adam
        return move(params, grads, state)

    def sgd(self, params: Params, grads: Params, state: dict[str, Params]) -> tuple[Params, dict[str, Params]]:
        velocity = {name: self.training.momentum * state["velocity"][name] + grad for name, grad in grads.items()}
        return {name: value - self.lr * velocity[name] for name, value in params.items()}, {"velocity": velocity}

    def adam(self, params: Params, grads: Params, state: dict[str, Params]) -> tuple[Params, dict[str, Params]]:
        b1, b2, tiny = 0.9, 0.999, 1e-8
        count = state["count"][""] + 1
        first = {name: b1 * state["first"][name] + (1 - b1) * grad for name, grad in grads.items()}
        second = {name: b2 * state["second"][name] + (1 - b2) * grad.square() for name, grad in grads.items()}
        size, root = self.lr / (1 - b1**count), (1 - b2**count).sqrt()
        moved = {
            name: value - size * first[name] / (second[name].sqrt() / root + tiny) for name, value in params.items()
        }
        return moved, {"first": first, "second": second, "count": {"": count}}


@dataclass
class Outcome:
    """What training gave: parameters, the terms of the loss summed over examples, and what was observed."""

    params: Params
    steps: int = 0
    examples_seen: float = 0.0
    terms: dict[str, Tensor] = field(default_factory=dict)
    observed: tuple[Tensor, ...] = ()

    def add_step(self, loss: Loss, examples: int) -> None:
        """Add the loss of a step over a number of examples."""
        self.steps += 1
        self.examples_seen += examples
        for name, value in loss.terms.items():
            self.terms[name] = self.terms.get(name, 0) + value.detach() * examples
        fresh = tuple(value.detach() for value in loss.observed)
        self.observed = tuple(a + b for a, b in zip(self.observed, fresh, strict=True)) if self.observed else fresh


def train_client(
    method: AnyMethod,
    site: Site,
    data: Examples,
    start: Params,
    down: Any,
    kept: Any,
    phases: Sequence[Phase],
    training: TrainSection,
    purpose: str = "batches",
) -> Outcome:
    """Train one client from `start`: the specification that every engine must equal."""
    net, outcome = site.net, Outcome({name: value.clone() for name, value in start.items()})
    plan = batch_schedule(site, len(data), phases, training, purpose)
    optimiser = Optimiser(training, training.rate(site.round))
    with in_training(net):
        for phase, epochs in zip(phases, plan, strict=True):
            moving = trainable_names(net, start, phase)
            state = optimiser.start({name: outcome.params[name] for name in moving})
            for batches in epochs:
                outcome.observed = ()  # what is reported is the last epoch's
                for positions in batches:
                    spot = (site.round, site.client, outcome.steps)
                    change = changer(training.augment, draws.derive(site.seed, purpose, "augment", *spot))
                    batch = Batch.of(*data.take(positions, change))
                    leaves = {name: outcome.params[name].detach().requires_grad_() for name in moving}
                    key = draws.derive(site.seed, purpose, "dropout", *spot)
                    with draws.DerivedDropout(torch.tensor(key)):
                        loss = method.loss(net, outcome.params | leaves, batch, down, kept)
                    grads = torch.autograd.grad(
                        loss.total, list(leaves.values()), allow_unused=True, materialize_grads=True
                    )
                    with torch.no_grad():
                        moved, state = optimiser.step(leaves, dict(zip(moving, grads, strict=True)), state)
                    outcome.params |= {name: value.detach() for name, value in moved.items()}
                    outcome.add_step(loss, len(positions))
    return outcome


def take_part(
    method: AnyMethod, client: Client, kept: Any, down: Any, training: TrainSection
) -> tuple[Trained[Any, Any], Outcome]:
    """A client's round: it receives, checks, trains; what it keeps and uploads is up to the method."""
    start = method.receive(kept, down)
    client.net.check(start)
    phases = method.phases(training.epochs)
    outcome = train_client(method, client, client.data, start, method.prepare(down), kept, phases, training)
    return as_trained(client, kept, down, start, outcome, training), outcome


def as_trained(
    client: Client, kept: Any, down: Any, start: Params, outcome: Outcome, training: TrainSection
) -> Trained[Any, Any]:
    """A client after its training."""
    return Trained(
        **vars(client),
        kept=kept,
        down=down,
        start=start,
        params=outcome.params,
        lr=training.rate(client.round),
        steps=outcome.steps,
        observed=outcome.observed,
    )


def params_for_testing(method: AnyMethod, client: Client, kept: Any, down: Any, training: TrainSection) -> Params:
    """The parameters a client is tested with: those it would start from, tuned if the method does that."""
    params = method.receive(kept, down)
    client.net.check(params)
    phases = method.tune(training.epochs)
    if not phases:
        return params
    with torch.enable_grad():
        return train_client(
            method, client, client.data, params, method.prepare(down), kept, phases, training, "tune"
        ).params


def trainable_names(net: Net, params: Params, phase: Phase) -> list[str]:
    """The names of what trains in a phase, sorted: a file may give them back in another order."""
    moving = {name for part in phase.trains for name in selected(params, part)}
    names = [name for name in sorted(moving) if net.trains(name, params[name])]
    if not any(net.trains(name, value) for name, value in params.items()):
        raise UserError(f"net {net.name} has no parameter that can train: all of them are frozen.")
    if not names:
        raise UserError(f"A phase trains {phase.trains}, but {net.name} has only {', '.join(sorted(params))}.")
    return names


@contextmanager
def in_training(net: Net) -> Iterator[None]:
    """Dropout and batch norm behave as in training, and nothing may draw from a global generator."""
    net.train(True)
    try:
        with draws.no_global_draws(f"net {net.name}"):
            yield
    finally:
        net.train(False)
