"""The JSON files of LEAF and of FedProx, which follows its format: examples by user, for training and for testing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from protofed.data.dataset import Dataset, check_arrays
from protofed.data.labels import class_names, class_numbers
from protofed.errors import UserError
from protofed.examples import Examples


def leaf(folder: Path) -> Dataset:
    """All files folder/train/*.json and folder/test/*.json; partition `natural` makes a client of each user.

    A file has "users", and for each of them user_data[user]["x"] and ["y"]. The inputs are used as they are.
    """
    train, test = (read_users(folder / part) for part in ("train", "test"))
    users = tuple(dict.fromkeys((*train, *test)))
    labels = class_names([y for part in (train, test) for _, y in part.values()], None)
    first, shape = next((user, x.shape[1:]) for user, (x, _) in train.items())
    for user, x in ((user, x) for part in (train, test) for user, (x, _) in part.items()):
        if x.shape[1:] != shape:
            raise UserError(
                f"leaf: an input of user {user} has the shape {list(x.shape[1:])}, but one of user {first} has "
                f"{list(shape)}. All inputs must have the same shape."
            )
    sets, groups = [], []
    for part, examples in (("train", train), ("test", test)):
        owner = str(folder / part)
        x, y = (np.concatenate([pair[number] for pair in examples.values()]) for number in (0, 1))
        numbers = class_numbers(labels, y, owner)
        check_arrays(owner, x, numbers, shape, len(labels))
        sets.append(Examples.of(x, numbers))
        groups.append(np.repeat([users.index(user) for user in examples], [len(y) for _, y in examples.values()]))
    where = (f"{folder / 'train'}, x", f"{folder / 'test'}, x")
    return Dataset("leaf", sets[0], sets[1], labels, users, groups[0], groups[1], arrays=where)


def _unchanged(x: np.ndarray) -> np.ndarray:
    return x


def _say_nothing(text: str) -> None:
    """Print nothing."""


def read_users(
    folder: Path,
    convert: Callable[[np.ndarray], np.ndarray] = _unchanged,
    say: Callable[[str], None] = _say_nothing,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The inputs [n, ...] and labels [n] of each user that has examples in the files of a folder.

    `convert` changes the inputs of each user. `say` shows progress, file by file.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UserError(
            f"leaf: there is no .json file in {folder}. Give the folder that has train/ and test/, with .json files."
        )
    users: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for path in paths:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            for user in stored["users"]:
                if user in users:
                    raise ValueError(f"user {user} is there twice")
                x, y = _user_arrays(user, stored["user_data"][user])
                if len(y):
                    users[user] = convert(x), y
            say(f"{path.name}: {len(users):,} users so far")
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UserError(
                f"{path} cannot be read as a file of LEAF: {problem!r}. It must have `users` and `user_data`, and "
                "inputs must be numbers."
            ) from problem
    if not users:
        raise UserError(f"leaf: no user in {folder} has an example. Get the files again.")
    return users


def _user_arrays(user: str, stored: Any) -> tuple[np.ndarray, np.ndarray]:
    """A user's inputs and labels. Labels may be whole numbers with a decimal point (FedProx) or names."""
    x, y = np.array(stored["x"], dtype=np.float32), np.array(stored["y"])
    if len(x) != len(y):
        raise ValueError(f"user {user} has {len(x)} inputs and {len(y)} labels")
    if y.dtype.kind == "f":
        if missing := np.count_nonzero(np.isnan(y)):
            raise ValueError(f"user {user} has {missing} labels that are missing (NaN)")
        if not (y == np.floor(y)).all():
            raise ValueError(f"user {user} has a label that is not a whole number")
        y = y.astype(np.int64)
    return x, y
