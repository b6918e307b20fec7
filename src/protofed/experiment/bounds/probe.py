"""One client's round, repeated step by step: gradients along the path, and estimates of the constants of the bounds.

All losses and gradients are those of the method's own `loss`, over all training examples of the client as one batch, in
evaluation mode. Constants are the largest values that were seen along the path, so they are estimates from below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from protofed.core import AnyMethod, Batch, Client, Loss, Net, Params, Phase
from protofed.errors import UserError
from protofed.experiment.members import Members
from protofed.training import TrainSection, batch_schedule, train_client, trainable_names


class Moment(NamedTuple):
    """The state of a run between two rounds."""

    server: Any
    kept: Mapping[int, Any]


@dataclass
class PathRecorder:
    """Stands for a method while a client trains, and stores the parameters that every step starts from."""

    method: AnyMethod
    path: list[Params] = field(default_factory=list)

    def loss(self, net: Net, params: Params, batch: Batch, down: Any, kept: Any) -> Loss:
        self.path.append({name: value.detach().clone() for name, value in params.items()})
        return self.method.loss(net, params, batch, down, kept)


class Objective(NamedTuple):
    """A client's objective as a function of its parameters, with a fixed message from the server."""

    method: AnyMethod
    net: Net
    names: list[str]  # the parameters that train
    batch: Batch  # all training examples
    down: Any  # what `Method.prepare` returned
    kept: Any

    def value(self, params: Params) -> float:
        with torch.no_grad():
            return float(self.method.loss(self.net, params, self.batch, self.down, self.kept).total)

    def gradient(self, params: Params, batch: Batch | None = None) -> Tensor:
        """The gradient with respect to the parameters that train, as one vector; `batch`: on these examples only."""
        trainable = {name: params[name].detach().requires_grad_() for name in self.names}
        with torch.enable_grad():
            loss = self.method.loss(self.net, params | trainable, batch or self.batch, self.down, self.kept).total
        grads = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True, materialize_grads=True)
        return torch.cat([grad.flatten() for grad in grads]).double()


class ClientProbe(NamedTuple):
    """What a client's round shows. `next` are the parameters that its next round would start from."""

    client: int
    num_examples: int
    lr: float
    steps: int
    objective: Objective  # with the message of this round
    next_objective: Objective  # with the message of the next round
    start: Params
    end: Params
    next: Params
    squares: list[float]  # ||∇L||² at the points that the steps start from
    first_gradient: Tensor  # ∇L at the start
    smoothness: float  # the largest ||∇L(w) - ∇L(w')|| / ||w - w'|| of consecutive points
    variance: float  # the largest mean of ||g - ∇L||² over mini-batches, of three points
    mean_norm: float  # the largest mean of ||g|| over mini-batches, of three points
    mean_square: float  # the largest mean of ||g||² over mini-batches, of three points
    lipschitz: float  # the largest ||f(φ; x) - f(φ'; x)|| / ||φ - φ'|| over examples, of three points

    @property
    def squares_sum(self) -> float:
        """S of the bounds."""
        return sum(self.squares)

    def constants(self) -> dict[str, float]:
        """The constants of the bounds that were estimated on this client's round, by their names in the papers."""
        return {
            "S": self.squares_sum,
            "L1": self.smoothness,
            "sigma2": self.variance,
            "L2": self.lipschitz,
            "G": self.mean_norm,
            "lr": self.lr,
        }


def vector(params: Params, names: list[str]) -> Tensor:
    """These parameters as one vector, in double precision."""
    return torch.cat([params[name].flatten() for name in names]).double()


def probe_client(
    method: AnyMethod, client: Client, before: Moment, after: Moment, training: TrainSection
) -> ClientProbe | None:
    """Repeat the round of a client between two moments of a run; None if the client makes no step in it."""
    client = replace(client, data=replace(client.data, copy=None))  # all of it is computed on the CPU
    phases = method.phases(training.local_epochs(client.num_examples, client.net.has_batch_norm))
    if len(phases) != 1:
        raise UserError(f"The bounds are for local training in one phase, but {type(method).__name__} has more.")
    number = cast("int", client.client)
    kept = before.kept[number] if number in before.kept else method.join(replace(client, round=0))
    down, next_down = method.broadcast(before.server, number), method.broadcast(after.server, number)
    start, net = method.receive(kept, down), client.net
    recorder = PathRecorder(method)
    outcome = train_client(
        cast("AnyMethod", recorder), client, client.data, start, method.prepare(down), kept, phases, training
    )
    if not outcome.steps:
        return None
    names = trainable_names(net, start, phases[0])
    examples = Batch.of(*client.data.take(torch.arange(len(client.data))))
    objective = Objective(method, net, names, examples, method.prepare(down), kept)
    path = [*recorder.path, outcome.params]
    gradients = [objective.gradient(params) for params in path]
    points = [vector(params, names) for params in path]
    ratios = [
        float((gradients[at + 1] - gradients[at]).norm() / moved)
        for at in range(len(path) - 1)
        if (moved := (points[at + 1] - points[at]).norm()) > 0
    ]
    three = sorted({0, len(path) // 2, len(path) - 1})
    batches = batch_schedule(client, len(client.data), (Phase(1),), training, "monitor")[0][0]
    variances, norms, squares = [], [], []
    for at in three:
        parts = [objective.gradient(path[at], Batch.of(*client.data.take(batch))) for batch in batches]
        variances.append(_mean([float((part - gradients[at]).square().sum()) for part in parts]))
        norms.append(_mean([float(part.norm()) for part in parts]))
        squares.append(_mean([float(part.square().sum()) for part in parts]))
    next_kept = after.kept[number]
    return ClientProbe(
        number,
        client.num_examples,
        training.mean_rate(client.round, outcome.steps),
        outcome.steps,
        objective,
        objective._replace(down=method.prepare(next_down), kept=next_kept),
        start,
        outcome.params,
        method.receive(next_kept, next_down),
        [float(gradient.square().sum()) for gradient in gradients[:-1]],
        gradients[0],
        max(ratios, default=0.0),
        max(variances),
        max(norms),
        max(squares),
        _embedding_lipschitz(method, client, [path[at] for at in three], names),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _embedding_lipschitz(method: AnyMethod, client: Client, path: list[Params], names: list[str]) -> float:
    """The largest change of an example's embedding between two of these points, per change of the body."""
    body = [name for name in names if name.startswith("body.")]
    if not body:
        return 0.0
    points = [vector(params, body) for params in path]
    embeddings = [client.net.features(params, client.data)[0] for params in path]
    compared = [z if (unit := method.compared_embeddings(z)) is None else unit for z in embeddings]
    return max(
        (
            float((compared[b] - compared[a]).double().norm(dim=-1).max() / moved)
            for a in range(len(path))
            for b in range(a + 1, len(path))
            if (moved := (points[b] - points[a]).norm()) > 0
        ),
        default=0.0,
    )


def probe_round(
    method: AnyMethod,
    members: Members,
    seed: int,
    number: int,
    clients: Mapping[int, float],
    training: TrainSection,
    before: Moment,
    after: Moment,
) -> list[ClientProbe]:
    """Repeat round `number` (the first is 0) of these clients, each with its number of epochs or steps."""
    probes = (
        probe_client(method, members.client(seed, number, client), before, after, training.with_work(amount))
        for client, amount in clients.items()
    )
    return [probe for probe in probes if probe]
