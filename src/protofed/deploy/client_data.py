"""A client's data file. This is the only place where a client reads its data: other formats are added here.

A table (.csv, .parquet, ...) is read as the experiment's [data] says; the recipe that makes inputs of its rows is
learned here and stays here. Of npz files there are two kinds. A person's own file has x and y (or mask), and optionally
x_test and y_test (mask_test) and `classes`; it is used as given, like the arrays of a `Federation`. A file that
`protofed deploy init` wrote for a named dataset has the client's exact part of it, with constants that normalise it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protofed.data.labels import ClassNames, class_numbers
from protofed.data.npz_files import own_arrays, read_npz
from protofed.data.table.client_tables import client_table
from protofed.data.table.files import SUFFIXES, is_table, read_table
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.federation import Federation
from protofed.experiment.folder import write_atomically
from protofed.experiment.sections import TABLE
from protofed.experiment.table_members import client_examples

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.data.table.recipe import Recipe
    from protofed.experiment.config import Config
    from protofed.experiment.members import Members

SPLITS = ("train", "test", "validation")


@dataclass(frozen=True)
class ClientData:
    """The data of one client. Labels are numbered by the client's own list of classes until `with_labels`."""

    classes: ClassNames  # the names of the classes 0, 1, ... of this file
    train: Examples
    test: Examples
    validation: Examples | None = None
    image_classes: ClassNames = ()  # as `Members.image_labels`
    group: str = ""
    own: bool = False  # as `Holding.own`
    dataset: str = "own data"
    remark: str = ""
    own_statistics: bool = False  # whether the constants that normalise inputs were computed from this client's data
    recipe: Recipe | None = None  # of a table: how inputs are made of its rows

    def with_labels(self, labels: ClassNames) -> ClientData:
        """The data with the class numbers that the federation agreed on. It may lack classes without examples here."""
        if labels == self.classes:
            return self
        counts = [part.class_counts(len(self.classes)) for part in (self.train, self.test, self.validation) if part]
        used = np.flatnonzero(torch.stack(counts).sum(0)) if counts else np.zeros(0, np.int64)
        numbers = torch.full((len(self.classes),), -1)
        numbers[used] = torch.from_numpy(class_numbers(labels, np.array(self.classes)[used], "data"))

        def renumbered(examples: Examples) -> Examples:
            if examples.mask is None:
                return replace(examples, y=numbers[examples.y])
            table = torch.arange(256)
            table[used] = numbers[used]
            return replace(examples, y=table[examples.y], mask=table[examples.mask.long()].byte())

        validation = self.validation and renumbered(self.validation)
        return replace(
            self, classes=labels, train=renumbered(self.train), test=renumbered(self.test), validation=validation
        )

    def without_classes(self, numbers: list[int]) -> ClientData:
        """The data without the examples of these classes; of masks, without the images that have such a pixel."""

        def kept(examples: Examples) -> Examples:
            excluded = torch.tensor(numbers)
            if examples.mask is None:
                keep = ~torch.isin(examples.labels, excluded)
            else:
                keep = ~torch.isin(examples.mask[examples.index].long(), excluded).flatten(1).any(1)
            return replace(examples, index=examples.index[keep])

        if not numbers:
            return self
        validation = self.validation and kept(self.validation)
        return replace(self, train=kept(self.train), test=kept(self.test), validation=validation)


def read_client_data(path: Path, config: Config, name: str = "", position: int = 0) -> ClientData:
    """The data of a client from its file. The draw of a held-out test set depends on the client's position."""
    has_table, kinds = is_table(path), f"a table ({', '.join(SUFFIXES)})"
    if config.data.name == TABLE and not has_table:
        raise UserError(f"{path}: the experiment's data are tables, so the data of a client must be {kinds}.")
    if has_table and config.data.name != TABLE:
        raise UserError(
            f'{path} is a table, but the experiment says nothing about tables. Give it a [data] with name = "table" '
            "and the name of the target's column (docs/tables.md)."
        )
    if not path.exists():
        wanted = kinds if has_table else "an .npz file with x and y"
        raise UserError(f"There is no file {path}. Give the client's data as {wanted}.")
    if has_table:
        return _table_data(path, config, name, position)
    arrays = read_npz(path)
    return _written_data(arrays, path) if "x_train" in arrays else _own_data(arrays, path, position)


def _table_data(path: Path, config: Config, name: str, position: int) -> ClientData:
    """A client's table, divided into training, test and validation rows as in a run on one machine."""
    options = config.data.table_options()
    table = client_table(name, path.name, read_table(path, options.missing, options.categories), options)
    share = config.eval.validation
    examples = client_examples(table, options, number=position, validation=share, seed=config.run.seed)
    validation = examples.validation if share else None
    return ClientData(examples.labels, examples.train, examples.test, validation, own=True, recipe=examples.recipe)


def _own_data(arrays: dict[str, np.ndarray], path: Path, position: int) -> ClientData:
    """A person's own file. Without a test set, a fifth of each class is held out, as `Federation` does it."""
    data, test = own_arrays(path, arrays)
    classes = arrays["classes"].tolist() if "classes" in arrays else None
    others: list[Any] = [([], [])] * position  # the draw of a held-out test set depends on the position of the client
    tests = None if test is None else [*[None] * position, test]
    try:
        federation = Federation([*others, data], tests, classes)
    except UserError as problem:
        text = str(problem).replace(f"data[{position}]", "data").replace(f"test[{position}]", "test")
        raise UserError(f"{path}: {text}") from problem
    return ClientData(federation.labels, federation.train[position], federation.test[position])


def _written_data(arrays: dict[str, np.ndarray], path: Path) -> ClientData:
    """A file that `write_client_data` wrote."""
    try:
        about = json.loads(str(arrays["about"]))
        constants: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in about["constants"].items()
        }
        parts = {
            split: Examples.of(
                arrays[f"x_{split}"], arrays[f"y_{split}"], mask=arrays.get(f"mask_{split}"), **constants
            )
            for split in SPLITS
            if f"x_{split}" in arrays
        }
        return ClientData(
            tuple(about["classes"]),
            parts["train"],
            parts["test"],
            parts.get("validation"),
            tuple(about["image_classes"]),
            **{key: about[key] for key in ("group", "own", "dataset", "remark", "own_statistics")},
        )
    except (KeyError, ValueError, TypeError) as problem:
        raise UserError(
            f"{path} is incomplete or was changed ({problem}). Write it again with `protofed deploy init`."
        ) from problem


def write_client_data(path: Path, members: Members, number: int) -> None:
    """Write the data of one client of an experiment, so that `read_client_data` returns exactly its examples."""
    parts = {"train": members.train[number], "test": members.test[number]}
    if members.validation:
        parts["validation"] = members.validation[number]
    about = {
        **_about(members, parts["train"]),
        "group": members.groups[number] if members.groups else "",
        "own": members.parts[number].own,
        "own_statistics": any(train.input != parts["train"].input for train in members.train),
    }
    _write_arrays(path, parts, about)


def write_balanced(path: Path, members: Members) -> bool:
    """Write the balanced test set for the server. False, and no file, if every client normalises in its own way."""
    if len(members.balanced) != 1:
        return False
    about = {**_about(members, members.balanced[0]), "group": "", "own": False, "own_statistics": False}
    empty = replace(members.balanced[0], index=members.balanced[0].index[:0])
    _write_arrays(path, {"train": empty, "test": members.balanced[0]}, about)
    return True


def read_balanced(path: Path) -> tuple[Examples, ...]:
    """The balanced test set of the server or of a client; () if there is no such file."""
    return (_written_data(read_npz(path), path).test,) if path.exists() else ()


def _about(members: Members, examples: Examples) -> dict[str, Any]:
    """What a written file says about its arrays."""
    return {
        "constants": {key: value for key, value in examples.input.items() if key != "shape"},
        "classes": list(members.labels),
        "image_classes": list(members.image_labels),
        "dataset": members.dataset,
        "remark": members.remark,
    }


def _write_arrays(path: Path, parts: dict[str, Examples], about: dict[str, Any]) -> None:
    arrays: dict[str, np.ndarray] = {"about": np.array(json.dumps(about))}
    for split, examples in parts.items():
        arrays |= {f"x_{split}": examples.x[examples.index].numpy(), f"y_{split}": examples.labels.numpy()}
        if examples.mask is not None:
            arrays[f"mask_{split}"] = examples.mask[examples.index].numpy()
    content = BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())
