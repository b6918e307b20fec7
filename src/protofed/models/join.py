"""A client that joins after a run has ended.

As FedProto's paper proposes for new clients: it takes the global prototypes of the classes it has, and fine-tunes its
own model with the local objective, Eq. (7). Any method will do: the newcomer goes through its hooks like any client.
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
    """What joining gave, beside training alone from its own layers for the same steps."""

    model: Model
    classes: list[str | int]
    train: int
    test: int
    steps: int
    spent: int  # epochs, in all phases
    given: list[str]  # the layers it did not start at random
    shared: bool  # did it start from what the run shares instead?
    downloaded: int  # numbers
    accuracy: dict[str, float]  # by each way to predict
    alone: float  # by head

    def figures(self) -> dict[str, Any]:
        """Everything but the model."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}

    def told(self) -> str:
        """The same for people."""
        ways = {"head": "by head", "prototype": "by the nearest prototype"}
        shown = [f"{100 * share:.1f} % {ways[way]}" for way, share in self.accuracy.items() if way in ways]
        gain = 100 * (self.accuracy["head"] - self.alone)
        mine = (
            f"with {len(self.given)} of its {len(self.model.net.shapes)} tensors given" if self.given else "at random"
        )
        started = "from the server's weights" if self.shared else mine
        return (
            f"The newcomer has {self.train:,} training and {self.test:,} test examples of the classes "
            f"{', '.join(map(str, self.classes))}; net {self.model.net.name}, started {started}.\n"
            f"It downloaded {self.downloaded:,} numbers and made {self.steps:,} steps: {', '.join(shown)}.\n"
            f"Alone, from its own layers and with the same steps: {100 * self.alone:.1f} % by head. "
            f"Joining gave {gain:+.1f} points."
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
    """Let a client with this data (x, y) join a finished run and train for so many epochs.

    Without a `test` pair a fifth of each class is held out. `net` is given in any of the ways of `protofed.nets.own`,
    or as a choice of an experiment file; None: that of the run's first client with inputs of the same shape. It starts
    from those of the `layers`, parameters by name, that fit its net; the others are random.
    """
    config, members, server, _ = result.state
    method, number = config.method, len(members)
    own = Federation([data], None if test is None else [test], members.labels, name="newcomer")
    model_client = _check_same_inputs(members.train, own.train[0])
    examples, exam = _scaled(members.train, model_client or 0, own.train[0], own.test[0])
    if not len(exam):
        raise UserError("The newcomer has nothing to be tested on: give a test set, or five examples of a class.")
    made = _chosen(net, members.nets[model_client or 0], examples.shape, len(members.labels))
    made = made.starting_from(layers) if layers else made
    replace(members, nets=(*members.nets, made)).check_nets(config.method_name, method)
    seed = config.run.seed if seed is None else seed
    client = Client(made, seed, config.run.rounds, number, number + 1, examples)
    held = torch.bincount(examples.labels, minlength=len(members.labels)) > 0
    down, training = _of_classes(method.broadcast(server, number), held), replace(config.train, epochs=epochs)
    with one_thread():
        trained, _ = take_part(method, client, method.join(client), down, training)
        kept, params, tuning = method.keep(trained), trained.params, method.tune(epochs)
        if tuning:
            params = train_client(
                method, client, examples, params, method.prepare(down), kept, tuning, training, "tune"
            ).params
        spent = replace(training, epochs=sum(phase.epochs for phase in (*method.phases(epochs), *tuning)))
        alone, _ = take_part(Local(), client, Local().join(client), (), spent)

    def answer(x: Tensor) -> Scores:
        return method.predict(made, params, x, down, kept)

    model = Model(number, made, method.exportable_params(params, kept), answer, examples, members.labels)
    right = tally(answer, exam)
    return Newcomer(
        model=replace(model, reach=model.farthest()),
        classes=[members.labels[place] for place in held.nonzero().flatten().tolist()],
        train=len(examples),
        test=len(exam),
        steps=trained.steps,
        spent=spent.epochs,
        given=sorted(made.layers),
        shared=any(not torch.equal(value, alone.start[name]) for name, value in trained.start.items()),
        downloaded=message_size(down).params,
        accuracy={way: count / len(exam) for way, count in right.items()},
        alone=tally(lambda x: {"head": made(alone.params, x)[1]}, exam)["head"] / len(exam),
    )


def read_newcomer(path: Path) -> tuple[tuple[Any, Any], tuple[Any, Any] | None]:
    """The newcomer's (x, y), and its test set if the file has one."""
    if not path.exists():
        raise UserError(f"There is no file {path}. --data wants an .npz with x and y.")
    arrays = read_npz(path)
    for key in ("x", "y", *(("x_test", "y_test") if arrays.keys() & {"x_test", "y_test"} else ())):
        if key not in arrays:
            raise UserError(f"{path} has no {key}; it has {', '.join(arrays)}.")
    return (arrays["x"], arrays["y"]), (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None


def _check_same_inputs(others: tuple[Examples, ...], own: Examples) -> int | None:
    """The first client that has inputs of the newcomer's shape, dimensions of 1 aside."""

    def sides(examples: Examples) -> tuple[int, ...]:
        return tuple(side for side in examples.shape if side != 1)

    return next((client for client, other in enumerate(others) if sides(other) == sides(own)), None)


def _scaled(others: tuple[Examples, ...], client: int, train: Examples, test: Examples) -> tuple[Examples, Examples]:
    """The newcomer's examples normalised as the client's, or by its own statistics where every client has its own."""
    train, test = _like(others[client], train), _like(others[client], test)
    if any(other.shape == train.shape and other.input != others[client].input for other in others):
        train = train.by_own_statistics()
        test = test.normalised_like(train)
    return train, test


def _like(other: Examples, own: Examples) -> Examples:
    """The newcomer's examples, shaped (unless nothing is normalised) and normalised as the other's."""
    if other.shape != own.shape and (other.scale, other.mean, other.std) == (1.0, 0.0, 1.0):
        return own
    try:
        return replace(other, x=other.checked(own.x), y=own.y, index=own.index)
    except UserError as problem:
        raise UserError(f"The newcomer's data do not fit the run's: {problem}") from problem


def _chosen(given: Any, other: Net, shape: tuple[int, ...], classes: int) -> Net:
    """The newcomer's net."""
    if given is None:
        return other
    if isinstance(given, NetChoice):
        return make_net(given.name, given.design, shape, classes)
    return OwnNet.net(given, "net", shape, classes)


def _of_classes(message: Any, held: Tensor) -> Any:
    """A message without the prototypes of classes that the client does not have."""
    if isinstance(message, Prototypes):
        return message.of_classes(held)
    if isinstance(message, dict):
        return {key: _of_classes(part, held) for key, part in message.items()}
    if hasattr(message, "_replace"):
        return message._replace(**{key: _of_classes(part, held) for key, part in message._asdict().items()})
    return message
