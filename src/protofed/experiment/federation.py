"""A federation of your own: arrays and modules, straight from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from protofed.data.labels import names, numbered
from protofed.data.partitions.base import Holding, stratified_share
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.config import GIVEN, Config
from protofed.experiment.members import Members, build_nets, load_net_weights
from protofed.experiment.sections import DataSection, GivenInPython, NetChoice
from protofed.nets.own import OwnNet

if TYPE_CHECKING:
    from protofed.experiment.results import Result
    from protofed.net import Net

Pair = tuple[np.ndarray, np.ndarray]


class Federation:
    """Clients with data of their own, and with nets of their own if they are given.

    `data`: for each client a pair of inputs [n, ...] and labels [n], whole numbers from 0 or names. Inputs may have
    other shapes at other clients.
    `test`: a pair for each client; None: a fifth of each class at each client is held out.
    `classes`: how many there are, or their names in order; None: as the labels have it.
    `nets`: one for all clients or one for each, in any of the ways that `protofed.nets.own` lists; None: those of the
    experiment's [net].
    """

    def __init__(
        self,
        data: Sequence[tuple[Any, Any]],
        test: Sequence[tuple[Any, Any] | None] | None = None,
        classes: int | Sequence[str | int] | None = None,
        nets: Sequence[Any] | None = None,
        name: str = "own data",
    ) -> None:
        if isinstance(nets, nn.Module | tuple) or callable(nets):
            raise UserError(f"nets: got a {type(nets).__name__}; must be a list of nets, as nets=[net].")
        data = list(data)
        if not data:
            raise UserError("data: got no client. Give a pair (x, y) for each.")
        if test is not None and len(test) != len(data):
            raise UserError(f"test: got {len(test)} pairs for {len(data)} clients. Give one for each, or None.")
        if nets is not None and len(nets) not in (1, len(data)):
            raise UserError(f"nets: got {len(nets)} for {len(data)} clients. Give one for all, or one for each.")
        self.name = name
        train = [_as_pair_of_arrays(given, f"data[{client}]") for client, given in enumerate(data)]
        shapes = [x.shape[1:] for x, _ in train if x.ndim > 1]
        if not shapes:
            raise UserError("data: no client has inputs of shape [n, ...].")
        train = [(x if x.ndim > 1 else np.zeros((0, *shapes[0]), np.float32), y) for x, y in train]
        if test is None:
            masks = [stratified_share(y, 0.2, random_state("held out", client)) for client, (_, y) in enumerate(train)]
            exam = [(x[mask], y[mask]) for (x, y), mask in zip(train, masks, strict=True)]
            train = [(x[~mask], y[~mask]) for (x, y), mask in zip(train, masks, strict=True)]
            self.parts = tuple(Holding(np.flatnonzero(~mask), np.flatnonzero(mask)) for mask in masks)
        else:
            exam = [
                (x[:0], y[:0]) if given is None else _examined(_as_pair_of_arrays(given, f"test[{client}]"), x)
                for client, (given, (x, y)) in enumerate(zip(test, train, strict=True))
            ]
            self.parts = tuple(
                Holding(np.arange(len(y)), np.arange(len(b))) for (_, y), (_, b) in zip(train, exam, strict=True)
            )
            for client, ((a, _), (b, _)) in enumerate(zip(train, exam, strict=True)):
                if a.shape[1:] != b.shape[1:]:
                    raise UserError(
                        f"test[{client}]: its inputs have shape {b.shape[1:]}, but data[{client}]'s have {a.shape[1:]}."
                    )
        self.labels = names([y for _, y in (*train, *exam)], classes)
        self.train, self.test = (
            tuple(Examples.of(x, numbered(self.labels, y, f"{what}[{client}]")) for client, (x, y) in enumerate(pairs))
            for what, pairs in (("data", train), ("test", exam))
        )
        self.nets = None if nets is None else self.fitted(nets)

    def fitted(self, nets: Sequence[Any]) -> tuple[Net, ...]:
        """For each client its net; clients with the same net and inputs of the same shape share the object."""
        made: dict[tuple[int, tuple[int, ...]], Net] = {}
        given = [nets[0]] * len(self.train) if len(nets) == 1 else list(nets)
        for client, (net, examples) in enumerate(zip(given, self.train, strict=True)):
            if (id(net), examples.shape) not in made:
                place = f"nets[{client if len(nets) > 1 else 0}]"
                made[id(net), examples.shape] = OwnNet.net(net, place, examples.shape, len(self.labels))
        return tuple(made[id(net), examples.shape] for net, examples in zip(given, self.train, strict=True))

    def __len__(self) -> int:
        return len(self.train)

    def config(self, config: Config) -> Config:
        """An experiment with this federation in the place of its [data], [partition] and, if there are nets, [net]."""
        for key, value, usual in (
            ("data.normalise", config.data.normalise, "dataset"),
            ("eval.test", config.eval.test, "dataset"),
            ("eval.validation", config.eval.validation, 0.0),
        ):
            if value != usual:
                raise UserError(f"{key}: got {value}; that is for named data. A federation's arrays are used as given.")
        given: Any = GivenInPython()
        nets = config.nets if self.nets is None else (NetChoice(GIVEN, given),)
        data = DataSection(GIVEN, clients=len(self))
        return replace(config, data=data, partition_name=GIVEN, partition=given, nets=nets)

    def members(self, config: Config) -> Members:
        """Who there is, with the experiment's nets if none were given; all clients' test sets are the balanced one."""
        shapes = [examples.shape for examples in self.train]
        made = (
            load_net_weights(config, build_nets(config, shapes, len(self.labels)))
            if self.nets is None
            else (self.nets, ())
        )
        return Members(self.name, self.labels, made[0], self.train, self.test, self.test, self.parts, notes=made[1])

    def run(self, config: Any = None, out: str | Path | None = None, **more: Any) -> Result:
        """The same as `protofed.run(config, out, federation=self)`."""
        from protofed.experiment.run import run

        return run(config, out, federation=self, **more)


def _examined(test: Pair, x: np.ndarray) -> Pair:
    """A test set; an empty one has the shape of the training inputs."""
    return test if len(test[1]) else (x[:0], test[1])


def _as_array(given: Any, whose: str) -> np.ndarray:
    """An array as this machine has it; of Python objects only if they are all text."""
    try:
        given = given.detach().cpu() if isinstance(given, Tensor) else given
        made = np.asarray(given.float() if isinstance(given, Tensor) and given.dtype == torch.bfloat16 else given)
        if made.dtype.kind == "O":
            made = np.asarray(made.tolist())
            if made.dtype.kind == "U" and not all(isinstance(value, str) for value in np.asarray(given).flat):
                raise ValueError("text and numbers are mixed")
        return made.astype(made.dtype.newbyteorder("="), copy=False)
    except (ValueError, TypeError) as problem:
        raise UserError(f"{whose}: it cannot be read as an array: {problem}.") from problem


def _as_pair_of_arrays(given: Any, whose: str) -> Pair:
    """A client's inputs and labels as arrays that fit each other."""
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise UserError(f"{whose}: got a {type(given).__name__}; must be a pair (x, y).")
    x, y = (_as_array(part, whose) for part in given)
    if not y.size and not x.size and y.ndim == 1:
        return x.astype(np.float32), y.astype(np.int64)
    if x.dtype.kind not in "biuf":
        raise UserError(f"{whose}: its inputs are of type {x.dtype}; they must be numbers.")
    if x.ndim < 2 or y.shape != (len(x),):
        raise UserError(f"{whose}: got inputs {list(x.shape)} and labels {list(y.shape)}; must be [n, ...] and [n].")
    if y.dtype.kind == "b" or (y.dtype.kind == "f" and np.array_equal(y, np.round(y))):
        y = y.astype(np.int64)
    if y.dtype.kind not in "iuU":
        raise UserError(f"{whose}: its labels are of type {y.dtype}; they must be whole numbers or names.")
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if bad := np.count_nonzero(~np.isfinite(x)):
            raise UserError(
                f"{whose}: {bad} of its {x.size:,} values are not finite. Fill them in, or leave those rows out."
            )
    return (x.astype(np.uint8) if x.dtype.kind == "b" else x), y
