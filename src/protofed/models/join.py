"""A newcomer: a client that joins after a run has finished.

As FedProto's paper proposes for new clients, it downloads the global prototypes of its classes and fine-tunes its own
model with the local objective, Eq. (7). This works with every method: the newcomer runs its hooks like any client. If
the loss contrasts classes, the newcomer downloads the prototypes of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from protofed.core import Client
from protofed.data.dataset import read_npz
from protofed.engines.scoring import tally
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.federation import Federation
from protofed.experiment.model import Model
from protofed.experiment.sections import NetChoice
from protofed.messages import message_size
from protofed.methods.local import Local
from protofed.nets import make_net
from protofed.nets.own import OwnNet
from protofed.prototypes import Prototypes
from protofed.training import take_part, train_client

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from protofed.core import Net, Params, Scores
    from protofed.experiment.results import Result


@dataclass(frozen=True)
class Newcomer:
    """The result of joining, compared with training alone from the newcomer's own layers for the same steps."""

    model: Model
    classes: list[str | int]  # the classes of its training examples
    train: int  # training examples
    test: int  # test examples
    steps: int  # optimiser steps of its training with the run
    spent: int  # epochs of all phases, and of training alone
    given: list[str]  # the tensors that started from `layers` and not at random
    shared: bool  # whether it started from weights that the run shares instead
    downloaded: int  # numbers that the server sent
    accuracy: dict[str, float]  # after joining, by way of predicting
    alone: float  # accuracy by head after training alone

    def figures(self) -> dict[str, Any]:
        """Everything except the model."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}

    def text(self) -> str:
        """The figures in sentences."""
        ways = {"head": "by head", "prototype": "by the nearest prototype"}
        accuracies = [f"{100 * share:.1f} % {ways[way]}" for way, share in self.accuracy.items() if way in ways]
        gain = 100 * (self.accuracy["head"] - self.alone)
        if self.shared:
            start = "the server's weights"
        elif self.given:
            start = f"the given layers ({len(self.given)} of its {len(self.model.net.shapes)} tensors)"
        else:
            start = "random weights"
        return (
            f"The newcomer has {self.train:,} training and {self.test:,} test examples of the classes "
            f"{', '.join(map(str, self.classes))}. Its net, {self.model.net.name}, started from {start}.\n"
            f"It downloaded {self.downloaded:,} numbers and trained for {self.steps:,} steps. "
            f"Test accuracy: {', '.join(accuracies)}.\n"
            "Trained alone, from its own layers and for the same number of steps: "
            f"{100 * self.alone:.1f} % by head. Difference made by joining: {gain:+.1f} points."
        )


def join_run(
    result: Result,
    data: tuple[Any, Any],
    test: tuple[Any, Any] | None = None,
    *,
    net: Any = None,
    layers: Params | None = None,
    epochs: int = 10,
    seed: int | None = None,
) -> Newcomer:
    """Let a client with the data (x, y) join a finished run and train for a number of epochs.

    Without a `test` pair a fifth of each class is held out. `net` is in one of the forms of `protofed.nets.own`, or a
    choice from an experiment file; None: the net of the run's first client with inputs of the same shape. The client
    starts from the `layers`, parameters by name, that fit its net; its other parameters are random. `seed` None: the
    seed of the run.
    """
    config, members, server, _ = result.state
    method, number = config.method, len(members)
    newcomer = Federation([data], None if test is None else [test], members.labels, name="newcomer")
    model_client = _client_with_same_inputs(members.train, newcomer.train[0]) or 0
    examples, test_examples = _normalised(members.train, model_client, newcomer.train[0], newcomer.test[0])
    if not len(test_examples):
        raise UserError(
            "The newcomer has no test examples. Give a test set, or at least five training examples of a class."
        )
    if (examples.mask is None) == bool(members.nets[model_client].grid):
        wanted = "a mask for every image" if examples.mask is None else "one label per input"
        raise UserError(f"The nets of the run need {wanted}. Give the newcomer's labels in this form.")
    client_net = _make_net(net, members.nets[model_client], examples, len(members.labels))
    client_net = client_net.starting_from(layers) if layers else client_net
    replace(members, nets=(*members.nets, client_net)).check_nets(config.method_name, method)
    seed = config.run.seed if seed is None else seed
    client = Client(client_net, seed, config.run.rounds, number, number + 1, examples)
    has_class = examples.class_counts(len(members.labels)) > 0
    message = method.broadcast(server, number)
    down = message if method.compares_classes else _without_other_classes(message, has_class)
    training = replace(config.train, epochs=epochs)
    with one_thread():
        trained, _ = take_part(method, client, method.join(client), down, training)
        kept, params, tuning = method.keep(trained), trained.params, method.tune(epochs)
        if tuning:
            params = train_client(
                method, client, examples, params, method.prepare(down), kept, tuning, training, "tune"
            ).params
        all_epochs = sum(phase.epochs for phase in (*method.phases(epochs), *tuning))
        local = Local(initial_weights=getattr(method, "initial_weights", "own"))
        alone, _ = take_part(local, client, local.join(client), (), replace(training, epochs=all_epochs))

    def answer(x: Tensor) -> Scores:
        return client_net.at_image_size(method.predict(client_net, params, x, down, kept), len(x))

    model = Model(number, client_net, method.exportable_params(params, kept), answer, examples, members.labels)
    num_correct = tally(answer, test_examples)
    num_correct_alone = tally(lambda x: {"head": client_net(alone.params, x)[1]}, test_examples)["head"]
    return Newcomer(
        model=replace(model, distance_limits=model.training_distance_limits()),
        classes=[members.labels[label] for label in has_class.nonzero().flatten().tolist()],
        train=len(examples),
        test=len(test_examples),
        steps=trained.steps,
        spent=all_epochs,
        given=sorted(client_net.initial_params),
        shared=any(
            not torch.equal(value, alone.start[name])
            for name, value in method.exportable_params(trained.start, trained.kept).items()
            if name in alone.start
        ),
        downloaded=message_size(down).params,
        accuracy={way: count / test_examples.num_labels for way, count in num_correct.items()},
        alone=num_correct_alone / test_examples.num_labels,
    )


def read_newcomer(path: Path) -> tuple[tuple[Any, Any], tuple[Any, Any] | None]:
    """The newcomer's (x, y) from an .npz file, and its test set if the file has one."""
    if not path.exists():
        raise UserError(f"There is no file {path}. --data must be an .npz file with x and y.")
    arrays = read_npz(path)
    y = "mask" if "mask" in arrays else "y"
    for key in ("x", y, *(("x_test", f"{y}_test") if arrays.keys() & {"x_test", f"{y}_test"} else ())):
        if key not in arrays:
            raise UserError(f"{path} has no array {key}; it has {', '.join(arrays)}. Add it.")
    return (arrays["x"], arrays[y]), (arrays["x_test"], arrays[f"{y}_test"]) if "x_test" in arrays else None


def _client_with_same_inputs(others: tuple[Examples, ...], newcomer: Examples) -> int | None:
    """The first client with inputs of the newcomer's shape, ignoring dimensions of size 1; None if there is none."""

    def sides(examples: Examples) -> tuple[int, ...]:
        return tuple(side for side in examples.shape if side != 1)

    return next((client for client, other in enumerate(others) if sides(other) == sides(newcomer)), None)


def _normalised(
    others: tuple[Examples, ...], client: int, train: Examples, test: Examples
) -> tuple[Examples, Examples]:
    """The newcomer's examples, normalised as those of `client`, or by their own statistics if every client does so."""
    train, test = _shaped_like(others[client], train), _shaped_like(others[client], test)
    if any(other.shape == train.shape and other.input != others[client].input for other in others):
        train = train.by_own_statistics()
        test = test.normalised_like(train)
    return train, test


def _shaped_like(other: Examples, newcomer: Examples) -> Examples:
    """The newcomer's examples with the shape and the normalisation of another client's examples.

    If the other client does not normalise its inputs, another shape is accepted and kept.
    """
    if other.shape != newcomer.shape and (other.scale, other.mean, other.std) == (1.0, 0.0, 1.0):
        return newcomer
    try:
        x = other.checked_inputs(newcomer.x)
        return replace(other, x=x, y=newcomer.y, index=newcomer.index, mask=newcomer.mask)
    except UserError as problem:
        raise UserError(f"The newcomer's data do not fit the data of the run: {problem}") from problem


def _make_net(spec: Any, default: Net, examples: Examples, classes: int) -> Net:
    """The newcomer's net from what the caller passed as `net`."""
    own_classes = tuple(examples.class_counts(classes).nonzero().flatten().tolist())
    if isinstance(spec, NetChoice):
        return make_net(spec.name, spec.design, examples.shape, classes)
    if spec is not None:
        return OwnNet.net(spec, "net", examples.shape, classes, own_classes)
    if default.outputs and default.outputs != own_classes:
        raise UserError(
            f"The run's net {default.name} has outputs for the classes of its client only, and the newcomer has other "
            "classes. Give the newcomer a net."
        )
    return default


def _without_other_classes(message: Any, has_class: Tensor) -> Any:
    """A message without the prototypes of the classes that the client does not have; `has_class`: [classes]."""
    if isinstance(message, Prototypes):
        return message.of_classes(has_class)
    if isinstance(message, dict):
        return {key: _without_other_classes(part, has_class) for key, part in message.items()}
    if hasattr(message, "_replace"):
        parts = {key: _without_other_classes(part, has_class) for key, part in message._asdict().items()}
        return message._replace(**parts)
    return message
