"""The training of a stack: several clients with equal nets take their steps together.

Parameters, messages and batches of the clients are stacked along a new first dimension, and the method's `loss` is
mapped over it by `vmap`. The result per client is that of `training.train_client`, up to rounding. Short batches are
padded with examples of weight 0. Clients that finish early store their results; the stack becomes smaller when enough
of them have finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_map, tree_unflatten

from protofed import draws
from protofed.batch import Batch, labels_and_weights
from protofed.contract import require_loss
from protofed.devices import moved
from protofed.engines.layout import ClientsAsChannels, clients_last
from protofed.engines.loop import Step
from protofed.engines.trees import StackedTrees, tree_shapes
from protofed.examples import augmenter
from protofed.training import Optimiser, Outcome, batch_schedule, in_training, num_steps, trainable_names

if TYPE_CHECKING:
    from protofed.core import AnyMethod, Client, Net, Params, Phase
    from protofed.training import TrainSection

MakeStep = Callable[[Any, Callable[[], Step]], Step]
"""Returns the step for a key: a stored one, or a new one built by the function."""
_PURPOSE = "batches"  # of the draws, as in `training.train_client`


class Trainee(NamedTuple):
    """A client of a stack and what it trains with."""

    client: Client
    start: Params  # the parameters that it starts from
    down: Any  # what `Method.prepare` returned
    kept: Any
    phases: Sequence[Phase]


def train_together(
    method: AnyMethod, trainees: Sequence[Trainee], training: TrainSection, make_step: MakeStep
) -> list[Outcome]:
    """Train clients that have the same net and equal shapes of what they receive and keep.

    Their phases must be equal; only the numbers of epochs may differ.
    """
    return [outcome.on_cpu() for outcome in outcomes_on_device(method, trainees, training, make_step)]


def outcomes_on_device(
    method: AnyMethod, trainees: Sequence[Trainee], training: TrainSection, make_step: MakeStep
) -> list[Outcome]:
    """The outcomes of `train_together` with their tensors on the device of the steps. No step reads a value back."""
    net, start = trainees[0].client.net, trainees[0].start
    device = trainees[0].client.data.for_steps.device
    schedules = [
        batch_schedule(trainee.client, trainee.client.num_examples, trainee.phases, training, _PURPOSE)
        for trainee in trainees
    ]
    outcomes = [
        Outcome({name: value.to(device, copy=True) for name, value in trainee.start.items()}) for trainee in trainees
    ]
    with in_training(net, training.precision):
        for number, phase in enumerate(trainees[0].phases):
            names = trainable_names(net, start, phase)
            plans = [
                ClientPlan(trainee.client, outcome, schedule[number], num_steps(schedule))
                for trainee, outcome, schedule in zip(trainees, outcomes, schedules, strict=True)
            ]
            order = sorted(range(len(plans)), key=lambda position: -len(plans[position].batches))
            down = StackedTrees([trainees[position].down for position in order]).on(device)
            kept = StackedTrees([trainees[position].kept for position in order]).on(device)
            step = make_step(
                (id(net), phase.clipped_separately, down.key, kept.key, tree_shapes(start)),
                partial(_mapped_step, method, net, phase, training, down, kept),
            )
            StackedPhase([plans[position] for position in order], down, kept, names, training, step).run()
    return outcomes


def _mapped_step(
    method: AnyMethod, net: Net, phase: Phase, training: TrainSection, downs: StackedTrees, kepts: StackedTrees
) -> Step:
    """One step of all clients of a stack: new parameters, new state of the optimiser, (terms, observed).

    The gradient is that of the sum of the clients' losses: a client's parameters occur in no other client's loss.
    """

    def client_loss(trainable: Params, frozen: Params, batch: Batch, key: Tensor, down: Any, kept: Any) -> Any:
        with draws.DerivedDropout(key), ClientsAsChannels():
            trees = tree_unflatten(down, downs.spec), tree_unflatten(kept, kepts.spec)
            loss = require_loss(method, method.loss(net, frozen | trainable, batch, *trees))
        return loss.total, (loss.terms, loss.observed)

    def client_update(trainable: Params, grads: Params, state: Any, lr: Tensor) -> Any:
        return Optimiser(training, lr, phase.clipped_separately).step(trainable, grads, state)

    losses = vmap(client_loss, in_dims=(0, 0, 0, 0, downs.dims, kepts.dims))
    updates = vmap(client_update, in_dims=(0, 0, 0, 0 if training.schedule_by == "step" else None))

    def step(
        trainable: Params, state: Any, frozen: Params, batch: Batch, key: Tensor, down: Any, kept: Any, lr: Tensor
    ) -> Any:
        leaves = {name: value.detach().requires_grad_() for name, value in trainable.items()}
        with torch.enable_grad():
            totals, report = losses(leaves, frozen, batch, key, down, kept)
        grads = torch.autograd.grad(totals.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        new_params, new_state = updates(trainable, dict(zip(leaves, grads, strict=True)), state, lr)
        return new_params, new_state, tree_map(Tensor.detach, report)

    return step


class ClientPlan:
    """The steps of one client in one phase; `epochs` has per epoch the batches, as positions of examples.

    `round_steps`: the number of its steps in all phases of the round.
    """

    def __init__(self, client: Client, outcome: Outcome, epochs: list[list[Tensor]], round_steps: int) -> None:
        self.client, self.outcome, self.epochs, self.round_steps = client, outcome, epochs, round_steps
        self.batches = [positions for batches in epochs for positions in batches]
        """One batch per step."""
        self.last_epoch = len(self.batches) - (len(epochs[-1]) if epochs else 0)
        """The step that begins the last epoch."""
        self.earlier_steps = outcome.steps
        """The number of steps in earlier phases."""

    def key(self, purpose: str, step: int) -> int:
        """The key of the draws of a step, as in `training.train_client`."""
        where = self.client.round, self.client.client, self.earlier_steps + step
        return draws.derive(self.client.seed, _PURPOSE, purpose, *where)

    def rate(self, training: TrainSection, step: int) -> float:
        """The learning rate of a step."""
        return training.rate(self.client.round, self.earlier_steps + step, self.round_steps)


class StepInputs(NamedTuple):
    """The examples and keys of all steps.

    A short batch is padded with its own first example, of weight 0. Another client's example could be NaN.
    """

    rows: Tensor  # [steps, clients, batch]: rows of the shared array, or positions in the client's examples
    weights: Tensor  # [steps, clients, batch]: 1, or 0 for padding
    sizes: Tensor  # [steps, clients]: the numbers of examples
    keys: Tensor  # [steps, clients]: the keys of dropout
    rates: Tensor  # [steps, clients]: the learning rates


class StackState(NamedTuple):
    """The tensors of the clients in a stack, each [clients, ...]."""

    trainable: Params
    frozen: Params
    optimiser: dict[str, Params]
    terms: dict[str, Tensor]  # the terms of the loss, summed over the examples seen
    observed: tuple[Tensor, ...]  # summed over the steps of the last epoch


class StackedPhase:
    """One phase of a stack. The plans are sorted by their numbers of steps, the longest first."""

    def __init__(
        self,
        plans: Sequence[ClientPlan],
        down: StackedTrees,
        kept: StackedTrees,
        names: list[str],
        training: TrainSection,
        step: Step,
    ) -> None:
        self.plans, self.down, self.kept = plans, down, kept
        self.names, self.training, self.step = names, training, step
        self.steps = [len(plan.batches) for plan in plans]
        first = plans[0].client.data.for_steps
        self.device = first.device
        self.one_array = not training.augment and all(
            plan.client.data.for_steps.x is first.x and plan.client.data.input == first.input for plan in plans
        )
        """True if all clients' examples are in one array and normalised equally: one call takes a batch of all."""

    def run(self) -> None:
        """Take all steps, and add the results to the outcomes of the clients."""
        for plan in self.plans:
            if plan.epochs:
                plan.outcome.observed = ()
        width = sum(steps > 0 for steps in self.steps)  # the number of clients in the tensors
        if not width:
            return
        state, inputs = self._start(width), self._inputs(width)
        down, kept = self.down.first(width), self.kept.first(width)
        by_step = self.training.schedule_by == "step"
        running = width  # the number of clients that have not finished; the values of the others are ignored
        for step in range(self.steps[0]):
            before, running = running, sum(steps > step for steps in self.steps[:running])
            self._store(running, before, state)
            if running <= narrowing_width(width):
                width = running
                state = tree_map(lambda value, width=width: value[:width], state)
                down, kept = self.down.first(width), self.kept.first(width)
            rows, weights, sizes, key, rates = (column[step, :width] for column in inputs)
            lr = rates if by_step else rates[0]
            trainable, optimiser, (terms, observed) = self.step(
                state.trainable, state.optimiser, state.frozen, self._batch(step, rows, weights), key, down, kept, lr
            )
            terms = {name: state.terms.get(name, 0) + value * sizes for name, value in terms.items()}
            if state.observed:
                sums = self._without_earlier_epochs(state.observed, step)
                observed = tuple(a + b for a, b in zip(sums, observed, strict=True))
            state = StackState(trainable, state.frozen, optimiser, terms, observed)
        self._store(0, running, state)

    def _start(self, width: int) -> StackState:
        """The state of the first `width` clients before the first step."""
        outcomes = [plan.outcome for plan in self.plans[:width]]
        params = {name: torch.stack([outcome.params[name] for outcome in outcomes]) for name in outcomes[0].params}
        trainable = {name: params[name] for name in self.names}
        frozen = {name: value for name, value in params.items() if name not in trainable}
        return StackState(trainable, frozen, vmap(Optimiser(self.training, 0.0).start)(trainable), {}, ())

    def _without_earlier_epochs(self, observed: tuple[Tensor, ...], step: int) -> tuple[Tensor, ...]:
        """The observed sums, set to 0 for clients that begin their last epoch: only that epoch is reported."""
        begins = [plan.last_epoch == step for plan in self.plans[: len(observed[0])]]
        if not any(begins):
            return observed
        mask = torch.tensor(begins, device=self.device)
        return tuple(torch.where(mask.reshape(-1, *[1] * (value.dim() - 1)), 0, value) for value in observed)

    def _store(self, first: int, end: int, state: StackState) -> None:
        """Store the results of the clients `first` to `end` - 1, which have finished, in their outcomes."""
        for position in range(first, end):
            batches, outcome = self.plans[position].batches, self.plans[position].outcome
            outcome.params |= {name: value[position].clone() for name, value in state.trainable.items()}
            outcome.steps += len(batches)
            outcome.examples_seen += sum(map(len, batches))
            for name, value in state.terms.items():
                outcome.terms[name] = outcome.terms.get(name, 0) + value[position]
            outcome.observed = tuple(value[position].clone() for value in state.observed)

    def _inputs(self, width: int) -> StepInputs:
        """The examples and keys of the first `width` clients for all steps."""
        size = max(len(positions) for plan in self.plans for positions in plan.batches)
        rows = torch.zeros(self.steps[0], width, size, dtype=torch.long)
        sizes, keys = torch.zeros(self.steps[0], width), torch.zeros(self.steps[0], width, dtype=torch.long)
        rates = torch.zeros(self.steps[0], width)
        for number, plan in enumerate(self.plans[:width]):
            steps = len(plan.batches)
            sizes[:steps, number] = torch.tensor([float(len(positions)) for positions in plan.batches])
            keys[:steps, number] = torch.tensor([plan.key("dropout", step) for step in range(steps)])
            rates[:steps, number] = torch.tensor([plan.rate(self.training, step) for step in range(steps)])
            padded = pad_sequence(plan.batches, batch_first=True, padding_value=-1)
            padded = F.pad(padded, (0, size - padded.shape[1]), value=-1)
            rows[:steps, number] = torch.where(padded < 0, padded[:, :1], padded)
            if self.one_array:
                rows[:, number] = plan.client.data.index[rows[:, number]]
        weights = (torch.arange(size) < sizes.unsqueeze(-1)).float()
        return StepInputs(*moved((rows, weights, sizes, keys, rates), self.device))

    def _batch(self, step: int, rows: Tensor, weights: Tensor) -> Batch:
        """The batches of all clients in a step, each tensor [clients, ...], for rows and weights [clients, batch]."""
        if self.one_array:
            taken = self.plans[0].client.data.for_steps.at_rows(rows.reshape(-1))
            x, y = (part.unflatten(0, rows.shape) for part in taken)
        else:
            parts = []
            for plan, positions in zip(self.plans, rows, strict=False):
                augment = augmenter(self.training.augment, plan.key("augment", step))
                parts.append(plan.client.data.for_steps.take(positions, augment))
            x, y = (torch.stack(part) for part in zip(*parts, strict=True))
        ordered = x if self.plans[0].client.net.channels_first else clients_last(x)
        return Batch(ordered, *labels_and_weights(y, weights))


def narrowing_width(width: int) -> int:
    """The stack of `width` clients becomes smaller once no more than this number are running."""
    return width * 3 // 4 if width > 2 else width - 1
