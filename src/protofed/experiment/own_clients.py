"""The forms in which a client's data can be given to a `Federation`, as pairs of arrays or as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from protofed.data.hugging_face import channels_first, column_pair, hugging_face_splits, is_hugging_face
from protofed.data.table.client_tables import ClientTable, TableOptions, client_tables
from protofed.data.table.files import is_table, read_table
from protofed.errors import UserError, did_you_mean


def is_frame(data: Any) -> bool:
    """Whether the data are a DataFrame."""
    return hasattr(data, "columns") and hasattr(data, "iloc")


def named_clients(data: Any, names: Sequence[str] | None) -> tuple[list[Any], tuple[str, ...]]:
    """The clients' data, and their names: those given, or the keys of a dict; () if there are none."""
    if isinstance(data, Mapping):
        if names is not None:
            raise UserError("names: got names, but data is a dict, which has the names already. Leave names out.")
        names, data = list(data), list(data.values())
    data = list(data)
    words = tuple(map(str, names or ()))
    if names is not None and len(words) != len(data):
        raise UserError(f"names: got {len(words)} for {len(data)} clients. Give one name per client.")
    if repeated := [name for name in words if words.count(name) > 1]:
        raise UserError(f"names: got {repeated[0]!r} more than once. Give every client a name of its own.")
    if numbers := [name for name in words if name.isdecimal()]:
        raise UserError(f"names: got {numbers[0]!r}; a name must not be a number, because clients have numbers, too.")
    return data, words


def unpacked(data: Any, where: str, inputs: str, target: str) -> tuple[Any, Any]:
    """A client's data, as a pair (x, y) or a DataFrame, and its test set if the data have one.

    Accepts pairs, DataFrames, table files, torch datasets and datasets of Hugging Face.
    """
    if isinstance(data, torch_data.Dataset):
        return _torch_pair(data, where, inputs, target), None
    if is_hugging_face(data):
        if not target:
            raise UserError(f"{where}: a dataset with columns needs target, the name of the column with the labels.")
        splits = hugging_face_splits(data)
        if "train" not in splits:
            raise UserError(f"{where}: it has the splits {', '.join(splits)}, but no train. Give one of them.")
        chosen = [splits.get(name) for name in ("train", "test")]
        if inputs:
            train, test = (None if part is None else column_pair(part, inputs, target, where) for part in chosen)
            return train, test
        return chosen[0], chosen[1]
    if isinstance(data, str | Path) and is_table(Path(data)):
        return read_table(Path(data)), None
    return data, None


def _torch_pair(dataset: Any, where: str, inputs: str, target: str) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and labels of a torch dataset, whose items are (x, y), or dicts with these columns."""
    if not hasattr(dataset, "__len__"):
        raise UserError(f"{where}: a dataset without a length cannot be divided into batches. Give one that has it.")
    rows = [dataset[position] for position in range(len(dataset))]
    if rows and isinstance(rows[0], Mapping):
        for key, name in (("inputs", inputs), ("target", target)):
            if name not in rows[0]:
                known = did_you_mean(name, map(str, rows[0]))
                raise UserError(f"{where}: {key} must be the name of a column of the dataset; got {name!r}. {known}")
        rows = [(row[inputs], row[target]) for row in rows]
    if any(not isinstance(row, tuple | list) or len(row) != 2 for row in rows):
        raise UserError(f"{where}: the items of a torch dataset must be pairs (x, y), or dicts with columns.")
    x = [_input_array(value) for value, _ in rows]
    if len({value.shape for value in x}) > 1:
        raise UserError(f"{where}: its inputs have different shapes, such as {x[0].shape}. Resize them.")
    return (np.stack(x) if x else np.zeros(0)), np.array([_label_value(label) for _, label in rows])


def _input_array(value: Any) -> np.ndarray:
    """One input as an array; an image of Pillow with its channels first."""
    if hasattr(value, "getbands"):
        return channels_first(value)
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _label_value(label: Any) -> Any:
    return label.item() if isinstance(label, torch.Tensor) else label


def given_tables(
    frames: Sequence[Any], tests: Sequence[Any] | None, names: Sequence[str], target: str, more: Mapping[str, Any]
) -> tuple[list[ClientTable], TableOptions]:
    """The clients' tables from DataFrames. `more`: further options of tables, such as drop and scaling."""
    known = [field.name for field in fields(TableOptions) if field.name not in ("target", "missing", "client")]
    if unknown := [name for name in more if name not in known]:
        raise UserError(f"Federation has no argument {unknown[0]!r}. {did_you_mean(unknown[0], known)}")
    if not target:
        raise UserError('target: DataFrames need the name of the column with the labels, as target="diagnosis".')
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in more.items()}
    options = TableOptions(target, **given)
    if tests is not None:
        frames = [_marked(frame, test) for frame, test in zip(frames, tests, strict=True)]
        options = replace(options, test=_TEST_ROWS)
    pairs = {name: (f'data["{name}"]', frame.reset_index(drop=True)) for name, frame in zip(names, frames, strict=True)}
    return client_tables(pairs, options), options


_TEST_ROWS = "protofed test row"
"""The name of a column that is added if test rows are given in DataFrames of their own."""


def _marked(train: Any, test: Any | None) -> Any:
    """The rows of two DataFrames, with a column that says which are test rows."""
    import pandas

    tested = train[:0] if test is None else test
    return pandas.concat([train.assign(**{_TEST_ROWS: "train"}), tested.assign(**{_TEST_ROWS: "test"})])
