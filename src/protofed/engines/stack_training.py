"""Many clients of one net as one: their parameters, messages and batches stacked, the method's `loss` mapped over them.

What `local.train` does for one client, step by step, is done here for a stack of them. A short batch is filled up with
examples of weight 0; what a client has when it finishes is put aside, and every now and then the stack gets smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_flatten, tree_unflatten

from protofed import draws
from protofed.core import Batch
from protofed.engines.layout import ClientsAsChannels, clients_last
from protofed.examples import changer
from protofed.training import Optimiser, Outcome, batch_schedule, in_training, trainable_names

if TYPE_CHECKING:
    from protofed.core import AnyMethod, Client, Net, Params, Phase
    from protofed.training import TrainSection

Step = Callable[..., Any]
MakeStep = Callable[[Any, Callable[[], Step]], Step]
"""Gives the step for a key: a new one by the function, or one that it kept."""


class StackedTrees:
    """Trees of tensors of several clients: one and the same tree is shared, others are stacked leaf by leaf."""

    def __init__(self, trees: Sequence[Any]) -> None:
        leaves, specs = zip(*(tree_flatten(_with_sorted_names(tree)) for tree in trees), strict=True)
        self.spec = specs[0]
        columns = list(zip(*leaves, strict=True))
        one = all(tree is trees[0] for tree in trees)  # of the whole tree: single tensors lose that on a wire
        self.dims = [None if one else 0 for _ in columns]
        self.leaves = [
            column[0] if dim is None else torch.stack(column) for column, dim in zip(columns, self.dims, strict=True)
        ]

    @property
    def key(self) -> tuple[Any, ...]:
        """What a mapped function depends on."""
        return (
            str(self.spec),
            tuple(self.dims),
            *(
                (tuple(leaf.shape[(dim is not None) :]), leaf.dtype)
                for leaf, dim in zip(self.leaves, self.dims, strict=True)
            ),
        )

    def first(self, count: int) -> list[Tensor]:
        """The leaves of the first so many clients."""
        return [leaf if dim is None else leaf[:count] for leaf, dim in zip(self.leaves, self.dims, strict=True)]


def _with_sorted_names(tree: Any) -> Any:
    """A tree with the names of its dicts sorted: those that come from a wire have another order."""
    if isinstance(tree, dict):
        return {key: _with_sorted_names(tree[key]) for key in sorted(tree)}
    if hasattr(tree, "_replace"):
        return tree._replace(**{key: _with_sorted_names(part) for key, part in tree._asdict().items()})
    return tree


def tree_shapes(tree: Any) -> tuple[Any, ...]:
    """What must be equal for trees to be stacked."""
    leaves, spec = tree_flatten(_with_sorted_names(tree))
    return (str(spec), *((tuple(leaf.shape), leaf.dtype) for leaf in leaves))


def train_together(
    method: AnyMethod,
    clients: Sequence[Client],
    starts: Sequence[Params],
    downs: Sequence[Any],
    kepts: Sequence[Any],
    phases: Sequence[Sequence[Phase]],
    training: TrainSection,
    make_step: MakeStep,
    purpose: str = "batches",
) -> list[Outcome]:
    """Train clients with equal nets and messages of equal shapes: for each what `local.train` gives, to rounding.

    Their phases train the same parts, for any numbers of epochs.
    """
    net = clients[0].net
    plans = [
        batch_schedule(client, client.num_examples, own, training, purpose)
        for client, own in zip(clients, phases, strict=True)
    ]
    outcomes = [Outcome({name: value.clone() for name, value in start.items()}) for start in starts]
    with in_training(net):
        for number, phase in enumerate(phases[0]):
            moving = trainable_names(net, starts[0], phase)
            order = sorted(range(len(clients)), key=lambda place: -sum(map(len, plans[place][number])))
            down, kept = (
                StackedTrees([downs[place] for place in order]),
                StackedTrees([kepts[place] for place in order]),
            )
            step = make_step(
                (id(net), down.key, kept.key, tree_shapes(starts[0])),
                partial(_stepper, method, net, training, down, kept),
            )
            Phased(
                [clients[place] for place in order],
                [outcomes[place] for place in order],
                [plans[place][number] for place in order],
                down,
                kept,
                moving,
                training,
                purpose,
                step,
            ).run()
    return outcomes


def _stepper(method: AnyMethod, net: Net, training: TrainSection, downs: StackedTrees, kepts: StackedTrees) -> Step:
    """One step of one client, mapped over clients: new parameters and optimiser state, the loss's terms, observed."""

    def one(
        moving: Params,
        state: Any,
        fixed: Params,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        key: Tensor,
        down: list[Tensor],
        kept: list[Tensor],
        lr: Tensor,
    ) -> Any:
        def total(moving: Params) -> tuple[Tensor, Any]:
            with draws.DerivedDropout(key), ClientsAsChannels():
                loss = method.loss(
                    net,
                    fixed | moving,
                    Batch(x, y, weight),
                    tree_unflatten(down, downs.spec),
                    tree_unflatten(kept, kepts.spec),
                )
            return loss.total, (loss.terms, loss.observed)

        grads, seen = grad(total, has_aux=True)(moving)
        moved, after = Optimiser(training, lr).step(moving, grads, state)
        return moved, after, seen

    return vmap(one, in_dims=(0, 0, 0, 0, 0, 0, 0, downs.dims, kepts.dims, None))


class Phased:
    """One phase of a stack; clients are sorted by their numbers of steps, the longest first."""

    def __init__(
        self,
        clients: Sequence[Client],
        outcomes: Sequence[Outcome],
        plans: Sequence[list[list[Tensor]]],
        down: StackedTrees,
        kept: StackedTrees,
        moving: list[str],
        training: TrainSection,
        purpose: str,
        step: Step,
    ) -> None:
        self.clients, self.outcomes, self.down, self.kept = clients, outcomes, down, kept
        self.moving, self.training, self.purpose, self.step = moving, training, purpose, step
        self.flat = [[positions for epoch in plan for positions in epoch] for plan in plans]
        self.last = [len(flat) - (len(plan[-1]) if plan else 0) for flat, plan in zip(self.flat, plans, strict=True)]
        self.steps = [len(flat) for flat in self.flat]
        self.epochs = [bool(plan) for plan in plans]
        first = clients[0].data
        self.common = not training.augment and all(
            client.data.x is first.x and client.data.input == first.input for client in clients
        )
        """Do all clients' examples lie in one array, normalised alike? Then a batch of all is gathered at once."""

    def run(self) -> None:
        """All steps; then everything goes back to the clients' outcomes."""
        for outcome, epochs in zip(self.outcomes, self.epochs, strict=True):
            outcome.observed = () if epochs else outcome.observed
        begun = [outcome.steps for outcome in self.outcomes]
        width = sum(steps > 0 for steps in self.steps)
        if not width:
            return
        stacked = {
            name: torch.stack([outcome.params[name] for outcome in self.outcomes[:width]])
            for name in self.outcomes[0].params
        }
        moving = {name: stacked[name] for name in self.moving}
        fixed = {name: value for name, value in stacked.items() if name not in moving}
        lr = torch.tensor(self.training.rate(self.clients[0].round))
        state = vmap(Optimiser(self.training, 0.0).start)(moving)
        down, kept = self.down.first(width), self.kept.first(width)
        terms: dict[str, Tensor] = {}
        observed: tuple[Tensor, ...] = ()
        rows, weights, sizes, keys = self.planned(width, begun)
        there = width
        for step in range(self.steps[0]):
            running = sum(steps > step for steps in self.steps[:there])
            if running < there:  # what is computed in the places of those that have finished is not looked at
                self.leave(running, there, moving, terms, observed)
                there = running
            if running <= narrowed(width):
                width = running
                moving, fixed, terms = (
                    {name: value[:width] for name, value in part.items()} for part in (moving, fixed, terms)
                )
                state = {key: {name: value[:width] for name, value in part.items()} for key, part in state.items()}
                observed = tuple(value[:width] for value in observed)
                down, kept = self.down.first(width), self.kept.first(width)
            x, y = self.batch(step, rows[step, :width], begun)
            moving, state, (fresh, seen) = self.step(
                moving, state, fixed, x, y, weights[step, :width], keys[step, :width], down, kept, lr
            )
            for name, value in fresh.items():
                terms[name] = terms.get(name, 0) + value * sizes[step, :width]
            if observed and step in self.last[:width]:  # some begin their last epoch, which alone is reported
                begin = torch.tensor([last == step for last in self.last[:width]])
                observed = tuple(
                    torch.where(begin.reshape(-1, *[1] * (value.dim() - 1)), 0, value) for value in observed
                )
            observed = tuple(a + b for a, b in zip(observed, seen, strict=True)) if observed else seen
        self.leave(0, there, moving, terms, observed)

    def leave(
        self, first: int, width: int, moving: Params, terms: dict[str, Tensor], observed: tuple[Tensor, ...]
    ) -> None:
        """The clients from `first` on have finished: what they have goes into their outcomes."""
        for place in range(first, width):
            outcome = self.outcomes[place]
            outcome.params |= {name: value[place].clone() for name, value in moving.items()}
            outcome.steps += self.steps[place]
            outcome.examples_seen += sum(map(len, self.flat[place]))
            for name, value in terms.items():
                outcome.terms[name] = outcome.terms.get(name, 0) + value[place]
            outcome.observed = tuple(value[place].clone() for value in observed)

    def key(self, what: str, place: int, step: int) -> int:
        """The number that the draws of a client's step come from, as in `local.train`."""
        client = self.clients[place]
        return draws.derive(client.seed, self.purpose, what, client.round, client.client, step)

    def planned(self, width: int, begun: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each step and client: which of its examples and with which weights [steps, width, batch], how many, and
        the key of its dropout [steps, width].
        """
        batch = max(len(positions) for flat in self.flat for positions in flat)
        rows = torch.zeros(self.steps[0], width, batch, dtype=torch.long)
        sizes, keys = torch.zeros(self.steps[0], width), torch.zeros(self.steps[0], width, dtype=torch.long)
        for place, flat in enumerate(self.flat[:width]):
            sizes[: len(flat), place] = torch.tensor([float(len(positions)) for positions in flat])
            keys[: len(flat), place] = torch.tensor(
                [self.key("dropout", place, begun[place] + step) for step in range(len(flat))]
            )
            filled = pad_sequence(flat, batch_first=True, padding_value=-1)
            filled = F.pad(filled, (0, batch - filled.shape[1]), value=-1)
            own = torch.where(filled < 0, filled[:, :1], filled)  # what fills a short batch up is its own, of weight 0
            rows[: len(flat), place] = own
            if self.common:
                rows[:, place] = self.clients[place].data.index[rows[:, place]]
        weights = (torch.arange(batch) < sizes.unsqueeze(-1)).float()
        return rows, weights, sizes, keys

    def batch(self, step: int, rows: Tensor, begun: list[int]) -> tuple[Tensor, Tensor]:
        """Inputs [width, batch, ...] and labels [width, batch] of a step."""
        if self.common:
            data = self.clients[0].data
            x, y = data.normalised(data.x[rows.reshape(-1)]).unflatten(0, rows.shape), data.y[rows]
        else:
            pieces = []
            for place, positions in enumerate(rows):
                change = changer(self.training.augment, self.key("augment", place, begun[place] + step))
                pieces.append(self.clients[place].data.take(positions, change))
            x, y = (torch.stack(parts) for parts in zip(*pieces, strict=True))
        return x if self.clients[0].net.plain else clients_last(x), y


def narrowed(width: int) -> int:
    """When so few of a stack are still running, the others leave: three quarters, and always at the last one."""
    return width * 3 // 4 if width > 2 else width - 1
