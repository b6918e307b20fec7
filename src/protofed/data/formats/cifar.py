"""CIFAR-10 and CIFAR-100 as published: the python version (pickles, which are not unpickled) and the binary one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from protofed.data.formats.published import Arrays, ConvertOptions, checked_class_numbers, need_file, read_content
from protofed.data.formats.safe_pickle import read_plain_pickle
from protofed.errors import UserError

_CIFAR_VALUES = 3 * 32 * 32


def cifar10(folder: Path, options: ConvertOptions) -> Arrays:
    """data_batch_1 to 5, test_batch and batches.meta, or the same as .bin and batches.meta.txt."""
    folder = _inside(folder, "cifar-10-batches-py", "cifar-10-batches-bin")
    names = [f"data_batch_{number}" for number in range(1, 6)]
    if (folder / "batches.meta").is_file():
        classes = _texts(_read_batch(folder / "batches.meta"), "label_names", folder / "batches.meta")
        batches = {name: _python_batch(need_file(folder, name), len(classes)) for name in [*names, "test_batch"]}
    else:
        classes = _listed_names(need_file(folder, "batches.meta.txt", "batches.meta"))
        batches = {
            name: _binary_batch(need_file(folder, f"{name}.bin"), [len(classes)]) for name in [*names, "test_batch"]
        }
    train = [batches[name] for name in names]
    return {
        "x_train": np.concatenate([x for x, _ in train]),
        "y_train": np.concatenate([y[-1] for _, y in train]),
        "x_test": batches["test_batch"][0],
        "y_test": batches["test_batch"][1][-1],
        "classes": np.array(classes),
    }


def cifar100(folder: Path, options: ConvertOptions) -> Arrays:
    """train, test and meta, or train.bin, test.bin and the lists of names. Labels are the 100 fine ones."""
    folder = _inside(folder, "cifar-100-python", "cifar-100-binary")
    if (folder / "meta").is_file():
        meta = _read_batch(folder / "meta")
        fine, coarse = (_texts(meta, f"{kind}_label_names", folder / "meta") for kind in ("fine", "coarse"))
        parts = [_python_batch(need_file(folder, name), len(fine), len(coarse)) for name in ("train", "test")]
    else:
        fine, coarse = (
            _listed_names(need_file(folder, f"{kind}_label_names.txt", "meta")) for kind in ("fine", "coarse")
        )
        parts = [
            _binary_batch(need_file(folder, f"{name}.bin"), [len(coarse), len(fine)]) for name in ("train", "test")
        ]
    (x_train, (coarse_train, y_train)), (x_test, (_, y_test)) = parts
    fine_to_coarse = np.zeros(len(fine), np.int64)
    fine_to_coarse[y_train] = coarse_train
    return {
        "x_train": x_train,
        "y_train": y_train,
        "x_test": x_test,
        "y_test": y_test,
        "classes": np.array(fine),
        "fine_to_coarse": fine_to_coarse,
        "superclasses": np.array(coarse),
    }


def _inside(folder: Path, *names: str) -> Path:
    """The folder that was published inside of this one, or this one."""
    return next((folder / name for name in names if (folder / name).is_dir()), folder)


def _read_batch(path: Path) -> dict[str, Any]:
    """The dictionary of a batch, with text as keys (the files have bytes)."""
    stored = read_plain_pickle(read_content(path), str(path))
    if not isinstance(stored, dict):
        raise UserError(f"{path} holds a {type(stored).__name__} instead of a dictionary. Get the file again.")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in stored.items()}


def _texts(stored: dict[str, Any], key: str, path: Path) -> list[str]:
    """A list of names."""
    if not isinstance(stored.get(key), list):
        raise UserError(f"{path} has no list {key}; it has {', '.join(stored)}. Get the file again.")
    return [name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in stored[key]]


def _python_batch(path: Path, classes: int, superclasses: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    """Images [n, 32, 32, 3] and labels: [labels], or with superclasses [coarse, fine]."""
    stored = _read_batch(path)
    wanted = {"coarse_labels": superclasses, "fine_labels": classes} if superclasses else {"labels": classes}
    if missing := [key for key in ("data", *wanted) if key not in stored]:
        raise UserError(f"{path} has no {missing[0]}; it has {', '.join(stored)}. Get the file again.")
    labels = [checked_class_numbers(stored[key], number, str(path)) for key, number in wanted.items()]
    return _images(stored["data"], len(labels[0]), path), labels


def _binary_batch(path: Path, classes: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Images [n, 32, 32, 3] and the labels that precede each image, one byte each."""
    content = np.frombuffer(read_content(path), np.uint8)
    width = len(classes) + _CIFAR_VALUES
    if not len(content) or len(content) % width:
        raise UserError(
            f"{path} is not complete: it has {len(content):,} bytes, which is not a multiple of {width:,}. "
            "Get the file again."
        )
    rows = content.reshape(-1, width)
    labels = [checked_class_numbers(rows[:, place], number, str(path)) for place, number in enumerate(classes)]
    return _images(rows[:, len(classes) :], len(rows), path), labels


def _images(data: Any, count: int, path: Path) -> np.ndarray:
    """[n, 3072], the red, green and blue plane of each image -> [n, 32, 32, 3]."""
    if not isinstance(data, np.ndarray) or data.shape != (count, _CIFAR_VALUES):
        shape = list(getattr(data, "shape", []))
        raise UserError(f"{path}: its data have the shape {shape} for {count:,} labels; must be [n, {_CIFAR_VALUES}].")
    return np.ascontiguousarray(np.moveaxis(data.reshape(-1, 3, 32, 32), 1, 3))


def _listed_names(path: Path) -> list[str]:
    """The names in a text file, one per line."""
    return read_content(path).decode("utf-8", errors="replace").split()
