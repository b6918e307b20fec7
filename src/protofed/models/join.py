"""A newcomer: a client that joins after a run has finished.

As FedProto's paper proposes for new clients, it downloads the global prototypes of its classes and fine-tunes its own
model with the local objective, Eq. (7). This works with every method: the newcomer runs its hooks like any client. If
the loss contrasts classes, the newcomer downloads the prototypes of all of them.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from protofed.core import Client
from protofed.engines.scoring import client_scores, tally
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.experiment.accuracy import wilson_interval
from protofed.experiment.model import Model
from protofed.experiment.results import load
from protofed.experiment.sections import NetChoice
from protofed.experiment.table import data_frame
from protofed.experiment.unknown import calibrate_on, fitted_rule, halves, of_classes
from protofed.experiment.wording import quantity
from protofed.messages import leaves, message_size, with_changed_leaves
from protofed.methods.local import Local
from protofed.models.invitation import Invitation, read_invitation
from protofed.models.newcomer_data import newcomer_data
from protofed.nets import make_net
from protofed.nets.own import OwnNet
from protofed.prototypes import Prototypes
from protofed.training import take_part, train_client
from protofed.trust.privacy.public_body import has_public_body, state_before_training, train_head_alone

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.core import Net, Params
    from protofed.examples import Examples
    from protofed.experiment.config import Config
    from protofed.experiment.results import Result


class NewcomerState(NamedTuple):
    """What the newcomer predicts with."""

    config: Config  # its method and nets
    params: Params
    down: Any  # the server's message
    kept: Any


@dataclass(frozen=True)
class Newcomer:
    """The result of joining, compared with training alone from the newcomer's own layers for the same steps."""

    model: Model
    state: NewcomerState
    classes: list[str | int]  # the classes of its training examples
    train: int  # training examples
    test: int  # test examples
    steps: int  # optimiser steps of its training with the run
    spent: float  # epochs of all phases, and of training alone
    given: list[str]  # the tensors that started from `layers` or the run's net.weights and not at random
    shared: bool  # whether it started from weights that the run shares instead
    downloaded: int  # numbers that the server sent
    accuracy: dict[str, float]  # after joining, by way of predicting
    alone: float  # accuracy by head after training alone
    scale_caution: str = ""  # if its inputs have another scale than those of the run

    def figures(self) -> dict[str, Any]:
        """Everything except the model and its state."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("model", "state")}

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html.escape(line)}</p>" for line in self.text().splitlines())

    def to_pandas(self) -> Any:
        """The accuracies as a pandas DataFrame: by way of predicting, and of training alone."""
        rows = [{"by": way, "accuracy": share} for way, share in self.accuracy.items()]
        return data_frame([*rows, {"by": "head, alone", "accuracy": self.alone}])

    def text(self) -> str:
        """The figures in sentences."""
        ways = {"head": "by head", "prototype": "by the nearest prototype"}
        accuracies = [f"{100 * share:.1f} % {ways[way]}" for way, share in self.accuracy.items() if way in ways]
        gain = 100 * (self.accuracy["head"] - self.alone)
        if self.shared:
            start = "weights that the run shares"
        elif self.given:
            start = f"given initial weights ({len(self.given)} of its {len(self.model.net.shapes)} tensors)"
        else:
            start = "random weights"
        return (
            f"The newcomer has {self.train:,} training and {self.test:,} test examples of the classes "
            f"{', '.join(map(str, self.classes))}. Its net, {self.model.net.name}, started from {start}.\n"
            f"It downloaded {self.downloaded:,} numbers and trained for {self.steps:,} steps. "
            f"Test accuracy: {', '.join(accuracies)}.\n"
            "Trained alone, from its own layers and for the same number of steps: "
            f"{100 * self.alone:.1f} % by head. Difference made by joining: {gain:+.1f} points."
            + self._caution()
            + (f"\n{self.scale_caution}" if self.scale_caution else "")
        )

    def _caution(self) -> str:
        """A line if the 95 % intervals of both accuracies by head overlap; "" otherwise, or if pixels are counted."""
        if self.model.net.grid:
            return ""
        joined, alone = (
            wilson_interval(round(share * self.test), self.test) for share in (self.accuracy["head"], self.alone)
        )
        if joined is None or alone is None or joined[0] > alone[1] or alone[0] > joined[1]:
            return ""
        ranges = [f"{100 * low:.0f} to {100 * high:.0f} %" for low, high in (joined, alone)]
        return (
            f"\nCareful: with {quantity(self.test, 'test example')}, one example is {100 / self.test:.1f} points. The "
            f"95 % intervals of both accuracies overlap ({ranges[0]} and {ranges[1]}), so the difference may be chance."
        )


def _invitation_of(run: Result | str | Path) -> Invitation:
    """What the server of a run sends to a new client; from a result, a run folder, or a file with prototypes."""
    if not isinstance(run, str | Path):
        return Invitation.of(run)
    return read_invitation(Path(run)) if Path(run).is_file() else Invitation.of(load(run))


def join(
    run: Result | Invitation | str | Path,
    data: Any,
    test: tuple[Any, Any] | None = None,
    *,
    net: Any = None,
    layers: Params | None = None,
    epochs: int = 10,
    seed: int | None = None,
    new_classes: bool = False,
    name: str = "newcomer",
) -> Newcomer:
    """Let a new client with the data (x, y), or a DataFrame, join a finished run: its result, folder or prototypes.

    The client receives the prototypes of its classes and trains for a number of epochs. Without a `test` pair a fifth
    of each class is held out. `run`: a result, a run folder, an `Invitation`, or a file that `protofed export
    --prototypes` wrote. `net`: a torch module, or another form of `protofed.nets.own`, or a choice from an experiment
    file; None: the net of the run's first client with inputs of the same shape. `layers`: parameters by name to start
    from, where they fit the net; the others are random. `seed` None: the seed of the run. `new_classes`: whether the
    client may have classes that the run does not know.
    """
    invitation = run if isinstance(run, Invitation) else _invitation_of(run)
    config, method, number = invitation.config, invitation.method, invitation.clients
    newcomer = newcomer_data(invitation, data, test, new_classes, name)
    examples, test_examples, labels = newcomer.train, newcomer.test, newcomer.labels
    num_known = len(invitation.labels)
    invitation = replace(invitation, labels=labels, message=_for_classes(invitation, len(labels)))
    if not len(test_examples):
        raise UserError(
            "The newcomer has no test examples. Give a test set, or at least five training examples of a class."
        )
    default = invitation.net(newcomer.like, examples.shape) if net is None or invitation.members else None
    if default and (examples.mask is None) == bool(default.grid):
        wanted = "a mask for every image" if examples.mask is None else "one label per input"
        raise UserError(f"The nets of the run need {wanted}. Give the newcomer's labels in this form.")
    client_net = _make_net(net, default, examples, len(labels))
    layers = layers or (invitation.layers_for(newcomer.like) if net is None else {})
    client_net = client_net.starting_from(layers) if layers else client_net
    invitation.check_net(client_net)
    seed = config.run.seed if seed is None else seed
    client = Client(client_net, seed, config.run.rounds, number, number + 1, examples)
    has_class = examples.class_counts(len(labels)) > 0
    message = invitation.message
    down = message if method.compares_classes else _without_other_classes(message, has_class)
    training = config.train.without_schedule(epochs)  # a run may have ended with a rate near 0
    with one_thread():
        before = state_before_training(method, config.privacy, client, config.run.seed)
        train = train_head_alone if has_public_body(config.privacy) else take_part
        trained, _ = train(method, client, before, down, training)
        kept, params, tuning = method.keep(trained), trained.params, method.tune(epochs)
        if tuning:
            params = train_client(
                method, client, examples, params, method.prepare(down), kept, tuning, training, "tune"
            ).params
        all_epochs = sum(phase.epochs for phase in (*method.phases(epochs), *tuning))
        local = Local(initial_weights=getattr(method, "initial_weights", "own"))
        alone, _ = take_part(local, client, local.join(client), (), replace(training, epochs=all_epochs))
    downloaded = message_size(down).params
    if num_new := len(labels) - num_known:
        down = _with_own_prototypes(down, method.upload(trained), num_new)
    answer = client_scores(method, client_net, params, down, kept)
    model = Model(number, client_net, method.exportable_params(params, kept), answer, examples, labels)
    if config.eval.unknown != "none" and not client_net.grid:
        rule = fitted_rule(model, config.eval.unknown)
        held_out, _ = halves(of_classes(test_examples, rule.classes))
        calibration = calibrate_on(model, rule, config.eval.false_alarms, held_out)
        model = replace(model, unknown=calibration.rule if calibration else None)
    num_correct = tally(answer, test_examples)
    num_correct_alone = tally(lambda x: {"head": client_net(alone.params, x)[1]}, test_examples)["head"]
    return Newcomer(
        model=replace(model, recipe=newcomer.recipe),
        state=NewcomerState(invitation.config, params, down, kept),
        classes=[labels[label] for label in has_class.nonzero().flatten().tolist()],
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
        downloaded=downloaded,
        accuracy={way: count / test_examples.num_labels for way, count in num_correct.items()},
        alone=num_correct_alone / test_examples.num_labels,
        scale_caution=newcomer.scale_caution(invitation),
    )


def _make_net(spec: Any, default: Net | None, examples: Examples, classes: int) -> Net:
    """The newcomer's net from what the caller passed as `net`."""
    own_classes = tuple(examples.class_counts(classes).nonzero().flatten().tolist())
    if isinstance(spec, NetChoice):
        return make_net(spec.name, spec.design, examples.shape, classes)
    if spec is not None:
        return OwnNet.net(spec, "net", examples.shape, classes, own_classes)
    assert default is not None
    if default.outputs and default.outputs != own_classes:
        raise UserError(
            f"The run's net {default.name} has outputs for the classes of its client only, and the newcomer has other "
            "classes. Give the newcomer a net."
        )
    return default


def _without_other_classes(message: Any, has_class: Tensor) -> Any:
    """A message without the prototypes of the classes that the client does not have; `has_class`: [classes]."""

    def own(name: str, leaf: Tensor | Prototypes) -> Tensor | Prototypes:
        return leaf.of_classes(has_class) if isinstance(leaf, Prototypes) else leaf

    return with_changed_leaves(message, own)


def _for_classes(invitation: Invitation, classes: int) -> Any:
    """The server's message with empty places for the newcomer's new classes."""
    if classes == len(invitation.labels):
        return invitation.message
    types = invitation.method.types()
    kinds = [type(leaf) for _, leaf in leaves(invitation.message)]
    if types["down"] != types["up"] or kinds != [Prototypes]:
        raise UserError(
            f"New classes need a method that sends prototypes alone, such as fedproto, but the run is of "
            f"{invitation.config.method_name}. Leave the rows of new classes out."
        )
    return with_changed_leaves(invitation.message, lambda name, part: _widened(part, classes))


def _widened(prototypes: Prototypes, classes: int) -> Prototypes:
    """The prototypes for a larger number of classes; the new ones have support 0."""
    known, modes, dim = prototypes.mean.shape
    mean, support = torch.zeros(classes, modes, dim), torch.zeros(classes, modes)
    mean[:known], support[:known] = prototypes.mean, prototypes.support
    return Prototypes(mean, support)


def _with_own_prototypes(down: Any, up: Any, num_new: int) -> Any:
    """The server's message with the newcomer's own prototypes, which it would upload, of its last, new classes."""
    own = dict(leaves(up))

    def filled(name: str, part: Prototypes) -> Prototypes:
        upload = own[name]
        assert isinstance(upload, Prototypes)
        is_new = torch.arange(len(part.support)) >= len(part.support) - num_new
        return part.or_else(upload.of_classes(is_new))

    return with_changed_leaves(down, filled)
