"""Tables and signals: heart disease of four hospitals, movements of thirty people, and your own npz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protofed.data.dataset import Dataset, check_shapes, found, group_numbers, read_npz
from protofed.data.labels import names, numbered
from protofed.errors import UserError
from protofed.examples import Examples

_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def heart_disease(where: Path) -> Dataset:
    """13 columns; disease or none. Missing values are each client's own medians, and so is the scale its own."""
    path = found("heart_disease", where / "heart_disease.npz", "archive.ics.uci.edu/dataset/45/heart+disease")
    tables = read_npz(path, *_HOSPITALS)
    rows = np.concatenate([tables[name] for name in _HOSPITALS])
    group = np.concatenate([np.full(len(tables[name]), number) for number, name in enumerate(_HOSPITALS)])
    check_shapes(str(path), rows, (rows[:, -1] > 0).astype(np.int64), (14,), 2)
    return group_numbers(
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


def uci_har(where: Path) -> Dataset:
    """Windows [9, 128] of accelerometer and gyroscope; a fifth of each activity of each subject is the test set."""
    path = found("uci_har", where / "uci_har.npz", "archive.ics.uci.edu/dataset/240")
    arrays = read_npz(path, "x", "scale", "y", "subject", "activities")
    check_shapes(str(path), arrays["x"], arrays["y"], (9, 128), 6)
    subjects = np.unique(arrays["subject"])
    return group_numbers(
        "uci_har",
        arrays["x"],
        arrays["y"],
        np.searchsorted(subjects, arrays["subject"]),
        tuple(f"subject {number}" for number in subjects),
        tuple(arrays["activities"].tolist()),
        {"scale": float(1 / arrays["scale"])},
        "own split",
    )


def npz(where: Path) -> Dataset:
    """Your own file. `data.root` is the file, or a folder with x.npy, y.npy, ..., which are then mapped into memory."""
    if not where.exists():
        raise UserError(f"There is no {where}. data.root must be your .npz file, or a folder with x.npy and y.npy.")
    arrays = mapped(where) if where.is_dir() else read_npz(where)
    tested = bool({"x_test", "y_test"} & arrays.keys())
    wanted = ["x", "y", *(["x_test", "y_test"] * tested), *(["client_test"] * (tested and "client" in arrays))]
    missing = [key for key in wanted if key not in arrays]
    if missing:
        raise UserError(f"{where} has no {missing[0]}; it has {', '.join(sorted(arrays)) or 'nothing'}.")
    if len(arrays.get("client", arrays["y"])) != len(arrays["y"]):
        raise UserError(f"{where}: `client` has {len(arrays['client'])} entries for {len(arrays['y'])} examples.")
    if arrays["x"].dtype.kind not in "biuf" or arrays["x"].ndim < 2:
        raise UserError(
            f"{where}: x is {list(arrays['x'].shape)} of type {arrays['x'].dtype}; must be numbers [n, ...]."
        )
    parts = [(arrays["x"], arrays["y"]), *([(arrays["x_test"], arrays["y_test"])] if tested else [])]
    given = arrays["classes"].tolist() if "classes" in arrays else None
    labels = names([y for _, y in parts], given)
    constants = {"scale": 255.0} if arrays["x"].dtype == np.uint8 else {}
    made = []
    for x, y in parts:
        numbers = numbered(labels, y, str(where))
        check_shapes(str(where), x, numbers, arrays["x"].shape[1:], len(labels))
        made.append(Examples.of(x, numbers, **constants))
    if tested and "client" in arrays:
        groups = np.unique(np.concatenate([arrays["client"], arrays["client_test"]]))
        train, test = (np.searchsorted(groups, arrays[key]) for key in ("client", "client_test"))
        return Dataset("npz", made[0], made[1], labels, tuple(map(str, groups)), train, test)
    if tested:
        return Dataset("npz", made[0], made[1], labels)
    groups, group = np.unique(arrays.get("client", np.zeros(len(made[0]), np.int64)), return_inverse=True)
    known = tuple(map(str, groups)) if "client" in arrays else ()
    return group_numbers("npz", made[0].x.numpy(), made[0].y.numpy(), group, known, labels, constants, "")


def mapped(where: Path) -> dict[str, np.ndarray]:
    """The arrays of a folder, without reading them."""
    return {path.stem: np.load(path, mmap_mode="c", allow_pickle=False) for path in sorted(where.glob("*.npy"))}
