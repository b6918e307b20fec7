"""Reading and writing npz files: without pickle, with a message for each kind of mistake, and with checksums."""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np

from protofed.errors import UserError

_CHECKSUMS = "sha256"
"""The array that has the checksums of the others, as text: "x 0123abcd..."."""
_FIRST_BYTES = {
    b"\x93NUMPY": "a .npy file, which has a single array",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"ARROW1": "a Feather file",
    b"\x1f\x8b": "a gzip archive",
    b"MATLAB": "a MATLAB file",
    b"\x80": "a pickle file, which is never read because it can run code",
}


def read_npz(path: Path, *keys: str) -> dict[str, np.ndarray]:
    """The arrays of an npz file with these names; without names, all of them. Checksums are verified if it has any."""
    _must_be_npz(path)
    key = ""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:  # np.load(path) may leave it open
            names = [name for name in stored.files if name != _CHECKSUMS]
            if missing := [key for key in keys if key not in names]:
                raise UserError(f"{path} has no array {missing[0]}; it has {', '.join(names) or 'none'}. Add it.")
            arrays = {}
            for key in keys or names:
                arrays[key] = stored[key]
                if not isinstance(arrays[key], np.ndarray):  # numpy returns the bytes of what is not an array
                    raise ValueError(f"{key} is not an array")
            checksums = dict(line.split() for line in stored[_CHECKSUMS].tolist()) if _CHECKSUMS in stored.files else {}
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        AttributeError,
        SyntaxError,
        MemoryError,
        OverflowError,
        RuntimeError,
        TokenError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as problem:
        if "allow_pickle" in str(problem):
            raise UserError(
                f"{path}: the array {key} holds Python objects, which are not read because that could run code. Save "
                f"numbers or text instead, for example {key}.astype(str) or {key}.astype(float)."
            ) from problem
        raise UserError(f"{path} is damaged: {problem}. Get the file again, or write it again.") from problem
    for name, array in arrays.items():
        if name in checksums and _digest(array) != checksums[name]:
            raise UserError(f"{path} is damaged: {name} does not have its checksum. Convert the data again.")
    return arrays


class OwnArrays(NamedTuple):
    """The arrays of a person's own file: inputs with labels or masks, and a test set if the file has one."""

    data: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray] | None


def own_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> OwnArrays:
    """x and y of the file's arrays, or x and mask; x_test and y_test (mask_test) if there is one of them.

    An error if an array is missing.
    """
    y = "mask" if "mask" in arrays else "y"
    test = ("x_test", f"{y}_test") if arrays.keys() & {"x_test", f"{y}_test"} else ()
    for key in ("x", y, *test):
        if key not in arrays:
            raise UserError(f"{path} has no array {key}; it has {', '.join(arrays) or 'none'}. Add it.")
    return OwnArrays((arrays["x"], arrays[y]), (arrays["x_test"], arrays[f"{y}_test"]) if test else None)


def _must_be_npz(path: Path) -> None:
    """Raise an error that says what is wrong if this is no npz file at all."""
    try:
        with path.open("rb") as file:
            start = file.read(64)
        is_complete = zipfile.is_zipfile(path)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. Give the name of an .npz file.") from None
    except PermissionError:
        raise UserError(f"{path} cannot be opened: permission denied. Change its permissions, or copy it.") from None
    except OSError as problem:
        raise UserError(f"{path} cannot be opened: {problem.strerror or problem}. Give an .npz file.") from problem
    if is_complete:
        return
    if start.startswith(b"PK"):
        raise UserError(f"{path} is damaged: its end is missing. Get the file again, or write it again.")
    kind = next((kind for first, kind in _FIRST_BYTES.items() if start.startswith(first)), None)
    if kind is None:
        is_text = bool(start) and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start)
        kind = "a text file, such as CSV" if is_text else "empty" if not start else "of an unknown format"
    raise UserError(
        f"{path} is not an .npz file: it is {kind}. Write one with numpy.savez(file, x=..., y=...). docs/data.md lists "
        "the formats that are read."
    )


@dataclass(frozen=True)
class Stream:
    """An array that is made piece by piece while it is written: consecutive rows, as arrays [m, ...] of this type."""

    shape: tuple[int, ...]
    dtype: Any
    pieces: Iterable[np.ndarray]


def write_npz(path: Path, arrays: Mapping[str, np.ndarray | Stream]) -> None:
    """Write arrays and their checksums to an npz file. A `Stream` is never in memory as one array."""
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            stream = array if isinstance(array, Stream) else Stream(array.shape, array.dtype, [array])
            digest, rows = hashlib.sha256(_header(stream.shape, stream.dtype)), 0
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_2_0(
                    file,
                    {
                        "descr": np.lib.format.dtype_to_descr(np.dtype(stream.dtype)),
                        "fortran_order": False,
                        "shape": stream.shape,
                    },
                )
                for piece in stream.pieces:
                    content = np.ascontiguousarray(piece, dtype=stream.dtype).tobytes()
                    digest.update(content)
                    file.write(content)
                    rows += len(piece) if piece.ndim else 0
            if stream.shape and rows != stream.shape[0]:
                raise ValueError(f"{name} has {rows} rows instead of {stream.shape[0]}")
            lines.append(f"{name} {digest.hexdigest()}")
        with archive.open(f"{_CHECKSUMS}.npy", "w") as file:
            np.lib.format.write_array(file, np.array(lines), allow_pickle=False)


def _header(shape: tuple[int, ...], dtype: Any) -> bytes:
    return repr((tuple(int(size) for size in shape), np.dtype(dtype).str)).encode()


def _digest(array: np.ndarray) -> str:
    """The checksum of an array: of its shape, its type and its content."""
    digest = hashlib.sha256(_header(array.shape, array.dtype))
    for start in range(0, len(array) if array.ndim else 1, 4096):
        piece = array[start : start + 4096] if array.ndim else array
        digest.update(np.ascontiguousarray(piece).tobytes())
    return digest.hexdigest()
