"""MNIST-M as published: PNG images of 32x32 pixels, and lists of file names with labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protofed.data.dataset import listed_file
from protofed.data.formats.published import (
    Arrays,
    ConvertOptions,
    checked_class_numbers,
    image_stream,
    need_file,
    read_content,
)
from protofed.errors import UserError


def mnist_m(folder: Path, options: ConvertOptions) -> Arrays:
    """mnist_m_train/ and mnist_m_test/ with PNG images, mnist_m_train_labels.txt and mnist_m_test_labels.txt."""
    folder = folder / "mnist_m" if (folder / "mnist_m").is_dir() else folder
    arrays: dict[str, object] = {"classes": np.array([str(digit) for digit in range(10)])}
    for part in ("train", "test"):
        path = need_file(folder, f"mnist_m_{part}_labels.txt")
        rows = [
            line.split() for line in read_content(path).decode("ascii", errors="replace").splitlines() if line.strip()
        ]
        for number, words in enumerate(rows, 1):
            if len(words) != 2 or not words[1].isdecimal():
                raise UserError(f"{path}, line {number}: it must have a file name and a label. Get the file again.")
        labels = np.array([int(label) for _, label in rows], np.int64)
        arrays[f"y_{part}"] = checked_class_numbers(labels, 10, str(path))
        paths = [listed_file(folder / f"mnist_m_{part}", name, str(path)) for name, _ in rows]
        arrays[f"x_{part}"] = image_stream(paths, 32, options.say, last=True)
    return arrays  # type: ignore[return-value]
