"""Reads pickled dictionaries of numbers, text, lists and uint8 arrays, such as CIFAR's, without the module pickle.

A pickle is a program for a small stack machine. The module pickle runs it and calls any function that the file names.
Here the operations are interpreted one by one: only those that build plain data are known, a name is only compared with
five allowed ones, and nothing is ever imported or called by name. Everything else is refused.
"""

from __future__ import annotations

import pickletools
from typing import Any, NamedTuple

import numpy as np

from protofed.errors import UserError

_ALLOWED = {
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy ndarray": "array type",
    "numpy dtype": "number type",
    "_codecs encode": "bytes",
}
"""The names that may occur, and what stands for each of them here."""
_PUSHES = {
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8",
}  # fmt: skip
"""Operations that push the number, text or bytes which follow them in the file."""
_CONSTANT_VALUES: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_IGNORED_OPERATIONS = {"PROTO", "FRAME"}
_MEMO_WRITES, _MEMO_READS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name(NamedTuple):
    """An allowed name. It stands for a function, but is never one."""

    kind: str


class _NumberType(NamedTuple):
    code: str


class _Array:
    """An array whose content comes later, with the operation BUILD."""

    content: np.ndarray | None = None


class _Mark:
    """The start of a list of arguments on the stack."""


class _Refused(Exception):  # noqa: N818
    """What is not plain data."""


def read_plain_pickle(content: bytes, owner: str) -> Any:
    """The data in a pickle; an error if it holds anything else. `owner`, the file, begins the error messages."""
    try:
        return _Finisher(len(content)).finished(_Machine().run(content))
    except _Refused as problem:
        raise UserError(
            f"{owner} is refused: it holds {problem}, which a file with plain numbers, text and arrays does not need. "
            "It was not run. Get the file from where it is published."
        ) from None
    except RecursionError:
        raise UserError(
            f"{owner} is refused: it is nested too deeply. Get the file from where it is published."
        ) from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError) as problem:
        raise UserError(f"{owner} is not a complete pickle: {problem}. Get the file again.") from problem


class _Finisher:
    """Puts arrays in place of their placeholders, and counts the values.

    Every value takes at least a byte of the file, unless lists and the like occur in several places. A small file could
    have lists that hold one another twice, and thereby more values than any memory has.
    """

    def __init__(self, most: int) -> None:
        self.left = most

    def finished(self, value: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise _Refused("lists that contain themselves, or one another several times")
        if isinstance(value, _Array):
            if value.content is None:
                raise ValueError("an array has no content")
            return value.content
        if isinstance(value, _Name | _NumberType | _Mark):  # tuples, but for the last
            raise _Refused("a name, number type or mark as a value")
        if isinstance(value, dict):
            return {self.finished(key): self.finished(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self.finished, value))
        return value


class _Machine:
    """The stack and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for operation, argument, _ in pickletools.genops(content):
            name = operation.name
            if name == "STOP":
                return self.stack.pop()
            if name in _PUSHES:
                self.stack.append(argument)
            elif name in _CONSTANT_VALUES:
                self.stack.append(_CONSTANT_VALUES[name])
            elif name in _MEMO_WRITES:
                self.memo[_integer(argument)] = self.stack[-1]
            elif name == "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            elif name in _MEMO_READS:
                self.stack.append(self.memo[_integer(argument)])
            elif name in _TUPLES:
                self.stack.append(tuple(self._popped(_TUPLES[name])))
            elif name not in _IGNORED_OPERATIONS:
                self._build(name, argument)
        raise ValueError("its end is missing")

    def _build(self, name: str, argument: Any) -> None:
        """The operations that make lists, dictionaries and arrays."""
        stack = self.stack
        if name == "MARK":
            stack.append(_Mark())
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name == "LIST":
            stack.append(self._since_mark())
        elif name == "DICT":
            items = self._since_mark()
            stack.append(dict(zip(items[::2], items[1::2], strict=True)))
        elif name in ("APPEND", "APPENDS"):
            items = self._since_mark() if name == "APPENDS" else self._popped(1)
            self._top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._since_mark() if name == "SETITEMS" else self._popped(2)
            self._top(dict).update(zip(items[::2], items[1::2], strict=True))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            words = argument if name == "GLOBAL" else " ".join(map(str, self._popped(2)))
            if words not in _ALLOWED:
                raise _Refused(f"the name {words.replace(' ', '.')}")
            stack.append(_Name(_ALLOWED[words]))
        elif name == "REDUCE":
            function, arguments = self._popped(2)
            stack.append(_reduced(function, arguments))
        elif name == "BUILD":
            self._fill(self._popped(1)[0])
        else:
            raise _Refused(f"the operation {name}")

    def _popped(self, count: int) -> list[Any]:
        """The last values of the stack, removed from it."""
        if count > len(self.stack):
            raise ValueError("values are missing")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def _since_mark(self) -> list[Any]:
        """All values since the last mark, removed with the mark."""
        position = len(self.stack) - 1
        while position >= 0 and not isinstance(self.stack[position], _Mark):
            position -= 1
        if position < 0:
            raise ValueError("a mark is missing")
        values = self._popped(len(self.stack) - position)
        return values[1:]

    def _top(self, kind: type) -> Any:
        """The last value of the stack, which must be of this kind."""
        if type(self.stack[-1]) is not kind:
            raise _Refused(f"a change of a {type(self.stack[-1]).__name__.strip('_')}")
        return self.stack[-1]

    def _fill(self, state: Any) -> None:
        """The operation BUILD: the content of an array; the byte order of a number type is fixed for uint8."""
        target = self.stack[-1]
        if isinstance(target, _NumberType):
            return
        if not isinstance(target, _Array):
            raise _Refused(f"the state of a {type(target).__name__.strip('_')}")
        _, shape, number_type, in_columns, values = state
        if not isinstance(number_type, _NumberType) or number_type.code not in ("u1", "|u1", "uint8"):
            raise _Refused(f"an array of {getattr(number_type, 'code', type(number_type).__name__)}")
        raw = values.encode("latin-1") if isinstance(values, str) else values
        if not isinstance(raw, bytes) or in_columns not in (False, 0):
            raise _Refused("an array of an unknown form")
        target.content = np.frombuffer(raw, np.uint8).reshape(tuple(int(size) for size in shape))


def _integer(argument: Any) -> int:
    return int(argument)


def _reduced(function: Any, arguments: Any) -> Any:
    """What stands for the result of a call. Nothing is called."""
    kind = function.kind if isinstance(function, _Name) else ""
    if kind == "array" and len(arguments) == 3:
        return _Array()
    if kind == "number type" and arguments and isinstance(arguments[0], str):
        return _NumberType(arguments[0])
    if (
        kind == "bytes"
        and len(arguments) == 2
        and isinstance(arguments[0], str)
        and arguments[1] in ("latin1", "latin-1")
    ):
        return arguments[0].encode("latin-1")
    raise _Refused("a call of a function")
