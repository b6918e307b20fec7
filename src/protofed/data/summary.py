"""Summaries of a dataset and of the sizes of clients, for `protofed data info` and `protofed data show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from protofed.data.dataset import Dataset
from protofed.data.finite import count_missing


def summarise(data: Dataset) -> dict[str, Any]:
    """Shape, type and normalisation of the inputs; sizes and labels; examples per class and per group."""
    parts = {"train": data.train, "test": data.test}
    groups = {
        name: {
            "train": int(np.count_nonzero(data.train_group == number)),
            "test": int(np.count_nonzero(data.test_group == number)),
        }
        for number, name in enumerate(data.groups)
    }
    return {
        "name": data.name,
        "remark": data.remark,
        "input": data.train.input,
        "type": str(data.train.x.dtype).removeprefix("torch."),
        "normalise": data.normalise,
        "classes": data.classes,
        "labels": list(data.labels),
        "sizes": {name: len(part) for name, part in parts.items()},
        "image_labels": list(data.image_labels),
        "histogram": {
            name: part.labels.bincount(minlength=len(data.image_labels or data.labels)).tolist()
            for name, part in parts.items()
        },
        "groups": groups,
    }


def summary_text(data: Dataset) -> str:
    """The summary as text. The bars show the number of training examples of each class."""
    about = summarise(data)
    shape = " x ".join(map(str, about["input"]["shape"]))
    if data.normalise == "constants":
        constants = ", ".join(f"{key} {about['input'][key]}" for key in ("scale", "mean", "std"))
        how = f"(x / scale - mean) / std with {constants}"
    else:
        how = "by each client's own means and standard deviations"
    lines = [
        f"{data.name}{f' ({data.remark})' if data.remark else ''}: {about['sizes']['train']:,} training and "
        f"{about['sizes']['test']:,} test examples of {data.classes} classes",
        f"inputs {shape}, stored as {about['type']}"
        + ("" if data.train.mask is None else f"; every pixel has a class: {', '.join(map(str, data.labels))}"),
        f"normalised: {how}",
        *_missing_lines(data),
        "",
    ]
    largest = max(about["histogram"]["train"])
    labels = data.image_labels or data.labels
    width = max(len(str(label)) for label in labels)
    for label, train, test in zip(labels, about["histogram"]["train"], about["histogram"]["test"], strict=True):
        lines.append(f"{label!s:>{width}}  {train:>6,} / {test:>6,}  {'█' * round(30 * train / largest)}")
    if data.groups:
        sizes = ", ".join(f"{name} {size['train']:,}/{size['test']:,}" for name, size in about["groups"].items())
        lines += [
            "",
            f"{len(data.groups)} groups (for partitions by_domain and natural), training/test examples: {sizes}",
        ]
    return "\n".join(lines)


def _missing_lines(data: Dataset) -> list[str]:
    """How many values are missing, and what fills them in; no line if there are none."""
    arrays = {id(part.x): part.x.numpy() for part in (data.train, data.test)}.values()
    missing, total = sum(map(count_missing, arrays)), sum(array.size for array in arrays)
    if not missing:
        return []
    filled = "replaced by each client's median" if data.normalise == "client" else "data.normalise=client fills them in"
    return [f"missing values (NaN): {missing:,} of {total:,}; {filled}"]


def size_statistics(sizes: Sequence[int]) -> dict[str, float]:
    """Clients, examples, and the smallest, largest, mean and population standard deviation of the clients' sizes.

    >>> size_statistics([10, 30])
    {'clients': 2, 'examples': 40, 'smallest': 10, 'largest': 30, 'mean': 20.0, 'std': 10.0}
    """
    return {
        "clients": len(sizes),
        "examples": sum(sizes),
        "smallest": min(sizes),
        "largest": max(sizes),
        "mean": float(np.mean(sizes)),
        "std": float(np.std(sizes)),
    }
