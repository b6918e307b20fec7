"""Embeddings of a run in one space: its clients' test examples, their class means, and the server's prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from protofed.core import AnyMethod, Net, Params
from protofed.draws import random_state
from protofed.engines.threads import one_thread
from protofed.errors import UserError, did_you_mean
from protofed.examples import Examples
from protofed.experiment.results import Result, State
from protofed.experiment.stored import StoredRun
from protofed.measures.question import state_with_data
from protofed.prototypes import Prototypes
from protofed.training import take_part

_MAX_SAMPLES = 1_500
"""Largest number of test embeddings in a picture. If there are more, this many are drawn at random."""


class Points(NamedTuple):
    """Vectors [n, dim] with their classes [n] and clients [n]; -1 is the server."""

    z: np.ndarray
    y: np.ndarray
    client: np.ndarray

    @classmethod
    def of(cls, z: Tensor, y: Tensor, client: int) -> Points:
        return cls(z.numpy(), y.numpy(), np.full(len(y), client))

    @classmethod
    def from_prototypes(cls, prototypes: Prototypes, client: int) -> Points:
        """The prototypes with a support above 0."""
        label, mode = (prototypes.support > 0).nonzero(as_tuple=True)
        return cls.of(prototypes.mean[label, mode], label, client)

    @classmethod
    def concatenate(cls, parts: Sequence[Points]) -> Points:
        z, y, client = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(z, y, client)

    def subset(self, rows: np.ndarray) -> Points:
        """The points at these positions, or where this mask is true."""
        return Points(self.z[rows], self.y[rows], self.client[rows])


class Embedded(NamedTuple):
    """The content of one panel of a scatter picture."""

    title: str
    labels: tuple[str | int, ...]
    samples: Points  # test examples
    local: Points  # the class means of each client's training examples
    shared: Points  # the server's prototypes
    dots: str = "test examples"  # what the samples are, for the legend


def server_prototypes(result: Result) -> Prototypes | None:
    """The server's prototypes; None if it has none, or if their size is not that of the embeddings."""
    prototypes, dim = result.prototypes, result.state.members.nets[0].dim
    return prototypes if prototypes is not None and prototypes.mean.shape[-1] == dim else None


def _shared_points(result: Result) -> Points:
    """The server's prototypes; none if embeddings cannot be compared with them (protomargin scales each channel)."""
    net, prototypes = result.state.members.nets[0], server_prototypes(result)
    if prototypes is None or result.state.config.method.compared_embeddings(prototypes.mean) is None:
        prototypes = Prototypes.empty(net.classes, net.dim)
    return Points.from_prototypes(prototypes, -1)


def _compared_features(method: AnyMethod, net: Net, params: Params, data: Examples) -> tuple[Tensor, Tensor]:
    """Embeddings [n, dim] as the method compares them (fednh scales them to length 1), and labels [n]."""
    z, y = net.features(params, data)
    compared = method.compared_embeddings(z)
    return z if compared is None else compared, y


def embed_all_clients(run: StoredRun, title: str, limit: int = _MAX_SAMPLES) -> Embedded:
    """Every client's test examples, embedded by its own model or the shared one; at most `limit` examples in all."""
    result = run.result()
    state = state_with_data(result)
    method, members = state.config.method, state.members
    if len({net.dim for net in members.nets}) > 1:
        raise UserError(
            f"{run.folder}: its nets have embeddings of different sizes, which cannot be drawn in one space. "
            "Draw a run whose nets have the same net.dim."
        )
    samples, local = [], []
    with one_thread():
        for number in range(len(members)):
            model = state.model(number)
            model.must_be_finite()
            z, y = _compared_features(method, model.net, model.params, members.test[number])
            samples.append(Points.of(z, y, number))
            z, y = _compared_features(method, model.net, model.params, members.train[number])
            local.append(Points.from_prototypes(Prototypes.of(z, y, classes=members.classes), number))
    every, means = Points.concatenate(samples), Points.concatenate(local)
    dots = Embedded._field_defaults["dots"]
    if members.nets[0].grid:  # of pixels; as in prototype-guided FL's Fig. S3, without class 0, the background
        every, means = (points.subset(points.y != 0) for points in (every, means))
        dots = "pixels of test images without the background"
    if not len(every.y):
        raise UserError(f"{run.folder}: its clients have no test examples to embed.")
    rows = np.sort(random_state("embeddings", run.seed).permutation(len(every.y))[:limit])
    return Embedded(title, members.labels, every.subset(rows), means, _shared_points(result), dots)


def client_params(state: State, number: int) -> Params:
    """The parameters of a client's model; if all clients share one, after one more round of local training."""
    if number not in range(len(state.members)):
        raise UserError(f"There is no client {number}; clients are numbered from 0 to {len(state.members) - 1}.")
    method, kept = state.config.method, state.kept[number]
    if kept != ():
        return state.model(number).params
    client = state.members.client(state.config.run.seed, state.config.run.rounds, number)
    down = method.broadcast(state.server, number)
    trained, _ = take_part(method, client, kept, down, state.config.train)
    return method.exportable_params(trained.params, kept)


def class_positions(labels: Sequence[str | int], names: Sequence[str]) -> list[int]:
    """The numbers of the classes with these names; an error if there is no such class."""
    by_name = {str(label): number for number, label in enumerate(labels)}
    for name in names:
        if name not in by_name:
            raise UserError(f'--class: there is no class "{name}". {did_you_mean(name, by_name)}')
    return [by_name[name] for name in names]


def embed_clients(
    run: StoredRun, title: str, clients: Sequence[int], classes: Sequence[str] = (), limit: int = _MAX_SAMPLES
) -> list[Embedded]:
    """A panel per client: its model's embeddings of the same test examples, of these classes or else of its own."""
    result = run.result()
    state, shared = state_with_data(result), _shared_points(result)
    method, members, panels = state.config.method, state.members, []
    if members.nets[0].grid:
        raise UserError(
            f"{run.folder}: its net labels pixels; --what embeddings draws inputs with one label. Use tsne."
        )
    chosen_classes = class_positions(members.labels, classes)
    with one_thread():
        for number in clients:
            params, net = client_params(state, number), members.nets[number]
            test = members.balanced[0] if len(members.balanced) == 1 else members.test[number]
            shown = chosen_classes or members.train[number].labels.unique().tolist()
            positions = np.flatnonzero(np.isin(test.labels.numpy(), shown))
            shuffled = random_state("embeddings", run.seed).permutation(positions)
            chosen = np.sort(shuffled[: limit // len(clients)])
            samples = Points.of(*_compared_features(method, net, params, test.subset(chosen)), number)
            z, y = _compared_features(method, net, params, members.train[number])
            means = Points.from_prototypes(Prototypes.of(z, y, classes=members.classes), number)
            local, of_server = (points.subset(np.isin(points.y, shown)) for points in (means, shared))
            panels.append(
                Embedded(f"{title}, {members.client_name(number)}", members.labels, samples, local, of_server)
            )
    return panels
