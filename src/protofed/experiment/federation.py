"""Clients with your own arrays and modules, given from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protofed.data.finite import check_finite
from protofed.data.labels import checked_labels, class_names, class_numbers
from protofed.data.masks import main_classes, mask_classes, with_masks
from protofed.data.partitions.base import Holding, stratified_share
from protofed.data.table.client_tables import ClientTable, TableOptions, all_classes
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.config import Config
from protofed.experiment.member_nets import client_nets
from protofed.experiment.members import Members
from protofed.experiment.own_clients import given_tables, is_frame, named_clients, unpacked
from protofed.experiment.sections import DataSection, GivenInPython, NetChoice
from protofed.experiment.stored import GIVEN
from protofed.experiment.table_members import members_of_tables
from protofed.nets.own import own_nets, require_nets

if TYPE_CHECKING:
    from protofed.experiment.results import Result

Pair = tuple[np.ndarray, np.ndarray]


class Federation:
    """Your own arrays and modules, as given from Python: the data of each client, and its net if you give one.

    `data`: per client a pair of inputs [n, ...] and labels [n], which are whole numbers from 0 or names. The shape of
    the inputs may differ between clients. If every pixel has a label, the labels are masks [n, height, width]: a class
    from 0, the background, or 255 for a pixel without a label. A client may also be a DataFrame, a torch dataset, or a
    dataset of Hugging Face (an object, or a folder of `save_to_disk`). A dict has the clients by their names.
    `test`: a pair per client, or None for a client without one; None: a fifth of each class is held out per client.
    `classes`: the number of classes, or their names in order; None: taken from the labels.
    `nets`: one for all clients, or one per client, in any of the forms that `protofed.nets.own` lists; None: the nets
    of the experiment's [net]. A net has an output for each class, or for each class in its client's training examples.
    `name`: the name of the data, shown with every result. `names`: the names of the clients.
    `target`, `inputs`: the columns with the labels and, if one column has arrays or images, the inputs. Without
    `inputs`, all other columns are used, as `protofed.data.table` describes; `table` has its options: drop,
    categories, scaling, min_classes.
    """

    def __init__(
        self,
        data: Sequence[Any] | Mapping[str, Any],
        test: Sequence[Any] | str | None = None,
        classes: int | Sequence[str | int] | None = None,
        nets: Sequence[Any] | None = None,
        name: str = "own data",
        *,
        names: Sequence[str] | None = None,
        target: str = "",
        inputs: str = "",
        **table: Any,
    ) -> None:
        data, self.names = named_clients(data, names)
        if not data:
            raise UserError("data: got no clients. Give a pair (x, y) per client.")
        forms = [unpacked(client, f"data[{number}]", inputs, target) for number, client in enumerate(data)]
        data, own_tests = [form for form, _ in forms], [own_test for _, own_test in forms]
        if any(own_test is not None for own_test in own_tests) and test is None:
            test = own_tests
        if test is not None and not isinstance(test, str) and len(test) != len(data):
            raise UserError(f"test: got {len(test)} pairs for {len(data)} clients. Give one pair per client, or None.")
        if nets is not None:
            require_nets(nets, len(data))
        self.name, self.given_nets, self.classes = name, nets, classes
        self.tables: list[ClientTable] | None = None
        self.options: TableOptions | None = None
        if any(map(is_frame, data)):
            self._take_tables(data, test, target, table)
            return
        if table or isinstance(test, str):
            word = next(iter(table), "test")
            raise UserError(f"{word}: it is for DataFrames, but data has pairs (x, y). Leave it out.")
        train = [_as_pair_of_arrays(pair, f"data[{client}]") for client, pair in enumerate(data)]
        shapes = [x.shape[1:] for x, _ in train if x.ndim > 1]
        if not shapes:
            raise UserError("data: no client has inputs of shape [n, ...]. Give at least one client examples.")
        train = [(x if x.ndim > 1 else np.zeros((0, *shapes[0]), np.float32), y) for x, y in train]
        if test is None:
            held_out = [
                stratified_share(main_classes(y) if y.ndim == 3 else y, 0.2, random_state("held out", client))
                for client, (_, y) in enumerate(train)
            ]
            tests = [(x[chosen], y[chosen]) for (x, y), chosen in zip(train, held_out, strict=True)]
            train = [(x[~chosen], y[~chosen]) for (x, y), chosen in zip(train, held_out, strict=True)]
            self.parts = tuple(Holding(np.flatnonzero(~chosen), np.flatnonzero(chosen)) for chosen in held_out)
        else:
            tests = [
                (x[:0], y[:0]) if pair is None else _test_pair(_as_pair_of_arrays(pair, f"test[{client}]"), x)
                for client, (pair, (x, y)) in enumerate(zip(test, train, strict=True))
            ]
            self.parts = tuple(
                Holding(np.arange(len(y)), np.arange(len(test_y)))
                for (_, y), (_, test_y) in zip(train, tests, strict=True)
            )
            for client, ((x, _), (test_x, _)) in enumerate(zip(train, tests, strict=True)):
                if x.shape[1:] != test_x.shape[1:]:
                    raise UserError(
                        f"test[{client}]: its inputs have shape {test_x.shape[1:]}, but data[{client}]'s have "
                        f"{x.shape[1:]}. Give both the same shape."
                    )
        every = [y for _, y in (*train, *tests)]
        if not any(map(len, every)):
            raise UserError("data: no client has an example. Give at least one client examples.")
        per_pixel = any(y.ndim == 3 for y in every)
        self.labels = mask_classes(every, classes, "data") if per_pixel else class_names(every, classes)
        self.train, self.test = (
            tuple(self._examples(x, y, f"{argument}[{client}]", per_pixel) for client, (x, y) in enumerate(pairs))
            for argument, pairs in (("data", train), ("test", tests))
        )
        self.nets = None if nets is None else own_nets(nets, self.train, len(self.labels))

    def _take_tables(self, frames: list[Any], test: Any, target: str, more: dict[str, Any]) -> None:
        """Clients with DataFrames. Their examples are made when the experiment is known: see `members`."""
        if not all(map(is_frame, frames)):
            raise UserError("data: some clients have DataFrames, others do not. Give DataFrames for all.")
        more = {**more, "test": test} if isinstance(test, str) else more
        tests = (
            None if test is None or isinstance(test, str) else [unpacked(part, "test", "", target)[0] for part in test]
        )
        names = self.names or tuple(map(str, range(len(frames))))
        self.tables, self.options = given_tables(frames, tests, names, target, more)
        self.labels = all_classes(self.tables) if self.classes is None else class_names([], self.classes)
        self.nets = None

    def _examples(self, x: np.ndarray, y: np.ndarray, owner: str, per_pixel: bool) -> Examples:
        """A client's examples from inputs [n, ...] and labels [n] or masks. `owner` begins the error messages."""
        if not per_pixel:
            return Examples.of(x, class_numbers(self.labels, y, owner))
        masks = y if len(y) else np.zeros((0, *x.shape[2:]), np.uint8)
        if masks.ndim != 3:
            raise UserError(f"{owner}: it has one label per input, but other clients have masks. Give masks for all.")
        return with_masks(Examples.of(x, main_classes(masks)), masks, owner)

    def __len__(self) -> int:
        return len(self.tables if self.tables is not None else self.train)

    def config(self, config: Config) -> Config:
        """The experiment with this federation instead of its [data], [partition] and, if there are nets, [net]."""
        for key, value, default in (
            ("data.domains", list(config.data.domains), []),
            ("data.limit", config.data.limit, 0),
            ("data.encoder", config.data.encoder, ""),
            ("data.normalise", config.data.normalise, "dataset"),
            ("eval.test", config.eval.test, "dataset"),
            *([("eval.validation", config.eval.validation, 0.0)] if self.tables is None else []),
        ):
            if value != default:
                raise UserError(
                    f"{key}: got {value}, but it applies to named datasets only. A federation's arrays are used as "
                    "given: leave the key out."
                )
        from_python: Any = GivenInPython()
        nets = config.nets if self.given_nets is None else (NetChoice(GIVEN, from_python),)
        data = DataSection(GIVEN, clients=len(self))
        return replace(config, data=data, partition_name=GIVEN, partition=from_python, nets=nets)

    def members(self, config: Config) -> Members:
        """The clients, with the experiment's nets if none were given. All their test sets are the balanced test set."""
        if self.tables is not None and self.options is not None:
            members = members_of_tables(config, self.tables, self.options, self.name, self.labels, self.given_nets)
            return replace(members, names=self.names)
        nets, notes = (self.nets, ()) if self.nets else client_nets(config, self.train, len(self.labels), None)
        return Members(
            self.name, self.labels, nets, self.train, self.test, self.test, self.parts, notes=notes, names=self.names
        )

    def run(self, config: Any = None, out: str | Path | None = None, **more: Any) -> Result:
        """The same as `protofed.run(config, out, federation=self)`."""
        from protofed.experiment.run import run

        return run(config, out, federation=self, **more)


def _test_pair(test: Pair, x: np.ndarray) -> Pair:
    """A client's test inputs and labels. Inputs without examples get the shape of the training inputs."""
    return test if len(test[1]) else (x[:0], test[1])


def _as_array(values: Any, name: str) -> np.ndarray:
    """An array in this machine's byte order, from a tensor, an array or a list. `name` is for error messages."""
    try:
        values = values.detach().cpu() if isinstance(values, Tensor) else values
        if np.ma.is_masked(values):
            raise ValueError("it has masked values. Fill them in, or leave their rows out")
        array = np.asarray(values.float() if isinstance(values, Tensor) and values.dtype == torch.bfloat16 else values)
        if array.dtype.kind == "O":
            array = np.asarray(array.tolist())
            if array.dtype.kind == "U" and not all(isinstance(value, str) for value in np.asarray(values).flat):
                raise ValueError("text and numbers are mixed")
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    except (ValueError, TypeError) as problem:
        raise UserError(f"{name}: it cannot be read as an array: {problem}.") from problem


def _as_pair_of_arrays(pair: Any, name: str) -> Pair:
    """A client's inputs [n, ...] and labels [n] as arrays. `name` is for error messages."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise UserError(f"{name}: got a {type(pair).__name__}; must be a pair (x, y).")
    x, y = (_as_array(part, name) for part in pair)
    if not y.size and not x.size and y.ndim == 1:
        return x.astype(np.float32), y.astype(np.int64)
    if x.dtype.kind not in "biuf":
        raise UserError(f"{name}: its inputs are of type {x.dtype}; they must be numbers.")
    is_mask = x.ndim == 4 and y.shape == (len(x), *x.shape[2:]) and y.dtype.kind in "iu"
    if x.ndim < 2 or (y.shape != (len(x),) and not is_mask):
        masks = f", or masks {[len(x), *x.shape[2:]]}" if x.ndim == 4 else ""
        raise UserError(
            f"{name}: got inputs {list(x.shape)} and labels {list(y.shape)}; must be [n, ...] and [n]{masks}."
        )
    y = checked_labels(y, f"{name}, labels")
    if x.dtype.kind == "f":
        check_finite(f"{name}, inputs", x)
        x = x.astype(np.float32)
    return (x.astype(np.uint8) if x.dtype.kind == "b" else x), y
