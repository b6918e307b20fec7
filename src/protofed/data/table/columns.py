"""The kinds of columns: numbers and categories. What looks like something else is an error that says what was found."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np

from protofed.data.table.files import require_pandas
from protofed.errors import UserError

ColumnKind = Literal["number", "category"]

_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_COMMA = re.compile(r"[-+]?\d+,\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}([,.' ]\d{3})+([.,]\d+)?")
_CHECKED = 1000
"""The number of different texts of a column that are looked at."""


class Column(NamedTuple):
    """What is known of a column of one client's table."""

    kind: ColumnKind
    examples: str  # some of its values, for messages
    missing: int  # rows without a value
    different: int  # the number of different texts; 0 for numbers


def find_columns(frame: Any, owner: str, categories: Sequence[str] = ()) -> dict[str, Column]:
    """The columns of a DataFrame by name. `owner` begins the error messages."""
    return {name: _find_column(frame[name], name, owner, name in categories) for name in frame.columns}


def _find_column(values: Any, name: str, owner: str, is_category: bool) -> Column:
    pandas = require_pandas()
    types = pandas.api.types
    present = with_floats(values.dropna())
    missing, where = len(values) - len(present), f'{owner}: the column "{name}"'
    if not len(present):
        raise UserError(
            f'{where} has only missing values. Delete it from this table, or name it in data.drop (as "CLIENT:{name}" '
            "for one client)."
        )
    if types.is_datetime64_any_dtype(values) or types.is_timedelta64_dtype(values):
        raise UserError(f"{where} has dates, like {present.iloc[0]}. {_INSTEAD_OF_DATES}")
    if types.is_numeric_dtype(present):
        if types.is_complex_dtype(present):
            raise UserError(f"{where} has complex numbers. Make real numbers of them.")
        if count := int(np.isinf(present.to_numpy(np.float64)).sum()):
            raise UserError(f"{where} has {count:,} infinite values. Replace them, or delete those rows.")
        shown, different = present.iloc[:3], 0
        kind: ColumnKind = "category" if is_category else "number"
    else:
        check_cells(present, where)
        shown = present.unique()
        different = len(shown)
        truths = all(isinstance(value, bool | np.bool_) for value in shown)
        kind = "number" if truths and not is_category else "category"
        if kind == "category" and not is_category:
            is_declared = isinstance(values.dtype, pandas.CategoricalDtype)
            _check_text([str(value) for value in shown[:_CHECKED]], where, is_declared)
    return Column(kind, ", ".join(str(value)[:20] for value in shown[:3]), missing, different)


def with_floats(values: Any) -> Any:
    """The column with floats in place of decimals, if all its values are decimals, as columns of Parquet may be."""
    is_object = require_pandas().api.types.is_object_dtype(values)
    return values.astype(np.float64) if is_object and all(isinstance(value, Decimal) for value in values) else values


def check_cells(values: Any, where: str) -> None:
    """An error if cells of a column have lists or dictionaries, as columns of Parquet may have."""
    if require_pandas().api.types.is_object_dtype(values):
        for value in values:
            if not isinstance(value, Hashable):
                raise UserError(
                    f"{where} has cells like {str(value)[:40]}; must be one number or text per cell. Change it, or "
                    "name the column in data.drop."
                )


_INSTEAD_OF_DATES = "Make numbers of them, such as an age or a year, or name the column in data.drop."


def _check_text(texts: Sequence[str], where: str, is_declared: bool) -> None:
    """An error for texts that are dates or numbers, as far as they can be recognised.

    `is_declared`: whether the type of the column says that it has categories, which may look like plain numbers.
    """
    stripped = [text.strip() for text in texts]
    if all(map(_DATE.fullmatch, stripped)):
        raise UserError(f'{where} has dates, like "{stripped[0]}". {_INSTEAD_OF_DATES}')
    plain = [bool(NUMBER.fullmatch(text)) for text in stripped]
    thousands, commas = ([text for text in stripped if form.fullmatch(text)] for form in (_THOUSANDS, _COMMA))
    if commas and len(commas) > len(thousands) and len(commas) + sum(plain) == len(stripped):
        raise UserError(f'{where} has numbers with a decimal comma, like "{commas[0]}". Write a point instead.')
    forms = (NUMBER, _THOUSANDS, _COMMA)
    if thousands and all(any(form.fullmatch(text) for form in forms) for text in stripped):
        raise UserError(
            f'{where} has numbers with thousands separators, like "{thousands[0]}". Write them without, and with a '
            "decimal point."
        )
    if all(plain) and not is_declared:
        raise UserError(
            f'{where} has numbers that are stored as text or have more than 64 bits, like "{stripped[0]}". Store them '
            "as numbers of at most 64 bits, or name the column in data.categories or data.drop."
        )
    others = [text for text, p in zip(stripped, plain, strict=True) if not p]
    if len(stripped) >= 5 and 0 < len(others) <= len(stripped) / 4:
        raise UserError(
            f"{where} has numbers, but also {', '.join(map(repr, others[:3]))}. Leave cells without a value empty, "
            "name such texts in data.missing, or name the column in data.categories."
        )


def check_kinds(by_client: Mapping[str, Mapping[str, Column]]) -> None:
    """A column must be of the same kind at every client that has it. `by_client`: the columns by client."""
    first: dict[str, tuple[str, Column]] = {}
    for client, columns in by_client.items():
        for name, column in columns.items():
            other, known = first.setdefault(name, (client, column))
            if known.kind != column.kind:
                pairs = ((other, known), (client, column))
                (number, numbers), (text, texts) = sorted(pairs, key=lambda pair: pair[1].kind == "category")
                raise UserError(
                    f'The column "{name}" has numbers at {number} (like {numbers.examples}), but text at {text} (like '
                    f"{texts.examples}). Use the same kind at all clients, or name it in data.categories or data.drop."
                )
