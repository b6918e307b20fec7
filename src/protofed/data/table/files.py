"""Reading one table: CSV, Parquet or Feather. Every mistake in a file has a message of its own."""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protofed.errors import UserError

SUFFIXES = (".csv", ".tsv", ".parquet", ".feather", ".arrow")
"""The endings of files that are tables, which may also have capital letters."""
_FORMATS = {
    b"PAR1": "a Parquet",
    b"ARROW1": "a Feather",
    b"FEA1": "a Feather",
    b"PK\x03\x04": "an Excel or zip",
    b"\x1f\x8b": "a gzip",
}
"""How files of other formats begin."""
_OTHER_FORMATS = (".xlsx", ".xls", ".xlsm", ".ods", ".sav", ".dta", ".sas7bdat", ".xpt", ".json", ".gz", ".zip")
"""The endings of files that probably have a client's table in a form that is not read."""
_WHOLE = re.compile(r"^([-+]?\d+)\.0+$")


def require_pandas() -> Any:
    """The package pandas; an error that names the extra if it is not installed."""
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError as problem:
        raise UserError(f"Tables need the package {problem.name}. Run pip install 'protofed[tables]'.") from problem
    return pandas


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table.

    >>> is_table(Path("A.CSV")), is_table(Path("a.txt"))
    (True, False)
    """
    return path.suffix.lower() in SUFFIXES


def tables_in(folder: Path) -> dict[str, Path]:
    """The tables of a folder by their names without the endings, sorted; an error if two have the same name."""
    shown = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    files = sorted(filter(is_table, shown))
    if others := sorted(file.name for file in shown if file.suffix.lower() in _OTHER_FORMATS):
        raise UserError(
            f"{folder / others[0]} is not read: tables end in {', '.join(SUFFIXES)}. Save it as CSV, or move it to "
            "another folder if it belongs to no client."
        )
    for name, count in Counter(file.stem for file in files).items():
        if count > 1:
            raise UserError(
                f"{folder} has several tables with the name {name}: "
                f"{_listed(file.name for file in files if file.stem == name)}. Rename or delete all but one."
            )
    return {file.stem: file for file in files}


def read_table(path: Path, missing: Sequence[str] = (), texts: Sequence[str] = ()) -> Any:
    """The DataFrame in a file. `missing` are further texts that mean a missing value in a CSV file.

    `texts`: columns of a CSV file that are read as texts, also if they look like numbers, so that what a cell means
    does not depend on the other rows of the file. A whole number is written without a point, as in "1" for "1.0".
    """
    pandas = require_pandas()
    if not path.is_file():
        raise UserError(f"There is no file {path}. Give a table: {', '.join(SUFFIXES)}.")
    if not is_table(path):
        raise UserError(f"{path} is not a table: its name must end in {', '.join(SUFFIXES)}.")
    try:
        with path.open("rb") as file:
            start = file.read(8)
        if not start:
            raise UserError(f"{path} is empty. Give a table with a header and rows.")
        is_text = path.suffix.lower() in (".csv", ".tsv")
        frame = _read_csv(pandas, path, start, missing, texts) if is_text else _read_arrow(path, start)
    except PermissionError as problem:
        raise UserError(f"{path} cannot be read: you have no permission. Make it readable.") from problem
    if not len(frame):
        raise UserError(f"{path} has the columns {_listed(frame.columns)}, but no rows. Add rows.")
    return frame


def _read_csv(pandas: Any, path: Path, start: bytes, missing: Sequence[str], texts: Sequence[str]) -> Any:
    """The DataFrame in a text file. The separator is the one that its header has most often outside of quotes."""
    for magic, format in _FORMATS.items():
        if start.startswith(magic):
            raise UserError(f"{path} is {format} file, not text. Save it as CSV, or give it the right ending.")
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{path} is UTF-16 text. Save it as UTF-8.")
    try:
        separator = max(",;\t|", key=lambda separator: len(_header_names(path, separator)))
        names = _header_names(path, separator)
        _check_names(path, names)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # cells without a column
            frame = pandas.read_csv(
                path,
                sep=separator,
                encoding="utf-8-sig",
                na_values=list(missing),
                skipinitialspace=True,
                index_col=False,  # the first column is never taken for the names of the rows
                dtype={name: object for name in names if name.strip() in texts},
                low_memory=False,  # otherwise each part of a large file has types of its own
            )
    except pandas.errors.ParserWarning as problem:
        raise UserError(f"{path}: its rows have more cells than its header has names. Name every column.") from problem
    except UnicodeDecodeError as problem:
        raise UserError(
            f"{path} is not UTF-8 text: byte 0x{problem.object[problem.start]:02x} at position {problem.start} "
            "(files of older Windows programs have Windows-1252). Save it as UTF-8."
        ) from problem
    except (ValueError, csv.Error) as problem:  # pandas' parser errors are ValueErrors
        raise UserError(f"{path} cannot be read as CSV: {str(problem).strip()}. Correct that line.") from problem
    frame = frame.rename(columns=lambda name: str(name).strip())
    for name in frame.columns.intersection(texts):
        frame[name] = frame[name].map(lambda text: _WHOLE.sub(r"\1", text), na_action="ignore")
    return frame


def _header_names(path: Path, separator: str) -> list[str]:
    """The names in the first line of a text file that is not empty."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next((cells for cells in csv.reader(file, delimiter=separator, skipinitialspace=True) if cells), [])


def _read_arrow(path: Path, start: bytes) -> Any:
    """The DataFrame in a Parquet or Feather file."""
    import pyarrow
    from pyarrow import feather, parquet

    parquet_file = path.suffix.lower() == ".parquet"
    name = "Parquet" if parquet_file else "Feather"
    if not start.startswith((b"PAR1",) if parquet_file else (b"ARROW1", b"FEA1")):
        format = next((f"{format} file" for magic, format in _FORMATS.items() if start.startswith(magic)), "other data")
        raise UserError(f"{path} is not a {name} file: it begins like {format}. Give it the right ending.")
    try:
        table = parquet.read_table(path) if parquet_file else feather.read_table(path)
    except (pyarrow.ArrowException, OSError) as problem:
        reason = str(problem).splitlines()[0]
        raise UserError(f"{path} is a damaged {name} file: {reason}. Get the file again.") from problem
    _check_names(path, table.column_names)
    return table.to_pandas()


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Every column must have a name of its own."""
    names = [name.strip() for name in names]
    if repeated := [name for name, count in Counter(names).items() if count > 1 and name]:
        count = names.count(repeated[0])
        raise UserError(f'{path} has the column "{repeated[0]}" {count} times. Rename or delete one.')
    if "" in names:
        raise UserError(f"{path}: column {names.index('') + 1} has no name in the header. Name it, or delete it.")


def _listed(names: Any) -> str:
    return ", ".join(map(str, names))
