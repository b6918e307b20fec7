"""A dataset: training examples for the clients, a test set that no client trains on, and who they come from."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from protofed.data.partitions.base import Labels, stratified_share
from protofed.draws import random_state
from protofed.errors import UserError
from protofed.examples import Examples


@dataclass(frozen=True)
class Dataset:
    name: str
    train: Examples
    test: Examples
    labels: tuple[str | int, ...]  # what the classes 0, 1, ... are called
    groups: tuple[str, ...] = ()  # domains, subjects, hospitals, clients: where examples come from, if that is known
    train_group: np.ndarray | None = None  # [n]: which of them, for each training example
    test_group: np.ndarray | None = None
    remark: str = ""  # to be said wherever a result is shown, such as "subset" or "re-made"
    normalise: Literal["constants", "client"] = "constants"
    """By documented constants, or each client by its own statistics."""
    superclass: tuple[int, ...] = ()  # for each class which group of alike classes it is of, if the data say that

    @property
    def classes(self) -> int:
        return len(self.labels)

    def limited(self, count: int, seed: int) -> Dataset:
        """With so many of the training examples, at random, in their order; all if there are fewer."""
        chosen = np.sort(random_state(seed, "limit").permutation(len(self.train))[:count])
        groups = None if self.train_group is None else self.train_group[chosen]
        return replace(self, train=self.train.subset(chosen), train_group=groups)

    def holdings(self) -> Labels:
        """What a partition has to know."""
        nobody = np.zeros(0, dtype=np.int64)
        return Labels(
            self.train.labels.numpy(),
            self.test.labels.numpy(),
            self.classes,
            self.groups,
            nobody if self.train_group is None else self.train_group,
            nobody if self.test_group is None else self.test_group,
        )


@dataclass(frozen=True)
class Source:
    """A dataset by name: called with a folder ("": wherever data are looked for) it gives the dataset."""

    about: str
    load: Callable[[Path], Dataset]

    def __call__(self, root: str) -> Dataset:
        return self.load(folder(root))


def folder(root: str) -> Path:
    """Where data files are looked for."""
    return Path(root or os.environ.get("PROTOFED_DATA") or "~/.cache/protofed").expanduser()


def read_npz(path: Path, *keys: str) -> dict[str, np.ndarray]:
    """The arrays of a file that go by these names; without names all of them."""
    try:
        if path.exists() and not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip archive, or not a whole one")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:  # numpy alone leaves it open
            return {key: stored[key] for key in keys or stored.files}
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as problem:
        said = str(problem).strip("'\"") if isinstance(problem, KeyError) else problem
        wanted = " with " + ", ".join(keys) if keys else ""
        raise UserError(f"{path} cannot be read as an npz{wanted}: {said}. Get the file again.") from problem


def found(name: str, path: Path, published: str) -> Path:
    """A file that must be there."""
    if not path.is_file():
        raise UserError(
            f"{name} is not in {path.parent}: it wants {path.name} (data published at {published}; docs/data.md says "
            "what is in the file). Set data.root or $PROTOFED_DATA to the folder that has it, or use data.name=digits."
        )
    return path


def check_shapes(name: str, x: np.ndarray, y: np.ndarray, shape: tuple[int, ...], classes: int) -> None:
    """Refuse arrays that are not what the dataset has."""
    if x.shape[1:] != shape or y.shape != (len(x),):
        wanted = ", ".join(map(str, ("n", *shape)))
        raise UserError(
            f"{name} has inputs {list(x.shape)} and labels {list(y.shape)}, not [{wanted}] and [n]. Get the file again."
        )
    if not np.issubdtype(y.dtype, np.integer) or y.min(initial=0) < 0 or y.max(initial=0) >= classes:
        raise UserError(f"{name}: its labels are not whole numbers from 0 to {classes - 1}. Get the file again.")


def group_numbers(
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
    """A dataset without a test set of its own: a fifth of each class of each group is held out, always the same."""
    group, y = group.astype(np.int64), y.astype(np.int64)
    held = stratified_share(group * len(labels) + y, 0.2, random_state(name, "split"))
    whole = Examples.of(x, y, **constants)
    train, test = (whole.subset(np.flatnonzero(part)) for part in (~held, held))
    return Dataset(name, train, test, labels, groups, group[~held], group[held], remark, normalise)
