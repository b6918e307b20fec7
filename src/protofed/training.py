"""The local training of one client: the batch schedule, the phases, and the optimiser.

Everything here is written for one client. Engines may map `Optimiser.step` and the method's `loss` over many clients,
so both must be pure.
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
from protofed.examples import Augmentation, augmenter
from protofed.net import selected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from protofed.examples import Examples

__all__ = [
    "Optimiser",
    "Outcome",
    "TrainSection",
    "as_trained",
    "batch_schedule",
    "in_training",
    "params_for_testing",
    "take_part",
    "train_client",
    "trainable_names",
]


@dataclass(frozen=True)
class TrainSection:
    """The [train] section: how every client trains."""

    epochs: Annotated[int, Ge(0)] = 1
    """local epochs per round"""
    batch: Annotated[int, Ge(1)] = 8
    """examples per batch"""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """sgd or adam; its state starts from zero in every round"""
    lr: Annotated[float, Gt(0)] = 0.05
    """learning rate"""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.5
    """momentum of sgd; adam ignores it"""
    decay: Annotated[float, Gt(0), Le(1)] = 1.0
    """the learning rate of round t = 0, 1, ... is lr * decay^t"""
    decay_rounds: Annotated[int, Ge(0)] = 0
    """number of rounds T in which the rate also falls by (1 - t/T)^decay_power, constant after round T - 1; 0: none"""
    decay_power: Annotated[float, Gt(0)] = 0.9
    """power of the polynomial decay of decay_rounds"""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """L2 penalty: the gradient of each weight is increased by this number times the weight"""
    clip: Annotated[float, Ge(0)] = 0.0
    """largest L2 norm of the gradient of a model's parameters; larger gradients are scaled down; 0: no limit"""
    drop_last: bool = False
    """whether to skip the last batch of an epoch if it is short, unless it is the only one"""
    augment: tuple[Augmentation, ...] = ()
    """random changes of training images: "crop" (shifted by up to an eighth of the side), "flip" (mirrored), or both"""

    def rate(self, round: int) -> float:
        """The learning rate of a round."""
        exponential = self.lr * self.decay**round
        if not self.decay_rounds:
            return exponential
        last = self.decay_rounds - 1
        return exponential * float((1 - min(round, last) / self.decay_rounds) ** self.decay_power)


def batch_schedule(
    site: Site, num_examples: int, phases: Sequence[Phase], training: TrainSection, purpose: str = "batches"
) -> list[list[list[Tensor]]]:
    """Per phase and epoch the batches, as positions of examples. Every epoch is a new permutation."""
    generator = site.generator(purpose)
    if site.net.has_batch_norm and training.batch == 1:
        raise UserError(
            f"train.batch: got 1, but net {site.net.name} has batch norm, which needs at least 2 examples per batch. "
            "Use 2 or more."
        )

    def epoch() -> list[Tensor]:
        if not num_examples:
            return []
        batches = list(torch.randperm(num_examples, generator=generator).split(training.batch))
        short = len(batches) > 1 and len(batches[-1]) < training.batch
        too_small = site.net.has_batch_norm and len(batches[-1]) == 1  # batch norm has no statistics of one example
        return batches[:-1] if (short and training.drop_last) or too_small else batches

    return [[epoch() for _ in range(phase.epochs)] for phase in phases]


class Optimiser(NamedTuple):
    """A pure optimiser of one client: (parameters, gradients, state) -> (parameters, state)."""

    training: TrainSection
    lr: float | Tensor
    clipped_separately: tuple[str, ...] = ()  # as in `Phase`

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
        """One step: clip the gradient, add weight decay, then SGD with momentum or Adam."""
        training = self.training
        if training.clip:
            grads = self._clip(grads)
        if training.weight_decay:
            grads = {name: grad + training.weight_decay * params[name] for name, grad in grads.items()}
        update = self._sgd if training.optimiser == "sgd" else self._adam
        return update(params, grads, state)

    def _clip(self, grads: Params) -> Params:
        """The gradients, each part of `clipped_separately` and the rest scaled down to a norm of at most `clip`."""
        parts = [selected(grads, part) for part in self.clipped_separately]
        rest = {name: grad for name, grad in grads.items() if not any(name in part for part in parts)}
        clipped = dict(grads)
        for part in filter(None, (*parts, rest)):
            norm = torch.stack([grad.square().sum() for grad in part.values()]).sum().sqrt()
            factor = (self.training.clip / (norm + 1e-6)).clamp(max=1)
            clipped |= {name: grad * factor for name, grad in part.items()}
        return clipped

    def _sgd(self, params: Params, grads: Params, state: dict[str, Params]) -> tuple[Params, dict[str, Params]]:
        velocity = {name: self.training.momentum * state["velocity"][name] + grad for name, grad in grads.items()}
        return {name: value - self.lr * velocity[name] for name, value in params.items()}, {"velocity": velocity}

    def _adam(self, params: Params, grads: Params, state: dict[str, Params]) -> tuple[Params, dict[str, Params]]:
        beta1, beta2, epsilon = 0.9, 0.999, 1e-8
        count = state["count"][""] + 1
        first = {name: beta1 * state["first"][name] + (1 - beta1) * grad for name, grad in grads.items()}
        second = {name: beta2 * state["second"][name] + (1 - beta2) * grad.square() for name, grad in grads.items()}
        rate, correction = self.lr / (1 - beta1**count), (1 - beta2**count).sqrt()
        new_params = {
            name: value - rate * first[name] / (second[name].sqrt() / correction + epsilon)
            for name, value in params.items()
        }
        return new_params, {"first": first, "second": second, "count": {"": count}}


@dataclass
class Outcome:
    """The result of a client's training."""

    params: Params
    steps: int = 0
    examples_seen: float = 0.0
    terms: dict[str, Tensor] = field(default_factory=dict)  # the terms of the loss, summed over the examples seen
    observed: tuple[Tensor, ...] = ()  # `Loss.observed`, summed over the steps of the last epoch

    def add_step(self, loss: Loss, num_examples: int) -> None:
        """Add the loss of one step."""
        self.steps += 1
        self.examples_seen += num_examples
        for name, value in loss.terms.items():
            self.terms[name] = self.terms.get(name, 0) + value.detach() * num_examples
        new = tuple(value.detach() for value in loss.observed)
        self.observed = tuple(a + b for a, b in zip(self.observed, new, strict=True)) if self.observed else new


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
    """Train one client from the parameters `start`. This is the specification that every engine must match.

    `down` is what `Method.prepare` returned. `purpose` separates the draws of training from those of tuning.
    """
    net, outcome = site.net, Outcome({name: value.clone() for name, value in start.items()})
    schedule = batch_schedule(site, len(data), phases, training, purpose)
    with in_training(net):
        for phase, epochs in zip(phases, schedule, strict=True):
            names = trainable_names(net, start, phase)
            optimiser = Optimiser(training, training.rate(site.round), phase.clipped_separately)
            state = optimiser.start({name: outcome.params[name] for name in names})
            for batches in epochs:
                outcome.observed = ()  # only the last epoch is reported
                for positions in batches:
                    step = (site.round, site.client, outcome.steps)
                    augment = augmenter(training.augment, draws.derive(site.seed, purpose, "augment", *step))
                    batch = Batch.of(*data.take(positions, augment))
                    trainable = {name: outcome.params[name].detach().requires_grad_() for name in names}
                    key = draws.derive(site.seed, purpose, "dropout", *step)
                    with draws.DerivedDropout(torch.tensor(key)):
                        loss = method.loss(net, outcome.params | trainable, batch, down, kept)
                    grads = torch.autograd.grad(
                        loss.total, list(trainable.values()), allow_unused=True, materialize_grads=True
                    )
                    with torch.no_grad():
                        new_params, state = optimiser.step(trainable, dict(zip(names, grads, strict=True)), state)
                    outcome.params |= {name: value.detach() for name, value in new_params.items()}
                    outcome.add_step(loss, len(positions))
    return outcome


def take_part(
    method: AnyMethod, client: Client, kept: Any, down: Any, training: TrainSection
) -> tuple[Trained[Any, Any], Outcome]:
    """A client's round up to the end of training: it receives the message, checks the parameters, and trains."""
    start = method.receive(kept, down)
    client.net.check(start)
    phases = method.phases(training.epochs)
    outcome = train_client(method, client, client.data, start, method.prepare(down), kept, phases, training)
    return as_trained(client, kept, down, start, outcome, training), outcome


def as_trained(
    client: Client, kept: Any, down: Any, start: Params, outcome: Outcome, training: TrainSection
) -> Trained[Any, Any]:
    """The view of a client after its training that the method's hooks get."""
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
    """The parameters that a client is tested with: those it would start from, after tuning if the method tunes."""
    phases = method.tune(training.epochs)
    params = method.tune_start(kept, down) if phases else method.receive(kept, down)
    client.net.check(params)
    if not phases:
        return params
    with torch.enable_grad():
        return train_client(
            method, client, client.data, params, method.prepare(down), kept, phases, training, "tune"
        ).params


def trainable_names(net: Net, params: Params, phase: Phase) -> list[str]:
    """The names of the parameters that train in a phase. They are sorted, because files do not keep an order."""
    in_phase = {name for part in phase.trains for name in selected(params, part)}
    names = [name for name in sorted(in_phase) if net.trains(name, params[name])]
    if not any(net.trains(name, value) for name, value in params.items()):
        raise UserError(
            f"net {net.name} has no parameter that can train: all of them are frozen. "
            "Set requires_grad=True for some of them."
        )
    if not names:
        raise UserError(
            f"A phase trains {phase.trains}, but {net.name} has only {', '.join(sorted(params))}. "
            "Use the beginnings of these names."
        )
    return names


@contextmanager
def in_training(net: Net) -> Iterator[None]:
    """Inside this block, dropout and batch norm are in training mode, and draws from global generators are errors."""
    net.train(True)
    try:
        with draws.no_global_draws(f"net {net.name}"):
            yield
    finally:
        net.train(False)
