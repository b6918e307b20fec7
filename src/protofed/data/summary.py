"""A dataset in figures and in words, for `protofed data info`."""

from __future__ import annotations

from typing import Any

import numpy as np

from protofed.data.dataset import Dataset


def summarise(data: Dataset) -> dict[str, Any]:
    """Shapes, sizes, labels, and where the examples come from."""
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
        "histogram": {name: part.labels.bincount(minlength=data.classes).tolist() for name, part in parts.items()},
        "groups": groups,
    }


def summary_text(data: Dataset) -> str:
    """The same for people; the bars are the training examples of each class."""
    about = summarise(data)
    shape = " x ".join(map(str, about["input"]["shape"]))
    how = "(x / scale - mean) / std with " + ", ".join(
        f"{key} {about['input'][key]}" for key in ("scale", "mean", "std")
    )
    lines = [
        f"{data.name}{f' ({data.remark})' if data.remark else ''}: {about['sizes']['train']:,} training and "
        f"{about['sizes']['test']:,} test examples of {data.classes} classes",
        f"inputs {shape}, stored as {about['type']}",
        f"normalised: {how if data.normalise == 'constants' else 'each client by its own means and deviations'}",
        "",
    ]
    most = max(about["histogram"]["train"])
    wide = max(len(str(label)) for label in data.labels)
    for label, train, test in zip(data.labels, about["histogram"]["train"], about["histogram"]["test"], strict=True):
        lines.append(f"{label!s:>{wide}}  {train:>6,} / {test:>6,}  {'█' * round(30 * train / most)}")
    if data.groups:
        told = ", ".join(f"{name} {sizes['train']:,}/{sizes['test']:,}" for name, sizes in about["groups"].items())
        lines += ["", f"from {len(data.groups)} places (partitions by_domain, natural): {told}"]
    return "\n".join(lines)
