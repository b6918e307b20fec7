"""A dataset: training examples for the clients, a test set that no client trains on, and the origin of the examples.

To load a dataset by name, a `Source` finds the data folder and calls the reader of that dataset. Readers are in
`images.py`, `tables.py` and `generated.py`. They use `npz_files.read_npz` and the functions below: `require_file` for
the file, `check_arrays` for its content, and `split_off_test_set` if no test set was published.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from protofed.data.finite import check_finite
from protofed.data.partitions.base import Labels, stratified_share
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.examples import Examples


@dataclass(frozen=True)
class Dataset:
    """A dataset before it is divided among clients."""

    name: str
    train: Examples
    test: Examples
    labels: tuple[str | int, ...]  # the names of the classes 0, 1, ...
    groups: tuple[str, ...] = ()  # names of the domains, subjects, hospitals or clients; () if the origin is not known
    train_group: np.ndarray | None = None  # [n]: the number of the group of each training example
    test_group: np.ndarray | None = None  # [n]: the same for each test example
    remark: str = ""  # shown with every result, such as "subset" or "re-made"
    normalise: Literal["constants", "client"] = "constants"
    """`constants`: by documented constants; `client`: by each client's own statistics."""
    arrays: tuple[str, str] = ("", "")  # the file and array of the training and of the test inputs, for messages
    superclass: tuple[int, ...] = ()  # for each class the number of its group of similar classes; () if not known
    image_labels: tuple[str | int, ...] = ()
    """The names of the labels of images, if these are not the classes of pixels, which `labels` names."""

    @property
    def classes(self) -> int:
        return len(self.labels)

    def from_domains(self, names: Sequence[str]) -> Dataset:
        """The examples that come from these domains (subjects, hospitals, ...), for training and for testing."""
        if self.train_group is None or self.test_group is None or not self.groups:
            raise UserError(
                f"data.domains: got {', '.join(names)}, but {self.name} does not say where each example comes from. "
                "Leave data.domains out."
            )
        if unknown := [name for name in names if name not in self.groups]:
            raise UserError(
                f"data.domains: got {', '.join(unknown)}, but {self.name} has the domains {', '.join(self.groups)}. "
                "Use these names."
            )
        numbers = [number for number, name in enumerate(self.groups) if name in names]
        groups = tuple(self.groups[number] for number in numbers)
        train, test = (np.flatnonzero(np.isin(group, numbers)) for group in (self.train_group, self.test_group))
        return replace(
            self,
            train=self.train.subset(train),
            test=self.test.subset(test),
            groups=groups,
            train_group=np.searchsorted(numbers, self.train_group[train]),
            test_group=np.searchsorted(numbers, self.test_group[test]),
            remark=", ".join(filter(None, (self.remark, f"only {', '.join(groups)}"))),
        )

    def limited(self, count: int, seed: int) -> Dataset:
        """This dataset with `count` random training examples, in their original order; all if it has no more."""
        chosen = np.sort(random_state(seed, "limit").permutation(len(self.train))[:count])
        groups = None if self.train_group is None else self.train_group[chosen]
        return replace(self, train=self.train.subset(chosen), train_group=groups)

    def with_test_set_in_training_set(self) -> Dataset:
        """This dataset with all examples in its training set, those of the test set last, and an empty test set."""
        arrays: dict[str, Any] = {"x": (self.train.x, self.test.x), "y": (self.train.y, self.test.y)}
        if self.train.mask is not None:
            arrays["mask"] = (self.train.mask, self.test.mask)
        merged_arrays: dict[str, Any] = {
            key: torch.cat([train[self.train.index], test[self.test.index]]) for key, (train, test) in arrays.items()
        }
        train = replace(self.train, index=torch.arange(len(self.train) + len(self.test)), **merged_arrays)
        nothing = np.zeros(0, dtype=np.int64)
        merged = replace(self, train=train, test=train.subset(nothing))
        if self.train_group is None or self.test_group is None:
            return merged
        return replace(merged, train_group=np.concatenate([self.train_group, self.test_group]), test_group=nothing)

    def must_be_finite(self, missing_allowed: bool) -> None:
        """Raise an error if an input is not finite. `missing_allowed`: missing values (NaN) will be filled in."""
        advice = (
            "Set data.normalise=client, which replaces them by the client's median of the column and scales all "
            "columns, or fill them in."
        )
        parts = [self.train] if self.train.x is self.test.x else [self.train, self.test]
        for part, kind, where in zip(parts, ("training", "test"), self.arrays, strict=False):
            check_finite(
                where or f"{self.name}, {kind} inputs",
                part.x.numpy(),
                missing_allowed,
                advice,
                partial(self._owners, part),
            )

    def _owners(self, examples: Examples) -> list[str]:
        """The name of the group of each row of the array of these examples; [] if there are no groups."""
        owners = [""] * len(examples.x) if self.groups else []
        for part, group in ((self.train, self.train_group), (self.test, self.test_group)):
            if part.x is examples.x and self.groups and group is not None:
                for row, number in zip(part.index.tolist(), group.tolist(), strict=True):
                    owners[row] = self.groups[number]
        return owners

    def partition_labels(self) -> Labels:
        """The labels and groups of all examples, from which a partition divides the dataset."""
        no_groups = np.zeros(0, dtype=np.int64)
        return Labels(
            self.train.labels.numpy(),
            self.test.labels.numpy(),
            len(self.image_labels or self.labels),
            self.groups,
            no_groups if self.train_group is None else self.train_group,
            no_groups if self.test_group is None else self.test_group,
        )


@dataclass(frozen=True)
class Source:
    """An entry of the registry `sources.SOURCES`: calling it loads the dataset, as in `SOURCES["mnist"](root)`.

    `about` is one line for `protofed list`. `read` gets the data folder and returns the dataset. `files` are the names
    of the files that it reads there; (): none; None: data.root names the user's own files. `made_from`: the function
    outside the package that it calls.
    """

    about: str
    read: Callable[[Path], Dataset]
    files: tuple[str, ...] | None = ()
    made_from: Any = None

    def __call__(self, root: str) -> Dataset:
        """Load the dataset from the folder `root`; "": from the default data folder."""
        return self.read(data_folder(root))

    def state(self, root: str = "") -> str:
        """Whether the data can be used now: "ready", or what is missing."""
        if self.files is None:
            return "set data.root to your files"
        folder = data_folder(root)
        missing = [name for name in self.files if not (folder / name).is_file()]
        return f"not here: no {', '.join(missing)} in {folder}" if missing else "ready"


def data_folder(root: str) -> Path:
    """The folder with the data files: `root`, or else $PROTOFED_DATA, or else ~/.cache/protofed."""
    return Path(root or os.environ.get("PROTOFED_DATA") or "~/.cache/protofed").expanduser()


def require_file(name: str, path: Path, published: str) -> Path:
    """The path of a dataset's file; an error if there is no such file. `published` is where the data come from."""
    if not path.is_file():
        raise UserError(
            f"{name}: there is no file {path.name} in {path.parent}. The data are published at {published}; "
            "docs/data.md describes the file. Set data.root or $PROTOFED_DATA to the folder that has it, or use "
            "data.name=digits."
        )
    return path


def listed_file(folder: Path, name: str, owner: str) -> Path:
    """The file of a folder that a published list names; an error if the name leads out of the folder.

    `owner`, the list, begins the error message.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(
            f'{owner} names the file "{name}", which is not within {folder}. Get the list from where it is published.'
        )
    return folder / name


def check_arrays(name: str, x: np.ndarray, y: np.ndarray, shape: tuple[int, ...], classes: int) -> None:
    """Raise an error unless the inputs x are [n, *shape] and the labels y [n] are whole numbers below `classes`."""
    if y.ndim == 1 and x.ndim and len(x) != len(y):
        raise UserError(f"{name} has {len(x):,} inputs and {len(y):,} labels. Give one label per input.")
    if x.shape[1:] != shape or y.shape != (len(x),):
        expected = ", ".join(map(str, ("n", *shape)))
        raise UserError(
            f"{name} has inputs {list(x.shape)} and labels {list(y.shape)}; must be [{expected}] and [n]. "
            "docs/data.md describes the file."
        )
    if not np.issubdtype(y.dtype, np.integer) or y.min(initial=0) < 0 or y.max(initial=0) >= classes:
        raise UserError(
            f"{name}: its labels must be whole numbers from 0 to {classes - 1}. docs/data.md describes the file."
        )


def split_off_test_set(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    group: np.ndarray,
    groups: tuple[str, ...],
    labels: tuple[str | int, ...],
    constants: Mapping[str, Any],
    remark: str,
    normalise: Literal["constants", "client"] = "constants",
) -> Dataset:
    """A dataset from data without a published test set: a fifth of each class of each group, always the same one.

    `group` [n] has the number of each example's group, `groups` their names. `constants` normalise the inputs.
    """
    group, y = group.astype(np.int64), y.astype(np.int64)
    held_out = stratified_share(group * len(labels) + y, 0.2, random_state(name, "split"))
    examples = Examples.of(x, y, **constants)
    train, test = (examples.subset(np.flatnonzero(part)) for part in (~held_out, held_out))
    return Dataset(name, train, test, labels, groups, group[~held_out], group[held_out], remark, normalise)
