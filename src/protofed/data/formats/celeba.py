"""CelebA: the original list files, or LEAF's JSON files; both with the folder of aligned images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from protofed.data.dataset import listed_file
from protofed.data.formats.published import Arrays, ConvertOptions, image_stream, need_file, read_content
from protofed.errors import UserError, did_you_mean

_LEAST = 5
"""Celebrities with fewer images are left out, as in LEAF."""
_LEAF_TARGET = "Smiling"
"""The attribute of the labels in LEAF's files."""
_FACE_SIDE = 84
"""The size of LEAF's images."""


def celeba(folder: Path, options: ConvertOptions) -> Arrays:
    """Every celebrity is a client; an attribute, by default Smiling, is the class.

    With LEAF's train/*.json and test/*.json these have the users, labels and split; without them, identity_CelebA.txt
    and list_attr_celeba.txt do, and there is no test set.
    """
    root = folder / "data" if (folder / "data").is_dir() else folder
    if (root / "train").is_dir():
        if options.target != _LEAF_TARGET:
            raise UserError(
                f"--target: got {options.target}, but LEAF's files have the labels of {_LEAF_TARGET} alone. Leave it "
                "out, or give the folder with identity_CelebA.txt and list_attr_celeba.txt."
            )
        parts = {end: _leaf_rows(root / part) for part, end in (("train", ""), ("test", "_test"))}
    else:
        parts = {"": _list_rows(folder, options.target)}
    pictures = _image_folder(folder, root)
    arrays: dict[str, object] = {
        "name": np.array("celeba"),
        "classes": np.array([f"not {options.target}", options.target]),
    }
    for end, rows in parts.items():
        if not rows:
            raise UserError(f"{folder} has no celebrity with {_LEAST} images or more. Give the complete files.")
        side = options.side or _FACE_SIDE
        arrays[f"y{end}"] = np.array([label for _, _, label in rows], np.int64)
        arrays[f"client{end}"] = np.array([user for user, _, _ in rows])
        paths = [listed_file(pictures, image, f"A list in {folder}") for _, image, _ in rows]
        arrays[f"x{end}"] = image_stream(paths, side, options.say)
    return arrays  # type: ignore[return-value]


def _image_folder(*folders: Path) -> Path:
    """The folder img_align_celeba."""
    for folder in folders:
        for inner in ("img_align_celeba", "raw/img_align_celeba", "Img/img_align_celeba"):
            if (folder / inner).is_dir():
                return folder / inner
    raise UserError(f"There is no folder img_align_celeba in {folders[0]}. Unpack img_align_celeba.zip there.")


def _list_rows(folder: Path, target: str) -> list[tuple[str, str, int]]:
    """(identity, image, label) of the images of every celebrity with enough of them, by identity."""
    identities = need_file(folder, "identity_CelebA.txt", "Anno/identity_CelebA.txt", "raw/identity_CelebA.txt")
    attributes = need_file(folder, "list_attr_celeba.txt", "Anno/list_attr_celeba.txt", "raw/list_attr_celeba.txt")
    lines = [line.split() for line in read_content(attributes).decode("ascii", errors="replace").splitlines()]
    names = lines[1] if len(lines) > 1 else []
    if target not in names:
        raise UserError(f"{attributes} has no attribute {target}. {did_you_mean(target, names)}")
    labels: dict[str, int] = {}
    for number, words in enumerate(lines[2:], 3):
        if words and (len(words) != len(names) + 1 or words[1 + names.index(target)] not in ("1", "-1")):
            raise UserError(f"{attributes}, line {number}: it must have an image and {len(names)} values 1 or -1.")
        if words:
            labels[words[0]] = int(words[1 + names.index(target)] == "1")
    images: dict[str, list[str]] = {}
    for number, line in enumerate(read_content(identities).decode("ascii", errors="replace").splitlines(), 1):
        words = line.split()
        if words and (len(words) != 2 or words[0] not in labels):
            raise UserError(f"{identities}, line {number}: it must have an image of {attributes.name} and an identity.")
        if words:
            images.setdefault(words[1], []).append(words[0])
    enough = {user: found for user, found in images.items() if len(found) >= _LEAST}
    return [(user, image, labels[image]) for user in sorted(enough, key=_order) for image in enough[user]]


def _order(user: str) -> tuple[int, str]:
    """Identities in the order of their numbers."""
    return (int(user) if user.isdecimal() else 0, user)


def _leaf_rows(folder: Path) -> list[tuple[str, str, int]]:
    """(user, image, label) from LEAF's JSON files, in which an input is the name of an image."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        try:
            stored = json.loads(read_content(path))
            for user in stored["users"]:
                data = stored["user_data"][user]
                rows += [(str(user), str(x), int(y)) for x, y in zip(data["x"], data["y"], strict=True)]
        except (ValueError, KeyError, TypeError) as problem:
            raise UserError(f"{path} cannot be read as a file of LEAF: {problem!r}. Get the file again.") from problem
    return rows
