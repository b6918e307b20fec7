"""The tables of all clients: from a folder of files, from one file with a column of clients, or from DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from protofed.data.table.columns import Column, ColumnKind, check_kinds, find_columns, with_floats
from protofed.data.table.files import SUFFIXES, read_table, require_pandas, tables_in
from protofed.data.table.recipe import Scaling, texts_of
from protofed.errors import UserError, did_you_mean

_MOST_TARGETS = 100
"""A target with more different values than this is taken for a number that is to be predicted."""


@dataclass(frozen=True)
class TableOptions:
    """What an experiment says about its tables; see `DataSection` for the meaning of each."""

    target: str
    client: str = ""
    test: str = ""
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    scaling: Scaling = "client"
    min_classes: int = 2


class ClientTable(NamedTuple):
    """One client's rows."""

    name: str
    origin: str  # begins the error messages, such as the name of the file
    frame: Any  # the DataFrame, with the columns that are used only
    labels: np.ndarray  # [n]: whole numbers or names
    is_test: np.ndarray | None  # [n]: whether a row is for testing only; None: nothing says so
    columns: dict[str, Column]

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        return {name: column.kind for name, column in self.columns.items()}


def read_frames(root: str, options: TableOptions) -> dict[str, tuple[str, Any]]:
    """The (origin, DataFrame) of each client by its name: of each file of a folder, or of each client of a file."""
    path = Path(root).expanduser()
    if not root or not path.exists():
        got = f"there is no {path}" if root else "it is empty"
        raise UserError(f"data.root: {got}; must be a folder with one table per client, or one table.")
    if path.is_dir():
        if options.client:
            raise UserError(
                f'data.client: got "{options.client}", but {path} is a folder, where each file is a client. Leave '
                "data.client out."
            )
        files = tables_in(path)
        if not files:
            raise UserError(f"{path} has no tables ({', '.join(SUFFIXES)}). Set data.root to the folder that has them.")
        return {
            name: (file.name, read_table(file, options.missing, options.categories)) for name, file in files.items()
        }
    if not options.client:
        raise UserError(
            f"data.client: {path} is one table, so a column must say which client each row belongs to. Give the name "
            "of that column, or set data.root to a folder with one table per client."
        )
    frame = read_table(path, options.missing, (*options.categories, options.client))
    names = texts_of(_named_column(frame, "data.client", options.client, path.name))
    if missing := int(frame[options.client].isna().sum()):
        raise UserError(f'{path.name}: {missing:,} rows have no value in the column "{options.client}". Fill them in.')
    frame = frame.drop(columns=options.client)
    groups = frame.groupby(names, sort=True)
    return {name: (f"{path.name}, client {name}", _own_columns(part, options)) for name, part in groups}


def _own_columns(frame: Any, options: TableOptions) -> Any:
    """A client's rows of a table without the columns in which they have no value; target and test column stay."""
    is_named = frame.columns.isin((options.target, options.test))
    return frame.loc[:, is_named | frame.notna().any().to_numpy()]


def client_tables(frames: Mapping[str, tuple[str, Any]], options: TableOptions) -> list[ClientTable]:
    """The rows of every client, with checked columns and labels. `frames`: (origin, DataFrame) by client name."""
    require_pandas()
    tables = [client_table(name, origin, frame, options) for name, (origin, frame) in frames.items()]
    everywhere = {name for table in tables for name in table.frame.columns}
    for key, names in (("drop", options.drop), ("categories", options.categories)):
        for word in names:
            column = word.rpartition(":")[2]
            if not any(column in frame.columns for _, frame in frames.values()):
                raise UserError(f'data.{key}: no table has a column "{column}". {did_you_mean(column, everywhere)}')
    check_kinds({table.origin: table.columns for table in tables})
    return tables


def read_client_table(path: Path, options: TableOptions) -> ClientTable:
    """The rows of one client from its file. Its name is that of the file."""
    return client_table(path.stem, path.name, read_table(path, options.missing, options.categories), options)


def client_table(name: str, origin: str, frame: Any, options: TableOptions) -> ClientTable:
    """One client's rows: the target and the test column are taken from the other columns, which are checked."""
    if len(set(frame.columns)) < len(frame.columns):
        repeated = next(column for column in frame.columns if list(frame.columns).count(column) > 1)
        raise UserError(f'{origin} has the column "{repeated}" more than once. Rename or delete one.')
    labels = _labels(_named_column(frame, "data.target", options.target, origin), origin, options)
    is_test = _test_rows(_named_column(frame, "data.test", options.test, origin), origin) if options.test else None
    left_out = {options.target, options.test, *options.drop}
    left_out |= {word.partition(":")[2] for word in options.drop if word.partition(":")[0] == name}
    frame = frame[[column for column in frame.columns if column not in left_out]]
    if not frame.shape[1]:
        raise UserError(
            f"{origin} has no columns but the target and those in data.drop. Give it columns to learn from."
        )
    return ClientTable(name, origin, frame, labels, is_test, find_columns(frame, origin, options.categories))


def _named_column(frame: Any, key: str, name: str, origin: str) -> Any:
    """A column that the experiment names; an error that names the columns that there are."""
    if name not in frame.columns:
        raise UserError(f'{key}: {origin} has no column "{name}". {did_you_mean(name, map(str, frame.columns))}')
    return frame[name]


def _labels(values: Any, origin: str, options: TableOptions) -> np.ndarray:
    """The labels [n] of a client: whole numbers, or names."""
    where = f'{origin}: the target "{options.target}"'
    if missing := np.flatnonzero(values.isna()).tolist():
        rows = ", ".join(str(row + 1) for row in missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise UserError(
            f"{where} has no value in {len(missing):,} of {len(values):,} rows (row {rows}). Delete these rows."
        )
    types, values = require_pandas().api.types, with_floats(values)
    if types.is_datetime64_any_dtype(values):
        raise UserError(f"{where} has dates; must be classes.")
    numeric = types.is_numeric_dtype(values) and not types.is_bool_dtype(values)
    is_int64 = types.is_integer_dtype(values) and int(values.max()) < 2**63  # float64 rounds numbers from 2**53 on
    raw = values.to_numpy(np.int64 if is_int64 else np.float64) if numeric else texts_of(values)
    different = np.unique(raw)
    if numeric and not is_int64 and (inexact := different[~(np.abs(different) < 2**53)]).size:
        raise UserError(
            f"{where} has the class {inexact[0]:g}; a class must be a name, or a whole number that is stored exactly. "
            "Write names, or smaller whole numbers."
        )
    if numeric and not np.array_equal(raw, np.round(raw)):
        raise UserError(
            f"{where} has numbers like {different[0]:g} and {different[-1]:g}; must be classes. Make classes of it."
        )
    if len(different) > _MOST_TARGETS:
        raise UserError(
            f"{where} has {len(different):,} different values; a target has at most {_MOST_TARGETS} classes. Make "
            "classes of it."
        )
    if len(different) < options.min_classes:
        label = int(different[0]) if numeric else different[0]
        raise UserError(
            f"{where} is {label} in all {len(values):,} rows: a client needs {options.min_classes} classes. Leave this "
            "client out, or set data.min_classes = 1."
        )
    return raw.astype(np.int64) if numeric else raw.astype(str)


def _test_rows(values: Any, origin: str) -> np.ndarray:
    """Whether each row [n] is for testing only, from a column with test and train, true and false, or 1 and 0."""
    meaning = {"test": True, "true": True, "1": True, "train": False, "false": False, "0": False}
    texts = [text.lower() for text in texts_of(values)]
    if unknown := [text for text in texts if text not in meaning]:
        raise UserError(
            f'{origin}: the column "{values.name}" has {unknown[0]!r}; must be test or train, true or false, 1 or 0.'
        )
    return np.array([meaning[text] for text in texts])


def all_classes(tables: Sequence[ClientTable]) -> tuple[str | int, ...]:
    """The classes of all clients, sorted; an error if they are numbers at one client and names at another."""
    first = tables[0]
    for table in tables:
        if table.labels.dtype.kind != first.labels.dtype.kind:
            raise UserError(
                f"The target has {'names' if table.labels.dtype.kind == 'U' else 'numbers'} in {table.origin} (like "
                f"{table.labels[0]}), but not in {first.origin} (like {first.labels[0]}). Use the same kind for all."
            )
    return tuple(np.unique(np.concatenate([table.labels for table in tables])).tolist())
