"""Embeddings of a run: its clients' test examples, their class means, and the server's prototypes, in one space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from protofed.core import Net, Params
from protofed.draws import random_state
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.members import Members
from protofed.experiment.results import Result, State
from protofed.pictures.runs import FinishedRun
from protofed.prototypes import Prototypes
from protofed.training import take_part

_MOST_SAMPLES = 1_500
"""So many test embeddings are shown, drawn at random where there are more."""


class Points(NamedTuple):
    """Vectors [n, dim] with the class and the client [n] of each; the server's have client -1."""

    z: np.ndarray
    y: np.ndarray
    client: np.ndarray

    @classmethod
    def of(cls, z: Tensor, y: Tensor, client: int) -> Points:
        return cls(z.numpy(), y.numpy(), np.full(len(y), client))

    @classmethod
    def means(cls, found: Prototypes, client: int) -> Points:
        """The prototypes that there are."""
        label, mode = (found.support > 0).nonzero(as_tuple=True)
        return cls.of(found.mean[label, mode], label, client)

    @classmethod
    def joined(cls, parts: Sequence[Points]) -> Points:
        z, y, client = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(z, y, client)

    def chosen(self, which: np.ndarray) -> Points:
        return Points(self.z[which], self.y[which], self.client[which])


class Embedded(NamedTuple):
    """What a scatter picture shows."""

    title: str
    labels: tuple[str | int, ...]
    samples: Points
    local: Points  # the class means of each client's training examples
    shared: Points  # the server's prototypes


def server_prototypes(result: Result) -> Prototypes | None:
    """The server's prototypes, if they are of the size of the embeddings."""
    found = result.prototypes
    return found if found is not None and found.mean.shape[-1] == result.state.members.nets[0].dim else None


def _comparable(result: Result) -> Prototypes:
    """The server's prototypes where embeddings can be put beside them; protomargin's are scaled, channel by channel."""
    net, found = result.state.members.nets[0], server_prototypes(result)
    if found is None or result.state.config.method.compared_embeddings(found.mean) is None:
        return Prototypes.empty(net.classes, net.dim)
    return found


def _reading(state: State) -> Callable[[Net, Params, Examples], tuple[Tensor, Tensor]]:
    """How the method looks at embeddings: as they are, or (fednh) at length 1."""

    def features(net: Net, params: Params, data: Examples) -> tuple[Tensor, Tensor]:
        z, y = net.features(params, data)
        compared = state.config.method.compared_embeddings(z)
        return z if compared is None else compared, y

    return features


def state_of_run(result: Result, members: Members) -> State:
    """The state that the run ended with, its clients having their data."""
    return result.state._replace(members=members)


def everybody(run: FinishedRun, title: str, most: int = _MOST_SAMPLES) -> Embedded:
    """Each client's model (or the one they share) on its own test set: at most so many examples in all."""
    result, members = run.result(), run.members()
    state = state_of_run(result, members)
    if len({net.dim for net in members.nets}) > 1:
        raise UserError(f"{run.method}: its nets' embeddings have different sizes, so they are in no common space.")
    features, samples, local = _reading(state), [], []
    with one_thread():
        for number in range(len(members)):
            model = state.model(number)
            model.must_be_finite()
            samples.append(Points.of(*features(model.net, model.params, members.test[number]), number))
            own = Prototypes.of(*features(model.net, model.params, members.train[number]), classes=members.classes)
            local.append(Points.means(own, number))
    shown = Points.joined(samples)
    if not len(shown.y):
        raise UserError(f"{run.folder}: its clients have no test examples to embed.")
    which = np.sort(random_state("embeddings", run.config.run.seed).permutation(len(shown.y))[:most])
    shared = Points.means(_comparable(result), -1)
    return Embedded(title, members.labels, shown.chosen(which), Points.joined(local), shared)


def params_of(state: State, number: int) -> Params:
    """A client's model; where all have the same, after one more round of its own."""
    if number not in range(len(state.members)):
        raise UserError(f"There is no client {number}; they are numbered from 0 to {len(state.members) - 1}.")
    method, kept = state.config.method, state.kept[number]
    if kept != ():
        return state.model(number).params
    client = state.members.client(state.config.run.seed, state.config.run.rounds, number)
    down = method.broadcast(state.server, number)
    trained, _ = take_part(method, client, kept, down, state.config.train)
    return method.exportable_params(trained.params, kept)


def each(run: FinishedRun, title: str, clients: Sequence[int], most: int = _MOST_SAMPLES) -> list[Embedded]:
    """Some clients' models on the same test examples, those of the classes that the client holds."""
    result, members = run.result(), run.members()
    state, found = state_of_run(result, members), []
    features, shared = _reading(state), Points.means(_comparable(result), -1)
    with one_thread():
        for number in clients:
            params, net = params_of(state, number), members.nets[number]
            exam = members.balanced[0] if len(members.balanced) == 1 else members.test[number]
            held = members.train[number].labels.bincount(minlength=members.classes) > 0
            places = held[exam.labels].nonzero().squeeze(1).numpy()
            shuffled = random_state("embeddings", run.config.run.seed).permutation(places)
            chosen = np.sort(shuffled[: most // len(clients)])
            samples = Points.of(*features(net, params, exam.subset(chosen)), number)
            own = Prototypes.of(*features(net, params, members.train[number]), classes=members.classes)
            seen = shared.chosen(np.isin(shared.y, held.nonzero().squeeze(1).numpy()))
            told = f"{title}, client {number}"
            found.append(Embedded(told, members.labels, samples, Points.means(own, number), seen))
    return found
