"""The contract of a method: which classes, losses and states are accepted, and what is said about the others.

Engines and `protofed.testing` use the same functions, so that a mistake is explained in the same words everywhere, with
the author's file and line. docs/what-a-method-may-do.md lists the rules.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from protofed.core import AnyMethod, Loss, Method, Upload
from protofed.errors import UserError
from protofed.messages import leaves, with_sorted_names, wrong_leaf
from protofed.plugins import origin_of
from protofed.prototypes import Prototypes

__all__ = [
    "HOOKS",
    "LOOP_ADVICE",
    "check_method_class",
    "checked",
    "explained_error",
    "explaining_errors",
    "is_ours",
    "line_of",
    "method_class",
    "require_equal_uploads",
    "require_loss",
    "shown_place",
]

HOOKS = tuple(name for name, value in vars(Method).items() if inspect.isfunction(value) and not name.startswith("_"))
"""The names of all hooks."""
LOOP_ADVICE = 'engine.name = "loop" trains one client after the other: use it to debug a loss.'
_VMAP_RULES = (
    (
        ("data-dependent control flow", "calling .item()", "aten::_local_scalar_dense"),
        "reads the value of a tensor (if, item, float, bool), but engines compute the losses of many clients at once, "
        "so that a tensor has no single value. Use torch.where, or arithmetic with a mask.",
    ),
    (
        ("dynamic shape",),
        "selects elements by a mask or makes a tensor with a shape that depends on values, which cannot be stacked "
        "over clients. Multiply by the mask, or use torch.where; compare labels with torch.arange(classes) instead of "
        "F.one_hot.",
    ),
    (
        ("called random operation",),
        "draws random numbers. The result could not be repeated. Draw in another hook with site.generator(...), and "
        "let the loss get the numbers in its arguments.",
    ),
)
"""Words in torch's messages about `vmap`, and the rule that was broken."""


def is_ours(method: AnyMethod) -> bool:
    """Whether a method is part of protofed. Those are tested; only methods of other people are watched in a run."""
    kind: Any = type(method)
    return _is_our_class(kind)


@cache
def _is_our_class(kind: Any) -> bool:
    return origin_of(kind) is None


def shown_place(file: str, line: int) -> str:
    """A file and a line for messages; the path is relative if the file is in the working directory."""
    try:
        path = os.path.relpath(file)
    except ValueError:  # another drive
        path = file
    return f"{file if path.startswith('..') else path}, line {line}"


def line_of(kind: type[Any], hook: str, find: Callable[[ast.AST], bool] | None = None) -> str:
    """The file and line of a class's function, or of the first part of it that `find` is true for."""
    function = inspect.unwrap(getattr(kind, hook))
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "?"
    except (OSError, TypeError):
        return f"{kind.__name__}.{hook}"
    tree = ast.parse(textwrap.dedent("".join(lines)))
    matching = [getattr(node, "lineno", 0) for node in ast.walk(tree) if find and find(node)]
    definition = next(node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda))
    return shown_place(file, first - 1 + (min(matching) if matching else definition))


def _class_line(kind: type[Any]) -> str:
    try:
        lines, first = inspect.getsourcelines(kind)
        offset = next(number for number, line in enumerate(lines) if line.lstrip().startswith("class "))
        return shown_place(inspect.getsourcefile(kind) or "?", first + offset)
    except (OSError, TypeError, StopIteration):
        return kind.__name__


def method_class(found: Any, name: str) -> type[AnyMethod]:
    """The class of a method that was found by a name outside the package."""
    if not (isinstance(found, type) and issubclass(found, Method)):
        got = "class" if isinstance(found, type) else type(found).__name__
        raise UserError(f'"{name}" is a {got}; must be a class derived from protofed.core.Method.')
    kind: Any = found
    check_method_class(kind)
    return found


@cache
def check_method_class(kind: Any) -> None:
    """Raise an error if the class of a method cannot be what its author means."""
    if origin_of(kind) is None:
        return
    owner = kind.__name__
    own_fields = [
        name
        for name, hint in inspect.get_annotations(kind).items()
        if not str(hint).startswith(("ClassVar", "typing.ClassVar"))
    ]
    if own_fields and "__dataclass_params__" not in vars(kind):
        raise UserError(
            f"{_class_line(kind)}: {owner} is not a dataclass, so {own_fields[0]} would not be an option. "
            "Write @dataclass(frozen=True) above the class."
        )
    for base in kind.__mro__:
        if base is Method or not is_dataclass(base) or origin_of(base) is None:
            continue
        for name, function in vars(base).items():
            if inspect.isfunction(function) and not name.startswith("_"):
                _check_hook(kind, name, function)
    if kind.receive is Method.receive:
        raise UserError(
            f"{_class_line(kind)}: {owner} must define receive(self, kept, down): the parameters that training starts "
            "from."
        )
    try:
        kind.types()
    except StopIteration:
        raise UserError(
            f"{_class_line(kind)}: {owner} does not say what it sends and stores. Derive it from Method[Server, Down, "
            "Up, Kept]: the types of the server's state, of the messages to and from a client, and of what a client "
            "keeps."
        ) from None


def _check_hook(kind: type[AnyMethod], name: str, function: Callable[..., Any]) -> None:
    """Raise an error if a function is a misspelt hook, or a hook that cannot be called as one."""
    if name not in HOOKS:
        close = get_close_matches(name, HOOKS, n=1, cutoff=0.82)
        if close:
            raise UserError(
                f"{line_of(kind, name)}: {kind.__name__}.{name} is not a hook, so nothing would call it. Did you mean "
                f'"{close[0]}"? If it is a function of your own, begin its name with an underscore.'
            )
        return
    expected = list(inspect.signature(getattr(Method, name)).parameters.values())
    try:
        inspect.signature(function).bind(*(["value"] * len([one for one in expected if one.default is one.empty])))
    except TypeError:
        got, wanted = (", ".join(inspect.signature(which).parameters) for which in (function, getattr(Method, name)))
        raise UserError(
            f"{line_of(kind, name)}: {kind.__name__}.{name} takes ({got}), but it is called with ({wanted}). "
            "Give it these parameters."
        ) from None


def require_loss(method: AnyMethod, loss: Any) -> Loss:
    """What `loss` returned; an error if it is not a `Loss` with terms that are single numbers."""
    if (
        isinstance(loss, Loss)
        and loss.terms
        and all(isinstance(term, Tensor) and term.dim() == 0 for term in loss.terms.values())
    ):
        return loss
    where, owner = line_of(type(method), "loss", lambda node: isinstance(node, ast.Return)), type(method).__name__
    if not isinstance(loss, Loss):
        raise UserError(
            f"{where}: {owner}.loss returned a {type(loss).__name__}; must be a Loss with named terms, for example "
            "Loss(supervised=cross_entropy(logits, batch))."
        )
    if not loss.terms:
        raise UserError(f"{where}: {owner}.loss returned a Loss without terms. Give it at least one, by name.")
    name, term = next((name, term) for name, term in loss.terms.items() if not isinstance(term, Tensor) or term.dim())
    got = f"shape {list(term.shape)}" if isinstance(term, Tensor) else f"type {type(term).__name__}"
    raise UserError(
        f'{where}: the term "{name}" of {owner}.loss has {got}; must be a tensor with a single number. '
        "weighted_mean(values, batch.weight) takes the mean over a batch."
    )


def checked(method: AnyMethod, hook: str, tree: Any) -> Any:
    """What a hook returned; of a method of another author an error if it cannot be sent, stored and stacked.

    Its tensors are contiguous and its names sorted, as they are after a message or a checkpoint: another layout, or
    sums in another order, may round differently.
    """
    if not is_ours(method) and (wrong := wrong_leaf(tree)):
        name, value = wrong
        place = f' at "{name}"' if name else ""
        raise UserError(
            f"{line_of(type(method), hook, lambda node: isinstance(node, ast.Return))}: {type(method).__name__}.{hook} "
            f"returned a {type(value).__name__}{place}; must consist of tensors, Prototypes, dicts and NamedTuples. "
            "Numbers can be tensors (torch.tensor(3.0)), and text can be an option of the method."
        )
    tree = with_sorted_names(tree)
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return tree if all(leaf.is_contiguous() for leaf in tensors) else tree_map_only(Tensor, Tensor.contiguous, tree)


def require_equal_uploads(method: AnyMethod, uploads: Sequence[Upload[Any]]) -> None:
    """Raise an error if the clients of another author's method send messages of different names or shapes."""
    if is_ours(method):
        return
    shapes = [
        {
            name: list((leaf.mean if isinstance(leaf, Prototypes) else leaf).shape)
            for name, leaf in leaves(upload.message)
        }
        for upload in uploads
    ]
    for upload, mine in zip(uploads, shapes, strict=True):
        for name in sorted(mine.keys() | shapes[0].keys()):
            if mine.get(name) != shapes[0].get(name):
                first, second = (
                    f"shape {found}" if found else "nothing" for found in (shapes[0].get(name), mine.get(name))
                )
                raise UserError(
                    f"{line_of(type(method), 'upload', lambda node: isinstance(node, ast.Return))}: "
                    f'{type(method).__name__}.upload returned {second} for "{name}" at client {upload.client}, and '
                    f"{first} at client {uploads[0].client}. All clients must send the same names and shapes. "
                    "Prototypes have a row for every class, also for those that a client does not have."
                )


def explained_error(problem: Exception, method: AnyMethod) -> UserError | None:
    """An exception in a hook of another author as a message with her file and line; None if it is not in her code."""
    if is_ours(method) or isinstance(problem, UserError):
        return None
    files = {origin.file for kind in type(method).__mro__ if kind is not object and (origin := origin_of(kind))}
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename in files]
    hooks = [frame.name for frame in frames if frame.name in HOOKS]
    if not frames or not hooks:
        return None
    where, owner = shown_place(frames[-1].filename, frames[-1].lineno or 0), f"{type(method).__name__}.{hooks[0]}"
    text = str(problem).strip()
    for words, rule in _VMAP_RULES:
        if any(word in text for word in words):
            return UserError(f"{where}: {owner} {rule} {LOOP_ADVICE}")
    what = f"{type(problem).__name__}: {text.partition(chr(10))[0]}".rstrip(": .")
    advice = f" {LOOP_ADVICE}" if hooks[0] == "loss" else ""
    return UserError(f"{where}: {owner} failed with {what}.{advice}")


@contextmanager
def explaining_errors(method: AnyMethod) -> Iterator[None]:
    """Inside this block, an exception in a hook of another author becomes a message with her file and line."""
    try:
        yield
    except Exception as problem:
        explained = explained_error(problem, method)
        if explained is None:
            raise
        raise explained from problem
