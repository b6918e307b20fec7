"""Code outside the package by name: a file, a module, or the entry point of an installed package.

A name in an experiment is that of an entry in a registry ("fedproto"), that of an entry point, or a place and a name in
it: "./mine.py:ProtoAvg", "mypackage.mine:ProtoAvg". Only this module finds and imports such code. Whether the code that
a run folder names may be imported is decided before that, in `trust.known_code`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from protofed.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "Origin",
    "Registry",
    "absolute_name",
    "file_hash",
    "find_object",
    "installed",
    "label",
    "line_in_file",
    "name_without_folder",
    "origin_of",
    "outside_error",
    "relative_name",
    "run_file",
    "source_file",
]

Registered = TypeVar("Registered")
_LOADED: dict[str, str] = {}
"""The sha256 of every file that `run_file` has run, by its path."""
_IMPORTED: set[str] = set()
"""The files of the modules that were imported by name."""


def _place_and_name(name: Any) -> tuple[str, str] | None:
    """The place and the name in it, of "PLACE:NAME"; None if the name is not of this form."""
    place, colon, inner = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    return (place, inner) if colon and place and inner.isidentifier() else None


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or os.sep in place


def label(name: str) -> str:
    """A short name for tables and pictures.

    >>> label("fedproto"), label("../mine.py:ProtoAvg"), label("mypackage.mine:ProtoAvg")
    ('fedproto', 'ProtoAvg', 'ProtoAvg')
    """
    parts = _place_and_name(name)
    return parts[1] if parts else name


def name_without_folder(name: str) -> str:
    """A name that stays the same when the file moves.

    >>> name_without_folder("/home/ann/mine.py:ProtoAvg"), name_without_folder("mypackage.mine:ProtoAvg")
    ('mine.py:ProtoAvg', 'mypackage.mine:ProtoAvg')
    """
    parts = _place_and_name(name)
    return f"{Path(parts[0]).name}:{parts[1]}" if parts and _is_file(parts[0]) else name


def absolute_name(name: Any, folder: Path) -> Any:
    """The name with the absolute path of its file, which is relative to a folder. Other names stay as they are."""
    parts = _place_and_name(name)
    if not parts or not _is_file(parts[0]):
        return name
    return f"{(folder / Path(parts[0]).expanduser()).resolve().as_posix()}:{parts[1]}"


def relative_name(name: Any, folder: Path) -> Any:
    """The name with the path of its file relative to a folder. Other names stay as they are."""
    parts = _place_and_name(name)
    if not parts or not _is_file(parts[0]):
        return name
    try:
        path = Path(os.path.relpath(parts[0], folder)).as_posix()
    except ValueError:  # another drive
        return name
    return f"{path if path.startswith('../') else f'./{path}'}:{parts[1]}"


def file_hash(path: str | Path) -> str:
    """The sha256 of a file's content."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class Origin(NamedTuple):
    """Where code outside the package came from. The hash is that of the file alone, not of what it imports."""

    module: str
    file: str  # "" if it was typed into an interpreter
    sha256: str


def origin_of(entry: Any) -> Origin | None:
    """Where a class or function came from; None if it is part of protofed."""
    entry = getattr(entry, "made_from", None) or entry
    module = str(getattr(entry, "__module__", ""))
    if module.partition(".")[0] == "protofed":
        return None
    try:
        file = str(Path(inspect.getsourcefile(entry) or "").resolve())
        return Origin(module, file, _LOADED.get(file) or file_hash(file))
    except (TypeError, OSError):
        return Origin(module, "", "")


def installed(group: str) -> dict[str, EntryPoint]:
    """The entry points that installed packages have in the group `protofed.GROUP`, by name."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=f"protofed.{group}")}


def source_file(group: str, name: str) -> Path | None:
    """The file that a name stands for, found without importing anything; None if there is none."""
    entry = installed(group).get(name)
    parts = _place_and_name(entry.value.partition("[")[0].strip() if entry else name)
    if parts is None:
        return None
    if _is_file(parts[0]) and entry is None:
        return Path(parts[0]) if Path(parts[0]).is_file() else None
    found, folders, module = None, None, ""
    for part in parts[0].split("."):
        module = f"{module}.{part}" if module else part
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        specs = (find(module, folders) for find in finders if find)
        found = next((spec for spec in specs if spec is not None), None)
        if found is None:
            return None
        folders = found.submodule_search_locations
    origin = Path(found.origin or "") if found else Path()
    return origin if origin.is_file() else None


def line_in_file(problem: BaseException, file: str) -> int:
    """The last line of a file that the traceback of an exception goes through; 0 if there is none."""
    if isinstance(problem, SyntaxError) and problem.filename == file:
        return problem.lineno or 0
    lines = [frame.lineno or 0 for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    return lines[-1] if lines else 0


def outside_error(problem: BaseException) -> str | None:
    """An exception in code outside the package as a message with the file and line; None if it is not in such code."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if frame.filename in _LOADED or frame.filename in _IMPORTED]
    if not own:
        return None
    text = f"{type(problem).__name__}: {problem}".rstrip(": .")
    return f"{own[-1].filename}, line {own[-1].lineno}, in {own[-1].name}: {text}."


def run_file(path: Path) -> ModuleType:
    """The module in a file, which is run once, and again after it has changed. It can import files next to it."""
    if path.suffix != ".py":
        raise UserError(f"{path} is not a Python file: its name must end in .py.")
    file = str(path.resolve())
    try:
        content = Path(file).read_bytes()
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}. Give the path of a Python file.") from problem
    digest = hashlib.sha256(content).hexdigest()
    name = f"{Path(file).stem}_{hashlib.sha256(f'{file} {digest}'.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        _LOADED[file] = digest
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # dataclasses and pickle look it up there
    if str(Path(file).parent) not in sys.path:
        sys.path.append(str(Path(file).parent))
    try:
        exec(compile(content, file, "exec"), vars(module))  # the content that was hashed
    except (Exception, SystemExit) as problem:
        del sys.modules[name]
        if isinstance(problem, UserError):
            raise
        raise UserError(_import_problem(path, file, problem)) from problem
    _LOADED[file] = digest
    return module


def _import_problem(path: Path, file: str, problem: BaseException) -> str:
    text = problem.msg if isinstance(problem, SyntaxError) else str(problem)
    advice = "Correct the file, then try again."
    if "relative import" in text:
        advice = 'Name the module instead of the file: "package.module:Name".'
    return f"{path}, line {line_in_file(problem, file)}: {type(problem).__name__}: {text}. {advice}"


def _imported(place: str) -> ModuleType:
    """The module of a name: a file or an importable module."""
    if _is_file(place):
        return run_file(Path(place))
    try:
        module = importlib.import_module(place)
        _IMPORTED.add(str(module.__file__))
        return module
    except ModuleNotFoundError as problem:
        raise UserError(
            f"there is no module {problem.name}. Install it, add its folder to $PYTHONPATH, or name a file: "
            f"./{place.replace('.', '/')}.py:NAME."
        ) from problem
    except Exception as problem:  # a user's module may raise anything
        frame = traceback.extract_tb(problem.__traceback__)[-1]
        raise UserError(
            f"{place} cannot be imported: {frame.filename}, line {frame.lineno}: {type(problem).__name__}: {problem}."
        ) from problem


def find_object(name: Any) -> Any:
    """The object of "FILE.py:NAME" or "package.module:NAME"."""
    parts = _place_and_name(absolute_name(name, Path.cwd()))
    if parts is None:
        raise UserError(f'"{name}" is no name of code: write FILE.py:NAME or package.module:NAME.')
    return _attribute(_imported(parts[0]), parts)


class Registry(dict[str, Registered], Generic[Registered]):
    """The entries of the package by name. `find` also takes names of code outside the package.

    `group`: what the entries are, in the plural; entry points are those of `protofed.GROUP`. `accept` gets an object
    from outside and the name it was found by; it returns the entry, or raises a `UserError` that says what is wrong.
    """

    def __init__(self, group: str, accept: Callable[[Any, str], Registered], entries: Mapping[str, Registered]) -> None:
        super().__init__(entries)
        self.group, self.accept, self._builtin = group, accept, frozenset(entries)
        self._accepted: dict[int, tuple[Any, Registered]] = {}

    def find(self, name: Any, what: str = "") -> tuple[str, Registered]:
        """The name as an experiment file has it, and the entry, of a name or of a class or function itself.

        An entry of the package comes before an entry point of the same name. `what`: the word for an entry, for the
        message about an unknown name; "": the message is the rest of a sentence that begins with a key.
        """
        if isinstance(name, str) and name in self:
            return name, self[name]
        if _place_and_name(name):
            name = absolute_name(name, Path.cwd())
            return name, self._accept(find_object(name), name)
        if inspect.isclass(name) or inspect.isfunction(name):
            return self._given(name)
        if isinstance(name, str) and (entry := installed(self.group).get(name)):
            module, _, inner = entry.value.partition("[")[0].strip().partition(":")
            return name, self._accept(_attribute(_imported(module), (module, inner)), name)
        shown = json.dumps(name, default=str) if name is not None else "None"
        start = f"There is no {what}" if what else "there is no"
        raise UserError(f"{start} {shown}. {did_you_mean(str(name), [*self, *installed(self.group)])}")

    def _given(self, entry: Any) -> tuple[str, Registered]:
        """The name and entry of a class or function. One that was typed into an interpreter is registered by name."""
        accepted, origin = self._accept(entry, entry.__name__), origin_of(entry)
        if origin is None:
            return next((name for name, known in self.items() if known is entry), entry.__name__), accepted
        if not origin.file or "." in entry.__qualname__:
            if (name := entry.__name__) in self._builtin:
                raise UserError(f'protofed has a "{name}" of its own. Give yours another name.')
            self[name] = accepted
            return name, accepted
        place = origin.module if "." in origin.module else Path(origin.file).as_posix()
        return f"{place}:{entry.__qualname__}", accepted

    def _accept(self, found: Any, name: str) -> Registered:
        """The entry of an object, always the same for the same object."""
        if id(found) not in self._accepted:
            self._accepted[id(found)] = (found, self.accept(found, name))
        return self._accepted[id(found)][1]


def _attribute(module: ModuleType, parts: tuple[str, str]) -> Any:
    """The object of that name in a module."""
    place, inner = parts
    if not hasattr(module, inner):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        hint = did_you_mean(inner, own) if own else "It defines no class or function."
        raise UserError(f'{place} has no "{inner}". {hint}')
    return getattr(module, inner)
