"""Tables and signals: heart disease in four hospitals, movements of thirty people, and a user's own npz file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from protofed.data.dataset import Dataset, check_arrays, data_folder, require_file, split_off_test_set
from protofed.data.labels import checked_labels, class_names, class_numbers
from protofed.data.masks import main_classes, mask_classes, with_masks
from protofed.data.npz_files import read_npz
from protofed.errors import UserError
from protofed.examples import Examples

_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def heart_disease(folder: Path) -> Dataset:
    """13 columns; the classes are none and disease.

    Each client normalises by its own statistics and replaces missing values by its own medians.
    """
    path = require_file("heart_disease", folder / "heart_disease.npz", "archive.ics.uci.edu/dataset/45/heart+disease")
    tables = read_npz(path, *_HOSPITALS)
    rows = np.concatenate([tables[name] for name in _HOSPITALS])
    group = np.concatenate([np.full(len(tables[name]), number) for number, name in enumerate(_HOSPITALS)])
    check_arrays(str(path), rows, (rows[:, -1] > 0).astype(np.int64), (14,), 2)
    return split_off_test_set(
        "heart_disease",
        rows[:, :-1].astype(np.float32),
        rows[:, -1] > 0,
        group,
        _HOSPITALS,
        ("none", "disease"),
        {},
        "own split",
        normalise="client",
    )


def uci_har(folder: Path) -> Dataset:
    """Windows [9, 128] of accelerometer and gyroscope. The test set is a fifth of each activity of each subject."""
    path = require_file("uci_har", folder / "uci_har.npz", "archive.ics.uci.edu/dataset/240")
    arrays = read_npz(path, "x", "scale", "y", "subject", "activities")
    check_arrays(str(path), arrays["x"], arrays["y"], (9, 128), 6)
    subjects = np.unique(arrays["subject"])
    return split_off_test_set(
        "uci_har",
        arrays["x"],
        arrays["y"],
        np.searchsorted(subjects, arrays["subject"]),
        tuple(f"subject {number}" for number in subjects),
        tuple(arrays["activities"].tolist()),
        {"scale": float(1 / arrays["scale"])},
        "own split",
    )


def npz(path: Path) -> Dataset:
    """A user's own data. `data.root` is an npz file, or a folder with x.npy, y.npy, ..., which are memory-mapped.

    Without x_test and y_test, a fifth of each class of each client becomes the test set. With `mask`, every pixel has a
    class; y, by which images are divided among clients, may then be left out: it is the most frequent class of the
    image other than 0.
    """
    if path == data_folder("") and not (path / "x.npy").exists():
        raise UserError(
            f"data.root: there is no x.npy in {path}. Set data.root to your .npz file, or to a folder with x.npy and "
            "y.npy."
        )
    if not path.exists():
        raise UserError(f"data.root: there is no {path}; must be your .npz file, or a folder with x.npy and y.npy.")
    return dataset_of_arrays(memory_mapped(path) if path.is_dir() else read_npz(path), str(path), "npz")


def dataset_of_arrays(arrays: dict[str, np.ndarray], path: str, name: str = "") -> Dataset:
    """The dataset of arrays with the names that `npz` describes. `path` is for messages, `name` by default as well."""
    name = str(arrays["name"]) if "name" in arrays else name or path
    has_test, has_clients = bool({"x_test", "y_test"} & arrays.keys()), "client" in arrays
    has_masks, has_labels = "mask" in arrays, "y" in arrays
    endings = ("", "_test") if has_test else ("",)
    if has_masks and not has_labels:
        arrays |= {f"y{end}": main_classes(arrays[f"mask{end}"]) for end in endings if f"mask{end}" in arrays}
    required = [f"{key}{end}" for end in endings for key in ("x", "y", *(["mask"] if has_masks else []))]
    if has_test and has_clients:
        required.append("client_test")
    missing = [key for key in required if key not in arrays]
    if missing:
        raise UserError(f"{path} has no array {missing[0]}; it has {', '.join(sorted(arrays)) or 'none'}. Add it.")
    arrays |= {f"y{end}": checked_labels(arrays[f"y{end}"], f"{path}, y{end}") for end in endings}
    for end in endings if has_clients else ():
        if arrays[f"client{end}"].shape != (len(arrays[f"y{end}"]),):
            raise UserError(
                f"{path}: `client{end}` has {len(np.atleast_1d(arrays[f'client{end}']))} entries for "
                f"{len(arrays[f'y{end}'])} examples. Give one entry per example."
            )
    for key in (f"x{end}" for end in endings):
        if arrays[key].dtype.kind not in "biuf" or arrays[key].ndim < 2:
            raise UserError(
                f"{path}: {key} has shape {list(arrays[key].shape)} and type {arrays[key].dtype}; "
                "must be numbers of shape [n, ...]."
            )
    if has_test and (arrays["x"].dtype == np.uint8) != (arrays["x_test"].dtype == np.uint8):
        raise UserError(
            f"{path}: x is of type {arrays['x'].dtype} and x_test of type {arrays['x_test'].dtype}, but bytes are "
            "divided by 255 and other numbers are not. Give both the same type."
        )
    classes = arrays["classes"].tolist() if "classes" in arrays else None
    ys = [arrays[f"y{end}"] for end in endings]
    labels = class_names(ys, None if has_masks and has_labels else classes)
    constants: dict[str, Any] = {"scale": 255.0} if arrays["x"].dtype == np.uint8 else {}
    parts = []
    for end, y in zip(endings, ys, strict=True):
        numbers = class_numbers(labels, y, path)
        owner = f"{path}, x{end} and y{end}" if has_test else path
        check_arrays(owner, arrays[f"x{end}"], numbers, arrays["x"].shape[1:], len(labels))
        part = Examples.of(arrays[f"x{end}"], numbers, **constants)
        parts.append(with_masks(part, arrays[f"mask{end}"], path) if has_masks else part)
    if has_test and has_clients:
        groups = np.unique(np.concatenate([arrays["client"], arrays["client_test"]]))
        train, test = (np.searchsorted(groups, arrays[key]) for key in ("client", "client_test"))
        data = Dataset(name, parts[0], parts[1], labels, tuple(map(str, groups)), train, test)
    elif has_test:
        data = Dataset(name, parts[0], parts[1], labels)
    else:
        groups, group = np.unique(arrays.get("client", np.zeros(len(parts[0]), np.int64)), return_inverse=True)
        names = tuple(map(str, groups)) if has_clients else ()
        mask = {"mask": arrays["mask"]} if has_masks else {}
        x, y = parts[0].x.numpy(), parts[0].y.numpy()
        data = split_off_test_set(name, x, y, group, names, labels, constants | mask, "")
    data = replace(data, arrays=(f"{path}, x", f"{path}, x_test" if has_test else f"{path}, x"))
    if not has_masks:
        return data
    masks = [arrays[f"mask{end}"] for end in endings]
    return replace(data, labels=mask_classes(masks, classes, path), image_labels=labels)


def no_dataset(path: Path) -> Dataset:
    """Tables of clients are not one dataset: their columns may differ. `data.table` reads them."""
    raise UserError(
        "Tables need data.target, the column with the labels, and are read by client. Give an experiment file with "
        'data.name = "table": see docs/tables.md.'
    )


def memory_mapped(folder: Path) -> dict[str, np.ndarray]:
    """The arrays in the .npy files of a folder, memory-mapped instead of read."""
    arrays = {}
    for path in sorted(folder.glob("*.npy")):
        try:
            arrays[path.stem] = np.load(path, mmap_mode="c", allow_pickle=False)
        except PermissionError:
            raise UserError(
                f"{path} cannot be opened: permission denied. Change its permissions, or copy it."
            ) from None
        except (OSError, ValueError, EOFError) as problem:
            reason = "it holds Python objects" if "object" in str(problem) else str(problem)
            raise UserError(f"{path} cannot be read: {reason}. Write it again with numpy.save.") from problem
    return arrays
