"""Random draws. Every choice has a generator of its own, seeded by a hash of what the choice is for.

So no generator state has to be stored. Nothing in the package draws from the global generators of torch or numpy.
"""

from __future__ import annotations

import hashlib
import operator
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "DerivedDropout",
    "DrawFrom",
    "derive",
    "generator",
    "global_states",
    "hashed_integers",
    "no_global_draws",
    "random_state",
]

_MASK32 = 0xFFFFFFFF
"""The low 32 bits of an integer."""
_SIGN = -(1 << 31)
"""The sign bit of a 32-bit word."""


def derive(*parts: int | str | None) -> int:
    """A 63-bit hash of the parts. It is the same in every process and on every machine.

    >>> derive(0, "batches", 3, 7) == derive(0, "batches", 3, 7) != derive(0, "batches", 7, 3)
    True
    """
    values = tuple(part if part is None or isinstance(part, str) else operator.index(part) for part in parts)
    digest = hashlib.blake2b(repr(values).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: int | str | None) -> torch.Generator:
    """A new torch generator for the choice that the parts name."""
    return torch.Generator().manual_seed(derive(*parts))


def random_state(*parts: int | str | None) -> np.random.RandomState:
    """A new numpy generator for the choice that the parts name. Partitions use it.

    It is a `RandomState` because numpy guarantees that its streams do not change between versions.
    """
    seed = derive(*parts)
    return np.random.RandomState([seed & _MASK32, seed >> 32])


def global_states() -> dict[str, Any]:
    """The states of the global generators, by the name of their package."""
    numpy_state: Any = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (numpy_state[1].tobytes(), numpy_state[2]),
        "Python": random.getstate(),
    }


@contextmanager
def no_global_draws(who: str) -> Iterator[None]:
    """Raise an error if this block draws from a global generator, since its result could not be repeated."""
    before = global_states()
    yield
    for package, state in global_states().items():
        if state == before[package]:
            continue
        raise UserError(
            f"{who} drew from {package}'s global generator, so runs would not be repeatable. Use only torch's own "
            "initialisers (uniform, normal, Kaiming, ...), and in training only nn.Dropout and nn.Dropout1d to 3d."
        )


class DrawFrom(TorchFunctionMode):
    """Inside this block, the initialisers of layers draw from the given generator.

    Modules need no change for it: the weights of `nn.Linear(2, 3)` are a function of the generator.
    """

    DRAWING_FUNCTIONS = frozenset(
        [
            "uniform_",
            "normal_",
            "kaiming_uniform_",
            "random_",
            "exponential_",
            "bernoulli_",
            "rand",
            "randn",
            "randint",
            "randperm",
        ]
    )

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.__name__ in self.DRAWING_FUNCTIONS and kwargs.get("generator") is None:
            kwargs["generator"] = self.generator
        return func(*args, **kwargs)


class DerivedDropout(TorchFunctionMode):
    """Inside this block, every dropout mask is a hash of (key, number of the call, position), without a generator.

    So a client's masks do not depend on the clients it is trained with, and `vmap` can map over the keys of several.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.calls = 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
            return self.drop(name, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def drop(self, name: str, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """`x` with a fraction `p` of its elements (or channels) set to 0, and the others divided by 1 - p."""
        if not training or p == 0:
            return x
        if p == 1:
            return x * 0
        shape = x.shape if name == "dropout" else x.shape[:2] + (1,) * (x.dim() - 2)
        self.calls += 1
        words = _hashed_words(self.key, self.calls, shape.numel()).reshape(shape)
        is_kept = (words ^ _SIGN) >= int(p * (_MASK32 + 1)) - (1 << 31)  # both sides without sign, less 2^31
        return x * (is_kept.to(x.dtype) / (1 - p))


def hashed_integers(key: Tensor, call: int, count: int) -> Tensor:
    """Integers [count], uniform in [0, 2^32): a hash of a 63-bit key [], the number of the call, and the position."""
    return _hashed_words(key, call, count).long() & _MASK32


def _hashed_words(key: Tensor, call: int, count: int) -> Tensor:
    """`hashed_integers` as 32-bit words with a sign, which processors multiply much faster than 64-bit integers."""
    position = torch.arange(count, device=key.device, dtype=torch.int32)
    word = _mixed((key + call).to(torch.int32))
    return _mixed(_mixed(position ^ word) + (key >> 32).to(torch.int32))


def _mixed(word: Tensor) -> Tensor:
    """A bijection of 32-bit words in which every input bit influences all output bits. Products overflow on purpose."""
    word = (word ^ ((word >> 16) & 0xFFFF)) * 0x7FEB352D
    word = (word ^ ((word >> 15) & 0x1FFFF)) * (0x846CA68B - (1 << 32))
    return word ^ ((word >> 16) & 0xFFFF)
