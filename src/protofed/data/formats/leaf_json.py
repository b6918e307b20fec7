"""LEAF's JSON files: FEMNIST as images, and any other file of LEAF or FedProx (its MNIST and synthetic data)."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np

from protofed.data.formats.published import Arrays, ConvertOptions, checked_class_numbers
from protofed.data.labels import class_names, class_numbers
from protofed.data.leaf import read_users
from protofed.errors import UserError

_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""The names of FEMNIST's 62 classes, in LEAF's order."""


def femnist_images(folder: Path, options: ConvertOptions) -> Arrays:
    """FEMNIST: inputs of 784 numbers from 0 to 1 become images of bytes [1, 28, 28]; writers become clients."""
    arrays: dict[str, np.ndarray] = {"name": np.array("femnist"), "classes": np.array(list(_CHARACTERS))}
    for path, end in _parts(folder):
        users = read_users(path, _as_bytes, options.say)
        for user, (x, _) in users.items():
            if x.ndim != 2 or x.shape[1] != 784:
                raise UserError(f"{path}: an input of user {user} has {x.shape[1:]} numbers; FEMNIST has 784.")
        y = np.concatenate([labels for _, labels in users.values()])
        arrays |= {
            f"x{end}": np.concatenate([x for x, _ in users.values()]).reshape(-1, 1, 28, 28),
            f"y{end}": checked_class_numbers(y, len(_CHARACTERS), str(path)),
            f"client{end}": np.repeat(list(users), [len(labels) for _, labels in users.values()]),
        }
    return arrays


def leaf_arrays(folder: Path, options: ConvertOptions) -> Arrays:
    """Inputs as they are; users become clients."""
    parts = {end: (path, read_users(path, say=options.say)) for path, end in _parts(folder)}
    labels = class_names([y for _, users in parts.values() for _, y in users.values()], None)
    arrays: dict[str, np.ndarray] = {"name": np.array("leaf"), "classes": np.array(labels)}
    for end, (path, users) in parts.items():
        if len({x.shape[1:] for x, _ in users.values()}) > 1:
            raise UserError(f"{path}: its users have inputs of different shapes. Convert them separately.")
        x, y = (np.concatenate([pair[place] for pair in users.values()]) for place in (0, 1))
        owners = np.repeat(list(users), [len(labels) for _, labels in users.values()])
        arrays |= {f"x{end}": x, f"y{end}": class_numbers(labels, y, str(path)), f"client{end}": owners}
    return arrays


def _as_bytes(x: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1 as bytes, so that all users together need a quarter of the memory."""
    if not np.isfinite(x).all() or x.min(initial=0) < 0 or x.max(initial=0) > 1:
        raise ValueError("inputs must be numbers from 0 to 1")
    return np.asarray(np.round(x * 255), np.uint8)


def _parts(folder: Path) -> list[tuple[Path, str]]:
    """The folders with JSON files: train and test, or one of all data (all_data, or the folder itself)."""
    if (folder / "data").is_dir():
        folder = folder / "data"
    if (folder / "train").is_dir():
        return [(folder / "train", ""), (folder / "test", "_test")]
    return [(folder / "all_data" if (folder / "all_data").is_dir() else folder, "")]
