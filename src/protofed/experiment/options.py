"""Options: a frozen dataclass's fields, checked strictly, with problems told in words."""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from protofed.errors import did_you_mean

Section = TypeVar("Section")

_PLAIN_WORDS = {
    r"greater than or equal to (\S+)": r"\1 or more",
    r"less than or equal to (\S+)": r"\1 or less",
    r"greater than (\S+)": r"above \1",
    r"less than (\S+)": r"below \1",
    "a valid integer": "a whole number",
    "a valid tuple": "a list",
    "a valid number": "a number",
    "a valid string": "text in quotes",
    "a valid boolean": "true or false",
}


def toml_value(value: Any) -> str:
    """A value as one writes it in an experiment file.

    >>> print(toml_value("l2"), toml_value((8, 4)), toml_value(True), toml_value(float("nan")))
    "l2" [8, 4] true nan
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)


def meanings(kind: Any) -> dict[str, str]:
    """What each field of a dataclass means: the text that stands below it."""
    told: dict[str, str] = {}
    for base in reversed(kind.__bases__):
        told |= meanings(base) if is_dataclass(base) else {}
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(made, ast.ClassDef)
    return told | {
        field.target.id: below.value.value
        for field, below in pairwise(made.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def options(thing: Any) -> dict[str, Any]:
    """A dataclass's fields as TOML has them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(thing).items()}


def check_name(key: str, name: Any, registry: Mapping[str, Any], problems: list[str]) -> bool:
    """Is it one of the registered names? If not, say so."""
    if name is None or (isinstance(name, str) and name in registry):
        return name is not None
    problems.append(f"{key}: there is no {toml_value(name)}. {did_you_mean(str(name), registry)}")
    return False


def check(
    section: str, kind: Callable[..., Section], table: Mapping[str, Any], problems: list[str], name: str = ""
) -> Section:
    """A section's dataclass from its table; problems are added to the list."""
    try:
        checked = _model(kind)(**{key: _without_numpy(value) for key, value in table.items()})
    except ValidationError as wrong:
        owner = f"{section} {name}" if name else f"[{section}]"
        problems += [_explain_problem(section, owner, kind, dict(error)) for error in wrong.errors()]
        return cast("Section", None)  # never used: the problems are raised before
    return kind(**checked.model_dump())


def _without_numpy(value: Any) -> Any:
    """A value as the dataclasses have it: lists are tuples, numpy's numbers are numbers."""
    if isinstance(value, list | tuple):
        return tuple(map(_without_numpy, value))
    return value.item() if isinstance(value, np.generic) else value


@cache
def _model(kind: Any) -> type[BaseModel]:
    """A strict model of a dataclass's fields: no unknown keys, no silent conversions, no NaN."""
    hints = get_type_hints(kind, include_extras=True)
    kinds: dict[str, Any] = {f.name: (hints[f.name], f.default) for f in fields(kind)}
    return create_model(kind.__name__, __config__=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False), **kinds)


def _explain_problem(section: str, owner: str, kind: Any, error: Mapping[str, Any]) -> str:
    """One problem in words: the key, what was got, what would do."""
    key, got = str(error["loc"][0]), error["input"]
    if error["type"] == "extra_forbidden":
        keys = [f.name for f in fields(kind)]
        return f"{section}.{key}: unknown key. " + (did_you_mean(key, keys) if keys else f"{owner} has no options.")
    if error["type"] == "literal_error":
        words = re.findall(r"'(.*?)'", error["ctx"]["expected"])
        return f"{section}.{key}: got {toml_value(got)}. {did_you_mean(str(got), words)}"
    wish = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    for technical, said in _PLAIN_WORDS.items():
        wish = re.sub(technical, said, wish)
    return f"{section}.{key}: got {toml_value(got)}, {wish}"
