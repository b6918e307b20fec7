"""Messages as Flower's records: named tensors (ArrayRecord) and figures (ConfigRecord). Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

TENSORS = "tensors"
FIGURES = "figures"
MOST_BYTES = 2**31
"""The most bytes of the tensors of one message."""
_NUMPY = "numpy.ndarray"
"""Flower's name of the format in which an array is stored: a .npy file."""
_NPY_START = b"\x93NUMPY"
"""The first bytes of a .npy file. `numpy.load` would read other formats, too."""


def to_records(tensors: Mapping[str, Tensor], figures: Mapping[str, Any]) -> RecordDict:
    """The content of a Flower message: tensors by name, and figures that JSON can hold."""
    content = RecordDict({FIGURES: ConfigRecord({"json": json.dumps(dict(figures))})})
    if tensors:
        content[TENSORS] = ArrayRecord({f"/{name}": Array(_as_numpy(value)) for name, value in tensors.items()})
    return content


def _as_numpy(value: Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.detach().cpu().numpy()).reshape(value.shape)  # the former makes 0-d arrays 1-d


def record_figures(content: RecordDict) -> dict[str, Any]:
    """The figures of a message; an error (ValueError) if it has none."""
    record = content.get(FIGURES)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    try:
        figures = json.loads(text) if isinstance(text, str) else None
    except RecursionError:
        raise ValueError("its figures are nested too deeply") from None
    if not isinstance(figures, dict):
        raise ValueError("the message has no figures")
    return figures


def record_tensors(content: RecordDict) -> dict[str, Tensor]:
    """The tensors of a message; an error (ValueError) if one of them is not a stored array of numbers."""
    record = content.get(TENSORS, ArrayRecord())
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"its tensors are a {type(record).__name__}")
    if (size := sum(len(array.data) for array in record.values())) > MOST_BYTES:
        raise ValueError(f"its tensors have {size:,} bytes; at most {MOST_BYTES:,} are read")
    return {name.removeprefix("/"): _as_tensor(name, array) for name, array in record.items()}


def _as_tensor(name: str, array: Array) -> Tensor:
    """A tensor of its own memory from a stored array, which another machine has written."""
    try:
        if array.stype != _NUMPY:
            raise ValueError(f"it is stored as {array.stype}")
        if not array.data.startswith(_NPY_START):
            raise ValueError("it is not a .npy file")
        _check_length(array.data)
        values = np.load(BytesIO(array.data), allow_pickle=False)
        if values.dtype.kind not in "biuf":
            raise ValueError(f"it is of type {values.dtype}")
        return torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("=")))
    except Exception as problem:  # numpy documents no list of the errors that a wrong file causes
        raise ValueError(
            f"the tensor {name.removeprefix('/') or '(without a name)'} cannot be read: {problem}"
        ) from None


def _check_length(data: bytes) -> None:
    """Raise an error if a .npy file says that it has more numbers than it has, for which memory would be reserved."""
    file = BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # about a header of Python 2, which nobody should send
        shape, _, dtype = read(file)
    if math.prod(shape) * dtype.itemsize > len(data) - file.tell():
        raise ValueError(f"it has {len(data) - file.tell()} bytes, too few for the shape {shape}")


def content_hash(tensors: Mapping[str, Tensor], figures: Mapping[str, Any]) -> str:
    """A hash of the names, types, shapes and values of tensors, and of figures. It does not depend on their order."""
    digest = hashlib.sha256(json.dumps(dict(figures), sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(_as_numpy(value).tobytes())
    return digest.hexdigest()
