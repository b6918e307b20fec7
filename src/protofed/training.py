"""The local training of one client: the batch schedule, the phases, and the steps.

Everything here is written for one client. Engines may map `Optimiser.step` and the method's `loss` over many clients,
so both must be pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protofed import draws
from protofed.contract import require_loss
from protofed.core import AnyMethod, Batch, Client, Net, Params, Phase, Site, Trained
from protofed.devices import CPU, moved
from protofed.errors import UserError
from protofed.examples import augmenter
from protofed.net import selected
from protofed.optimiser import Optimiser, TrainSection

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from protofed.devices import Precision
    from protofed.examples import Augmentation, Examples

__all__ = [
    "Bind",
    "Optimiser",
    "Outcome",
    "Taken",
    "TrainSection",
    "as_trained",
    "batch_schedule",
    "in_training",
    "num_steps",
    "outcome_on_device",
    "params_for_testing",
    "take_part",
    "train_client",
    "trainable_names",
]


Bind = Callable[..., Callable[..., Any]]
"""Like `functools.partial`: a function and its first arguments -> a function of the others."""
_MOST_NORMALISED = 1 << 24
"""The largest number of values of a client's examples that are kept normalised during its training (64 MB)."""
_BATCH_ROUNDING = 1e-6
"""More than the rounding error of a number of batches that was divided and multiplied by that of an epoch."""


def batch_schedule(
    site: Site, num_examples: int, phases: Sequence[Phase], training: TrainSection, purpose: str = "batches"
) -> list[list[list[Tensor]]]:
    """Per phase and epoch the batches, as positions of examples. Every epoch is a new permutation.

    A part of an epoch at the end belongs to the epoch before it, so that what is observed in the last one covers all
    examples. If there is none before it, it is an epoch with fewer batches.
    """
    generator = site.generator(purpose)
    if site.net.has_batch_norm and training.batch == 1:
        raise UserError(
            f"train.batch: got 1, but net {site.net.name} has batch norm, which needs at least 2 examples per batch. "
            "Use 2 or more."
        )

    per_epoch = training.batches_per_epoch(num_examples, site.net.has_batch_norm)

    def epoch() -> list[Tensor]:
        if not num_examples:
            return []
        return list(torch.randperm(num_examples, generator=generator).split(training.batch))[:per_epoch]

    def epochs(count: float) -> list[list[Tensor]]:
        part = math.ceil(count % 1 * per_epoch - _BATCH_ROUNDING)  # of an epoch, in batches
        complete = [epoch() for _ in range(int(count) + (part == per_epoch > 0))]
        if not 0 < part < per_epoch:
            return complete
        return [*complete[:-1], [*(complete[-1] if complete else []), *epoch()[:part]]]

    return [epochs(phase.epochs) for phase in phases]


def num_steps(schedule: list[list[list[Tensor]]]) -> int:
    """The number of steps in all phases and epochs of a batch schedule."""
    return sum(len(batches) for epochs in schedule for batches in epochs)


@dataclass
class Outcome:
    """The result of a client's training."""

    params: Params
    steps: int = 0
    examples_seen: float = 0.0
    terms: dict[str, Tensor] = field(default_factory=dict)  # the terms of the loss, summed over the examples seen
    observed: tuple[Tensor, ...] = ()  # `Loss.observed`, summed over the steps of the last epoch

    def on_cpu(self) -> Outcome:
        """The outcome with its tensors on the CPU."""
        return replace(self, **moved({key: getattr(self, key) for key in ("params", "terms", "observed")}, CPU))

    def add_step(self, terms: dict[str, Tensor], observed: tuple[Tensor, ...], num_examples: int) -> None:
        """Add the terms of the loss of one step, and what it observed."""
        self.steps += 1
        self.examples_seen += num_examples
        for name, value in terms.items():
            self.terms[name] = self.terms.get(name, 0) + value * num_examples
        sums = zip(self.observed, observed, strict=True) if self.observed else ()
        self.observed = tuple(a + b for a, b in sums) if self.observed else observed


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
    bind: Bind = partial,
) -> Outcome:
    """Train one client from the parameters `start`. This is the specification that every engine must match.

    `down` is what `Method.prepare` returned. `purpose` separates the draws of training from those of tuning. `bind`
    fixes the first arguments of the function that computes gradients; an engine may record its operations there.
    """
    outcome = outcome_on_device(method, site, data, start, down, kept, phases, training, purpose, bind)
    return outcome.on_cpu()


def outcome_on_device(
    method: AnyMethod,
    site: Site,
    data: Examples,
    start: Params,
    down: Any,
    kept: Any,
    phases: Sequence[Phase],
    training: TrainSection,
    purpose: str = "batches",
    bind: Bind = partial,
) -> Outcome:
    """The outcome of `train_client` with its tensors on the device of the steps. No step reads a value back."""
    data, net = data.for_steps, site.net
    start, down, kept = moved((start, down, kept), data.device)
    outcome = Outcome({name: value.clone() for name, value in start.items()})
    schedule = batch_schedule(site, len(data), phases, training, purpose)
    total, taken = num_steps(schedule), Taken(data, training.augment)
    with in_training(net, training.precision):
        for phase, epochs in zip(phases, schedule, strict=True):
            names = trainable_names(net, start, phase)
            trainable = {name: outcome.params[name] for name in names}
            frozen = {name: value for name, value in outcome.params.items() if name not in trainable}
            gradient = bind(partial(loss_gradient, method, net), trainable, frozen, down, kept)
            state = Optimiser(training, 0.0).start(trainable)
            for batches in epochs:
                outcome.observed = ()  # only the last epoch is reported
                for positions in batches:
                    step = (site.round, site.client, outcome.steps)
                    batch = taken.batch(positions, (site.seed, purpose, "augment", *step))
                    key = draws.derive(site.seed, purpose, "dropout", *step)
                    grads, terms, observed = gradient(*batch, torch.tensor(key, device=data.device))
                    rate = training.rate(site.round, outcome.steps, total)
                    state = Optimiser(training, rate, phase.clipped_separately).update(trainable, grads, state)
                    outcome.add_step(terms, observed, len(positions))
    return outcome


def loss_gradient(
    method: AnyMethod,
    net: Net,
    trainable: Params,
    frozen: Params,
    down: Any,
    kept: Any,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    key: Tensor,
) -> tuple[Params, dict[str, Tensor], tuple[Tensor, ...]]:
    """The gradient of the loss of one batch, its terms, and what it observes. `key` is the key of dropout."""
    leaves = {name: value.detach().requires_grad_() for name, value in trainable.items()}
    with torch.enable_grad(), draws.DerivedDropout(key):
        loss = require_loss(method, method.loss(net, frozen | leaves, Batch(x, y, weight), down, kept))
    grads = torch.autograd.grad(loss.total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    terms = {name: value.detach() for name, value in loss.terms.items()}
    return dict(zip(leaves, grads, strict=True)), terms, tuple(value.detach() for value in loss.observed)


class Taken:
    """The batches of a client. If nothing is augmented, and it is small, its examples are normalised once."""

    def __init__(self, data: Examples, augment: tuple[Augmentation, ...]) -> None:
        self.data, self.augment = data, augment
        self.examples: tuple[Tensor, Tensor] | None = None
        size = len(data) * math.prod(data.shape)
        if not augment and data.mask is None and 0 < size <= _MOST_NORMALISED:
            x, y = data.take(torch.arange(len(data)))
            self.examples = x.permute(0, 2, 3, 1).contiguous() if x.dim() == 4 else x, y

    def batch(self, positions: Tensor, draw: tuple[int | str | None, ...]) -> Batch:
        """The examples at these positions; `draw` names the draw of the augmentation."""
        if self.examples is None:
            augment = augmenter(self.augment, draws.derive(*draw)) if self.augment else None
            return Batch.of(*self.data.take(positions, augment))
        positions = positions.to(self.data.device)
        x, y = (part.index_select(0, positions) for part in self.examples)
        return Batch.of(x.permute(0, 3, 1, 2) if x.dim() == 4 else x, y)


def take_part(
    method: AnyMethod, client: Client, kept: Any, down: Any, training: TrainSection, bind: Bind = partial
) -> tuple[Trained[Any, Any], Outcome]:
    """A client's round up to the end of training: it receives the message, checks the parameters, and trains."""
    start = method.receive(kept, down)
    client.net.check(start)
    phases = method.phases(training.local_epochs(client.num_examples, client.net.has_batch_norm))
    prepared = method.prepare(down)
    outcome = train_client(method, client, client.data, start, prepared, kept, phases, training, bind=bind)
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
        lr=training.mean_rate(client.round, outcome.steps),
        steps=outcome.steps,
        observed=outcome.observed,
    )


def params_for_testing(method: AnyMethod, client: Client, kept: Any, down: Any, training: TrainSection) -> Params:
    """The parameters that a client is tested with: those it would start from, after tuning if the method tunes."""
    phases = method.tune(training.local_epochs(client.num_examples, client.net.has_batch_norm))
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
def in_training(net: Net, precision: Precision = "float32") -> Iterator[None]:
    """Inside this block, dropout and batch norm are in training mode, and draws from global generators are errors.

    The layers of the net compute in `precision`; everything else, such as the loss, computes in float32.
    """
    net.train(True)
    net.precision = precision
    try:
        with draws.no_global_draws(f"net {net.name}"):
            yield
    finally:
        net.train(False)
        net.precision = "float32"
