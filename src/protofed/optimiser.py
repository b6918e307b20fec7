"""The [train] section, the learning rate of each step, and the optimiser.

Engines may map `Optimiser.step` over many clients, so it must be pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from protofed.devices import Precision
from protofed.examples import Augmentation
from protofed.net import selected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofed.params import Params


@dataclass(frozen=True)
class TrainSection:
    """The [train] section: how every client trains."""

    epochs: Annotated[int | float, Ge(0)] = 1
    """local epochs per round; 0.5: half of the batches of an epoch, rounded up"""
    steps: Annotated[int, Ge(0)] = 0
    """local steps per round, the same number for every client, instead of epochs; 0: epochs count"""
    batch: Annotated[int, Ge(1)] = 8
    """examples per batch"""
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    """sgd, adam, or adamw (adam with decoupled weight decay); its state starts from zero in every round"""
    lr: Annotated[float, Gt(0)] = 0.05
    """learning rate; the schedule multiplies it by a factor from 0 to 1"""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.5
    """momentum of sgd; adam and adamw ignore it"""
    schedule: Literal["constant", "exponential", "polynomial", "cosine"] = "exponential"
    """factor in round t: 1, decay^t, (1 - t/T)^decay_power or (1 + cos(pi t/T)) / 2, where T is decay_rounds"""
    decay: Annotated[float, Gt(0), Le(1)] = 1.0
    """factor per round of the exponential schedule; 1.0: constant"""
    decay_rounds: Annotated[int, Ge(0)] = 0
    """T of the polynomial and cosine schedules, usually run.rounds; later rounds have the rate of the last"""
    decay_power: Annotated[float, Gt(0)] = 0.9
    """power of the polynomial schedule"""
    warmup: Annotated[float, Ge(0)] = 0.0
    """number of rounds in which the rate first rises linearly to lr; the schedule starts after them; 0: none"""
    schedule_by: Literal["round", "step"] = "round"
    """round: all steps of a round have one rate; step: t also counts the fraction of the client's steps of the round"""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """this number times each weight is added to its gradient (L2); adamw: a step subtracts rate * this * the weight"""
    clip: Annotated[float, Ge(0)] = 0.0
    """largest L2 norm of the gradient of a model's parameters; larger gradients are scaled down; 0: no limit"""
    drop_last: bool = False
    """whether to skip the last batch of an epoch if it is short, unless it is the only one"""
    precision: Precision = "float32"
    """bfloat16: the layers of nets compute in it during training (autocast); weights, losses and tests in float32"""
    augment: tuple[Augmentation, ...] = ()
    """random changes of training images: "crop" (shifted by up to an eighth of the side), "flip" (mirrored), or both"""

    @property
    def work(self) -> float:
        """The planned work of a client per round: steps, or without them epochs."""
        return self.steps or self.epochs

    def with_work(self, amount: float) -> TrainSection:
        """This section for a client that does another amount of work, in the unit of `work`."""
        if self.steps and amount:
            return replace(self, steps=int(amount))
        return replace(self, steps=0, epochs=amount)

    def batches_per_epoch(self, num_examples: int, has_batch_norm: bool) -> int:
        """The number of batches of an epoch. Batch norm has no statistics of one example, so it skips such a batch."""
        full, rest = divmod(num_examples, self.batch)
        skipped = (self.drop_last and full > 0) or (has_batch_norm and rest == 1)
        return full + (rest > 0 and not skipped)

    def local_epochs(self, num_examples: int, has_batch_norm: bool) -> float:
        """The epochs of a client with this number of examples. Steps become the epochs that have as many batches."""
        if not self.steps:
            return self.epochs
        batches = self.batches_per_epoch(num_examples, has_batch_norm)
        return self.steps / batches if batches else 0

    def rate(self, round: int, step: int = 0, steps: int = 1) -> float:
        """The learning rate of a step of a client that takes `steps` steps in this round."""
        if self.schedule_by == "round":
            step, steps = 0, 1
        rise = min(1.0, (round + (step + 1) / steps) / self.warmup) if self.warmup else 1.0
        return self.lr * rise * self._factor(round + step / steps - self.warmup, 1 / steps)

    def _factor(self, elapsed: float, unit: float) -> float:
        """The schedule's factor after this number of rounds, if the rate changes once per `unit` of a round."""
        elapsed = max(0.0, elapsed)
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "exponential":
            return float(self.decay**elapsed)
        rounds = self.decay_rounds - self.warmup
        elapsed = min(elapsed, max(0.0, rounds - unit))
        if self.schedule == "polynomial":
            return float((1 - elapsed / rounds) ** self.decay_power)
        return 0.5 * (1 + math.cos(math.pi * elapsed / rounds))

    def without_schedule(self, epochs: int | float) -> TrainSection:
        """Training for this number of epochs with the learning rate `lr` throughout."""
        usual = TrainSection()
        keys = ("steps", "schedule", "decay", "decay_rounds", "decay_power", "warmup", "schedule_by")
        return replace(self, epochs=epochs, **{key: getattr(usual, key) for key in keys})

    def mean_rate(self, round: int, steps: int) -> float:
        """The mean learning rate of a client's steps in a round. By round, it is the rate of each of them."""
        if self.schedule_by == "round" or not steps:
            return self.rate(round)
        return sum(self.rate(round, step, steps) for step in range(steps)) / steps

    @property
    def rate_changes(self) -> bool:
        """Whether the learning rate changes during a run."""
        return self.schedule in ("polynomial", "cosine") or self.decay < 1 or self.warmup > 0

    def contradictions(self) -> list[str]:
        """A sentence per key that does not fit the others."""
        with_end, problems = self.schedule in ("polynomial", "cosine"), []
        if self.steps and self.epochs != 1:
            problems.append(
                f"train.epochs: got {self.epochs:g}, but train.steps = {self.steps} says how long clients train. Leave "
                "one of them out."
            )
        if self.decay < 1 and self.schedule != "exponential":
            problems.append(
                f'train.decay: got {self.decay:g}, but train.schedule = "{self.schedule}" does not use it. Leave it '
                'out, or set train.schedule = "exponential".'
            )
        if self.decay_rounds and not with_end:
            problems.append(
                f'train.decay_rounds: got {self.decay_rounds}, but train.schedule = "{self.schedule}" does not use '
                'it. Leave it out, or set train.schedule = "polynomial" or "cosine".'
            )
        if self.decay_power != 0.9 and self.schedule != "polynomial":
            problems.append(
                f'train.decay_power: got {self.decay_power:g}, but train.schedule = "{self.schedule}" does not use '
                'it. Leave it out, or set train.schedule = "polynomial".'
            )
        if with_end and not self.decay_rounds:
            problems.append(
                f'train.decay_rounds: missing. train.schedule = "{self.schedule}" needs the number of rounds in which '
                "the learning rate falls, usually that of run.rounds."
            )
        elif with_end and self.warmup >= self.decay_rounds:
            problems.append(
                f"train.warmup: got {self.warmup:g}; must be below train.decay_rounds ({self.decay_rounds}), which "
                "includes the rounds of the warm-up."
            )
        if self.schedule_by == "round" and self.warmup % 1:
            problems.append(
                f"train.warmup: got {self.warmup:g}; must be a whole number of rounds, unless train.schedule_by = "
                '"step".'
            )
        return problems


_CACHED = 1 << 16
"""The number of values of a tensor that fit into a processor's cache together with their gradient and velocity."""


def separate_parts(tensors: Params, prefixes: Sequence[str]) -> list[Params]:
    """The tensors whose names begin with each of these prefixes, and the rest; without parts that would be empty."""
    parts = [selected(tensors, prefix) for prefix in prefixes]
    rest = {name: value for name, value in tensors.items() if not any(name in part for part in parts)}
    return [part for part in (*parts, rest) if part]


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
            "count": {"": next(iter(params.values())).new_zeros((), dtype=torch.float32)},
        }

    def step(self, params: Params, grads: Params, state: dict[str, Params]) -> tuple[Params, dict[str, Params]]:
        """One step: clip the gradient, apply weight decay, then SGD with momentum or Adam."""
        training = self.training
        if training.clip:
            grads = self._clip(grads)
        if training.weight_decay and training.optimiser == "adamw":
            params = {name: value * (1 - self.lr * training.weight_decay) for name, value in params.items()}
        elif training.weight_decay:
            grads = {name: grad + training.weight_decay * params[name] for name, grad in grads.items()}
        update = self._sgd if training.optimiser == "sgd" else self._adam
        return update(params, grads, state)

    @torch.no_grad()
    def update(self, params: Params, grads: Params, state: dict[str, Params]) -> dict[str, Params]:
        """One step that changes the parameters in place, with the results of `step`; returns the new state.

        For SGD the state changes in place, too, and large tensors in parts that fit into the processor's cache.
        """
        training = self.training
        if training.optimiser != "sgd":
            new_params, state = self.step(params, grads, state)
            for name, value in new_params.items():
                params[name].copy_(value)
            return state
        grads = self._clip(grads) if training.clip else grads
        if training.weight_decay:
            grads = {name: grad + training.weight_decay * params[name] for name, grad in grads.items()}
        small: list[tuple[Tensor, Tensor, Tensor]] = []
        for name, value in params.items():
            three = (value, state["velocity"][name], grads[name])
            if value.numel() <= _CACHED or not all(tensor.is_contiguous() for tensor in three):
                small.append(three)
                continue
            for part in zip(*(tensor.view(-1).split(_CACHED) for tensor in three), strict=True):
                self._update_together([part])
        if small:
            self._update_together(small)
        return state

    def _update_together(self, tensors: list[Any]) -> None:
        """One step of SGD for several (parameter, velocity, gradient)."""
        values, velocities, grads = zip(*tensors, strict=True)
        if self.training.momentum:
            torch._foreach_mul_(velocities, self.training.momentum)
            torch._foreach_add_(velocities, grads)
        else:
            velocities = grads
        torch._foreach_sub_(values, torch._foreach_mul(velocities, self.lr))

    def _clip(self, grads: Params) -> Params:
        """The gradients, each part of `clipped_separately` and the rest scaled down to a norm of at most `clip`."""
        clipped = dict(grads)
        for part in separate_parts(grads, self.clipped_separately):
            norm = torch.stack([grad.square().sum() for grad in part.values()]).sum().sqrt()
            factor = (self.training.clip / (norm + 1e-6)).clamp(max=1)
            clipped |= {name: grad * factor for name, grad in part.items()}
        return clipped

    def _sgd(self, params: Params, grads: Params, state: dict[str, Params]) -> tuple[Params, dict[str, Params]]:
        velocity, momentum = grads, self.training.momentum
        if momentum:
            velocity = {name: momentum * state["velocity"][name] + grad for name, grad in grads.items()}
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
