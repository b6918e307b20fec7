"""Options: the fields of a frozen dataclass, checked strictly. Problems are explained in plain words."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from protofed.errors import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Section = TypeVar("Section")

SHARES_OR_NUMBERS = ("run.sample", "eval.clients_sampled")
"""Keys with a share or a number of clients: 1.0 are all clients, and 1 is one."""
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""No unknown keys, no silent conversions, no NaN."""
_DESCRIBED = ConfigDict(use_attribute_docstrings=True)
"""The string below a field is its description. Finding it takes time, since the source is parsed."""

_REQUIREMENTS = {
    "greater_than_equal": "must be {ge:.12g} or more",
    "less_than_equal": "must be {le:.12g} or less",
    "greater_than": "must be above {gt:.12g}",
    "less_than": "must be below {lt:.12g}",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text in quotes",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "value_error": "{error}",
}
"""What a value must be, by pydantic's type of the error."""


def toml_value(value: Any) -> str:
    """A value in the notation of an experiment file.

    >>> print(toml_value("l2"), toml_value((8, 4)), toml_value(True), toml_value(float("nan")), toml_value(None))
    "l2" [8, 4] true nan None
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml_value(str(key))} = {toml_value(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False, default=str)


def toml_or_text(text: str) -> Any:
    """The value of "key=value" words: read as TOML, or as text if it is not TOML.

    >>> toml_or_text("0.5"), toml_or_text("[1, 2]"), toml_or_text("fedavg")
    (0.5, [1, 2], 'fedavg')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


@cache
def option_descriptions(kind: type[Any]) -> dict[str, str]:
    """The description of each field of a dataclass: the string below it, here or in a base class."""
    descriptions: dict[str, str] = {}
    for base in filter(is_dataclass, reversed(kind.__mro__)):
        model = create_model("Model", __config__=_DESCRIBED, options=(base, ...))  # it holds for its dataclass, too
        properties = model.model_json_schema()["$defs"][base.__name__].get("properties", {})
        descriptions |= {name: field["description"] for name, field in properties.items() if "description" in field}
    return descriptions


def options(section: Any) -> dict[str, Any]:
    """The fields of a dataclass as TOML has them: lists instead of tuples."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(section).items()}


def check_name(key: str, name: Any, registry: Mapping[str, Any], problems: list[str]) -> bool:
    """Whether the name is registered. If it is not, a problem is added to the list."""
    if isinstance(name, str) and name in registry:
        return True
    problems.append(f"{key}: there is no {toml_value(name)}. {did_you_mean(str(name), registry)}")
    return False


def check(
    section: str, kind: Callable[..., Section], table: Mapping[str, Any], problems: list[str], name: str = ""
) -> Section | None:
    """The dataclass of a section from its table; None if the table has problems, which are added to the list."""
    try:
        checked = _strict_model(kind)(**{key: _without_numpy(value) for key, value in table.items()})
    except ValidationError as invalid:
        errors = invalid.errors()
        not_finite = {error["loc"][0] for error in errors if error["type"] == "finite_number"}
        # a key that takes whole numbers or fractions has an error of each kind
        errors = [one for one in errors if one["loc"][0] not in not_finite or one["type"] == "finite_number"]
        problems += [_explain_problem(section, name, kind, error) for error in errors]
        return None
    return kind(**dict(checked))


def _without_numpy(value: Any) -> Any:
    """A value as the dataclasses have it: tuples instead of lists, and numbers of Python instead of numpy's."""
    if isinstance(value, list | tuple):
        return tuple(map(_without_numpy, value))
    return value.item() if isinstance(value, np.generic) else value


@cache
def _strict_model(kind: Any) -> type[BaseModel]:
    """A strict pydantic model with the fields of a dataclass: their types, limits and defaults."""
    types = get_type_hints(kind, include_extras=True)
    definitions: dict[str, Any] = {field.name: (types[field.name], _model_field(field)) for field in fields(kind)}
    return create_model(kind.__name__, __config__=_STRICT, **definitions)


def _model_field(field: Field[Any]) -> Any:
    """A dataclass field as pydantic has it: with its default, with a function that makes the default, or required."""
    if field.default is not MISSING:
        return pydantic.Field(default=field.default)
    if field.default_factory is not MISSING:
        return pydantic.Field(default_factory=field.default_factory)
    return pydantic.Field()


def _explain_problem(section: str, name: str, kind: Any, error: ErrorDetails) -> str:
    """A problem in plain words: the key, what was got, and what it must be."""
    key, value, context = str(error["loc"][0]), error["input"], error.get("ctx", {})
    if error["type"] == "missing":
        return f"{section}.{key}: missing. It has no default, so it must be set."
    if error["type"] == "extra_forbidden":
        keys = [field.name for field in fields(kind)]
        if not keys:
            return f"{section}.{key}: unknown key. {f'{section} {name}' if name else f'[{section}]'} has no options."
        return f"{section}.{key}: unknown key{f' of {name}' if name else ''}. " + did_you_mean(key, keys)
    if error["type"] == "literal_error":
        choices = re.findall(r"'(.*?)'", context["expected"])
        return f"{section}.{key}: got {toml_value(value)}. {did_you_mean(str(value), choices)}"
    template = _REQUIREMENTS.get(error["type"])
    requirement = template.format(**context) if template else error["msg"]
    return f"{section}.{key}: got {toml_value(value)}; {requirement}"
