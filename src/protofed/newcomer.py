"""A client that joins after a run has ended.

As FedProto's paper proposes for new clients: it takes the global prototypes of the classes it has, and fine-tunes its
own model with the local objective, Eq. (7). Any method will do: the newcomer goes through its hooks like any client.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from protofed.core import Client, Phase, Trained
from protofed.data.examples import Examples
from protofed.data.sources import read_npz
from protofed.errors import UserError
from protofed.federation import Federation
from protofed.local import train
from protofed.measures.accuracy import hits
from protofed.messages import size
from protofed.methods.local import Local
from protofed.model import Model
from protofed.nets import make
from protofed.nets.own import Own
from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from protofed.config import NetChoice
    from protofed.core import Net, Params, Scores
    from protofed.results import Result


@dataclass(frozen=True)
class Newcomer:
    """What joining gave, beside training alone from the same layers for the same steps."""

    model: Model
    classes: list[str | int]
    train: int
    test: int
    steps: int
    given: list[str]  # the layers it did not start at random
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
        started = f"{len(self.given)} of its {len(self.model.net.shapes)} layers given" if self.given else "at random"
        return (
            f"The newcomer has {self.train:,} training and {self.test:,} test examples of the classes "
            f"{', '.join(map(str, self.classes))}; net {self.model.net.name}, started {started}.\n"
            f"It downloaded {self.downloaded:,} numbers and made {self.steps:,} steps: {', '.join(shown)}.\n"
            f"Alone, from the same layers and with the same steps: {100 * self.alone:.1f} % by head. "
            f"Joining gave {gain:+.1f} points."
        )


def join(
    result: Result, data: tuple[Any, Any], test: tuple[Any, Any] | None = None, *, net: Any = None,
    layers: Params | None = None, epochs: int = 10, seed: int | None = None,
) -> Newcomer:  # fmt: skip
    """Let a client with this data (x, y) join a finished run and train for so many epochs.

    Without a `test` pair a fifth of each class is held out. `net` is one of a federation's nets in any of the ways of
    `protofed.nets.own`, or a choice of an experiment file; None: that of the run's first client. It starts from those
    of the `layers`, parameters by name, that fit its net; the others are random.
    """
    config, members, server, _ = result.state
    method, number = config.method, len(members)
    own = Federation([data], None if test is None else [test], members.labels, name="newcomer")
    examples, exam = (like(members.train, part) for part in (own.train[0], own.test[0]))
    if not len(exam):
        raise UserError("The newcomer has nothing to be tested on: give a test set, or five examples of a class.")
    made = chosen(net, members.nets[0], examples.shape, len(members.labels))
    replace(members, nets=(*members.nets, made)).admit(config.method_name, method)
    fitting = {name: value for name, value in (layers or {}).items() if made.shapes.get(name) == tuple(value.shape)}
    if layers and not fitting:
        raise UserError(
            f"None of the layers given ({', '.join(layers)}) fits {made.name}, which has {', '.join(made.shapes)}."
        )
    client = Client(
        made, config.run.seed if seed is None else seed, config.run.rounds, number, number + 1, examples, layers=fitting
    )
    held = torch.bincount(examples.labels, minlength=len(members.labels)) > 0
    down, kept = of_classes(method.broadcast(server, number), held), method.join(client)
    training, start = replace(config.train, epochs=epochs), method.receive(kept, down)
    made.check(start)
    outcome = train(method, client, examples, start, down, kept, method.phases(epochs), training)
    trained = Trained(
        **vars(client), kept=kept, down=down, start=start, end=outcome.params, lr=training.rate(client.round),
        steps=outcome.steps, observed=outcome.observed,
    )  # fmt: skip
    kept = method.keep(trained)

    def answer(x: Tensor) -> Scores:
        return method.predict(made, outcome.params, x, down, kept)

    model = Model(number, made, outcome.params, answer, examples, members.labels)
    lonely = train(Local(), client, examples, client.params, (), (), (Phase(epochs),), training).params
    return Newcomer(
        model=replace(model, reach=model.farthest()),
        classes=[members.labels[place] for place in held.nonzero().flatten().tolist()],
        train=len(examples),
        test=len(exam),
        steps=outcome.steps,
        given=list(fitting),
        downloaded=size(down).params,
        accuracy=accuracy(answer, exam),
        alone=accuracy(lambda x: {"head": made(lonely, x)[1]}, exam)["head"],
    )


def read(path: Path) -> tuple[tuple[Any, Any], tuple[Any, Any] | None]:
    """The newcomer's (x, y), and its test set if the file has one."""
    if not path.exists():
        raise UserError(f"There is no file {path}. --data wants an .npz with x and y.")
    data = read_npz(path, "x", "y")
    with np.load(path, allow_pickle=False) as stored:
        tested = {"x_test", "y_test"} <= set(stored.files)
    exam = read_npz(path, "x_test", "y_test") if tested else {}
    return (data["x"], data["y"]), (exam["x_test"], exam["y_test"]) if exam else None


def read_layers(path: Path) -> Params:
    """Parameters by name from a .safetensors file, as `protofed export` writes it."""
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError) as problem:
        raise UserError(f"{path} is not a readable .safetensors file: {problem}.") from problem


def like(others: tuple[Examples, ...], own: Examples) -> Examples:
    """The newcomer's examples, normalised as those of the first client that has inputs of the same shape."""
    for other in others:
        if tuple(side for side in other.shape if side != 1) == tuple(side for side in own.shape if side != 1):
            return replace(other, x=other.checked(own.x), y=own.y, index=own.index)
    if all((other.scale, other.mean, other.std) == (1.0, 0.0, 1.0) for other in others):
        return own
    raise UserError(
        f"The newcomer's inputs have shape {list(own.shape)}; the run's have {list(others[0].shape)}, and are "
        "normalised. Bring them to that shape."
    )


def chosen(given: Any, first: Net, shape: tuple[int, ...], classes: int) -> Net:
    """The newcomer's net."""
    if given is None:
        return first
    design = getattr(given, "design", None)
    if design is not None:
        choice: NetChoice = given
        return make(choice.name, choice.design, shape, classes)
    return Own(given, "net").net(shape, classes)


def of_classes(message: Any, held: Tensor) -> Any:
    """A message without the prototypes of classes that the client does not have."""
    if isinstance(message, Prototypes):
        return message.of_classes(held)
    if isinstance(message, dict):
        return {key: of_classes(part, held) for key, part in message.items()}
    if hasattr(message, "_replace"):
        return message._replace(**{key: of_classes(part, held) for key, part in message._asdict().items()})
    return message


@torch.no_grad()
def accuracy(answer: Any, exam: Examples) -> dict[str, float]:
    """The share of right answers by each way to predict."""
    right: dict[str, int] = {}
    for x, y in exam.batches(512):
        for way, scores in answer(x).items():
            right[way] = right.get(way, 0) + hits(scores, y)
    return {way: count / len(exam) for way, count in right.items()}
