"""SVHN's cropped digits (format 2) as published: train_32x32.mat and test_32x32.mat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from protofed.data.formats.published import Arrays, ConvertOptions, checked_class_numbers, need_file
from protofed.errors import UserError


def svhn(folder: Path, options: ConvertOptions) -> Arrays:
    """X [32, 32, 3, n] and y [n, 1], in which the digit 0 has the label 10."""
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        path = need_file(folder, f"{part}_32x32.mat")
        stored = read_matlab(path)
        if missing := [key for key in ("X", "y") if key not in stored]:
            raise UserError(f"{path} has no variable {missing[0]}. Get the file again.")
        x, y = stored["X"], np.asarray(stored["y"]).reshape(-1)
        if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.shape[3] != len(y) or x.dtype != np.uint8:
            raise UserError(
                f"{path}: X has the shape {list(x.shape)} and y {len(y):,} labels; must be bytes [32, 32, 3, n] and n."
            )
        labels = checked_class_numbers(y.astype(np.int64) - 1, 10, str(path))  # 1 to 10
        arrays |= {f"x_{part}": np.ascontiguousarray(np.moveaxis(x, 3, 0)), f"y_{part}": (labels + 1) % 10}
        options.say(f"{part}: {len(y):,} images")
    return {**arrays, "classes": np.array([str(digit) for digit in range(10)])}


def read_matlab(path: Path) -> dict[str, Any]:
    """The variables of a MATLAB file (version 5 to 7.2). Structures become nested arrays."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        return dict(loadmat(path))
    except NotImplementedError as problem:
        raise UserError(f"{path} is a MATLAB 7.3 file, which is not read. Save it with -v7.") from problem
    except (OSError, ValueError, TypeError, KeyError, IndexError, EOFError, MatReadError) as problem:
        raise UserError(f"{path} is not a complete MATLAB file: {problem}. Get the file again.") from problem
