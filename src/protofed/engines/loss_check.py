"""A loss of another author, tried out on a few examples before it is stacked: is it pure, and does it ignore padding?

A loss that breaks these rules gives other results in a stack than in the loop, without an error. Here it is found: the
loss is called twice with the same batch, and once with padding, and Python's variables and random generators are
compared before and after.
"""

from __future__ import annotations

import ast
import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from protofed import draws
from protofed.batch import Batch, labels_and_weights
from protofed.contract import LOOP_ADVICE, line_of, require_loss, shown_place
from protofed.core import AnyMethod, Client, Loss, Params
from protofed.errors import UserError
from protofed.training import in_training

_EXAMPLES = 4
"""How many examples the loss is tried on."""
_PADDING = 3
_TOLERANCE = 1e-3
"""Padding that counts changes a mean over 4 examples by much more; rounding changes it by less."""
_PURE = (
    "A loss may depend only on its arguments and on the options of the method: engines call it once for many clients, "
    "and later repeat the recorded operations without calling it."
)
_PLAIN = (int, float, str, bool, list, dict, set, tuple, type(None), np.ndarray)


def check_loss(method: AnyMethod, client: Client, start: Params, down: Any, kept: Any, stacked: bool = True) -> bool:
    """Raise an error if the loss is not pure or counts padding; False if the client has too few examples to find out.

    `down` is what `prepare` returned. `stacked`: False for the loop, in which a loss must only not draw.
    """
    if client.num_examples < 2:
        return False
    net, owner = client.net, type(method).__name__
    x, y = client.data.take(torch.arange(min(_EXAMPLES, client.num_examples)), None)
    batch, key = Batch.of(x, y), torch.tensor(draws.derive(client.seed, "loss check", client.client))
    rows = torch.tensor([*range(len(x)), *[0] * _PADDING])
    weight = (torch.arange(len(rows)) < len(x)).to(batch.weight)
    padded = Batch(x[rows], *labels_and_weights(y[rows], weight))

    def compute(batch: Batch) -> Loss:
        params = {name: value.detach().clone() for name, value in start.items()}  # batch norm changes its buffers
        for name, value in params.items():
            value.requires_grad_(net.trains(name, value))
        with torch.enable_grad(), draws.DerivedDropout(key):
            return require_loss(method, method.loss(net, params, batch, down, kept))

    with in_training(net):
        before, generators = _variables(method), draws.global_states()
        with NoDraws(method):
            first = compute(batch)
        if draws.global_states() != generators:
            raise UserError(
                f"{line_of(type(method), 'loss', _is_a_draw)}: {owner}.loss draws random numbers. {_DRAW_ADVICE}"
            )
        if not stacked:
            return True
        changed = [name for name, value in _variables(method).items() if before.get(name) != value]
        if changed:
            raise UserError(
                f"{_line_that_changes(method, changed[0])}: {owner}.loss changes {changed[0]}. {_PURE} {LOOP_ADVICE}"
            )
        for name, value, again in _compared(first, compute(batch)):
            if not torch.equal(value, again):
                raise UserError(
                    f"{line_of(type(method), 'loss')}: {owner}.loss gives {name} = {_shown(value)} and then "
                    f"{_shown(again)} for the same batch. {_PURE} {LOOP_ADVICE}"
                )
        for name, value, other in _compared(first, compute(padded)):
            if value.shape != other.shape or not torch.allclose(
                value, other, rtol=_TOLERANCE, atol=_TOLERANCE**2, equal_nan=True
            ):
                raise UserError(
                    f"{line_of(type(method), 'loss', _is_a_mean)}: {owner}.loss counts padding: {name} is "
                    f"{_shown(value)} for a batch, and {_shown(other)} with {_PADDING} more examples of weight 0. The "
                    "stacked engine adds such examples to short batches. Use cross_entropy(logits, batch) instead of "
                    "F.cross_entropy, and weighted_mean(values, batch.weight) instead of mean()."
                )
    return True


_DRAW_ADVICE = (
    "The result could not be repeated. Draw in another hook with site.generator(...), and let the loss get the numbers "
    "in its arguments; for dropout use nn.Dropout in the net."
)


class NoDraws(TorchFunctionMode):
    """Inside this block, a draw of torch without a generator is an error that names the author's line."""

    def __init__(self, method: AnyMethod) -> None:
        super().__init__()
        self.owner, self.file = type(method).__name__, inspect.getsourcefile(inspect.unwrap(type(method).loss))

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        drawing = name in draws.DrawFrom.DRAWING_FUNCTIONS | {"rand_like", "randn_like", "randint_like", "multinomial"}
        if drawing and (kwargs or {}).get("generator") is None:
            frame: Any = sys._getframe(1)
            while frame and frame.f_code.co_filename != self.file:
                frame = frame.f_back
            if frame:
                where = shown_place(self.file or "?", frame.f_lineno)
                raise UserError(f"{where}: {self.owner}.loss draws random numbers ({name}). {_DRAW_ADVICE}")
        return func(*args, **(kwargs or {}))


def _compared(first: Loss, second: Loss) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The terms and observed tensors of two losses, with their names."""
    for name in first.terms.keys() | second.terms.keys():
        if name not in first.terms or name not in second.terms:
            yield f'its term "{name}"', torch.tensor(0.0), torch.tensor(torch.nan)
    for name, term in first.terms.items():
        yield f'its term "{name}"', term.detach(), second.terms.get(name, term).detach()
    for number, (one, other) in enumerate(zip(first.observed, second.observed, strict=True)):
        yield f"observed[{number}]", one.detach(), other.detach()


def _shown(value: Tensor) -> str:
    return f"{value.item():.6g}" if value.numel() == 1 else f"a tensor with the sum {value.double().sum().item():.6g}"


def _variables(method: AnyMethod) -> dict[str, str]:
    """The Python variables that a loss can change: of its module, its class, its method, and its closure."""
    function = inspect.unwrap(type(method).loss)
    names = dict(vars(sys.modules.get(function.__module__, object())).items()) if function.__module__ else {}
    names |= {f"self.{name}": value for name, value in {**vars(type(method)), **vars(method)}.items()}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    names |= {name: cell.cell_contents for name, cell in cells}
    return {
        name: repr(value)[:10_000]
        for name, value in names.items()
        if (isinstance(value, _PLAIN) or type(value).__module__ == "itertools") and not name.startswith("__")
    }


def _line_that_changes(method: AnyMethod, name: str) -> str:
    """The line that writes a variable, or else the first one that uses it, or else that of the loss."""
    function = inspect.unwrap(type(method).loss)
    module = sys.modules[function.__module__]
    own = [value.__code__ for value in vars(module).values() if inspect.isfunction(value)]
    own = [code for code in own if code.co_filename == function.__code__.co_filename]
    used: list[tuple[bool, CodeType, int]] = []
    for code in (function.__code__, *own):
        for step in dis.get_instructions(code):
            if step.argval == name.removeprefix("self.") and step.positions and step.positions.lineno:
                used.append((not step.opname.startswith("STORE"), code, step.positions.lineno))
    if not used:
        return line_of(type(method), "loss")
    _, code, line = min(used, key=lambda use: use[0])
    return shown_place(code.co_filename, line)


def _is_a_mean(node: ast.AST) -> bool:
    """Whether a part of the source is a call that takes a mean over a batch without weights."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in ("mean", "sum", "logsumexp") or "loss" in node.func.attr or "entropy" in node.func.attr


def _is_a_draw(node: ast.AST) -> bool:
    """Whether a part of the source is a call of a function of Python's or numpy's random module."""
    return isinstance(node, ast.Call) and "rand" in ast.unparse(node.func)
