"""Every draw is derived, not stored: a random choice has its own generator, made from what the choice is for.

Nothing here touches torch's or numpy's global generators, and nothing anywhere else in the package draws from them.
"""

from __future__ import annotations

import hashlib
import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WORD = 0xFFFFFFFF


def derive(*parts: int | str | None) -> int:
    """A 63-bit number from the parts, the same in every process and on every machine.

    >>> derive(0, "batches", 3, 7) == derive(0, "batches", 3, 7) != derive(0, "batches", 7, 3)
    True
    """
    plain = tuple(part if part is None or isinstance(part, str) else operator.index(part) for part in parts)
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: int | str | None) -> torch.Generator:
    """A torch generator of its own for the choice that the parts name."""
    made = torch.Generator()
    made.manual_seed(derive(*parts))
    return made


def random_state(*parts: int | str | None) -> np.random.RandomState:
    """The same for partitions: numpy keeps RandomState's streams frozen across its versions."""
    number = derive(*parts)
    return np.random.RandomState([number & _WORD, number >> 32])


@contextmanager
def no_global_draws(who: str) -> Iterator[None]:
    """Refuse a block that drew from torch's global generator: what it did would not repeat."""
    before = torch.get_rng_state()
    yield
    if not torch.equal(before, torch.get_rng_state()):
        raise UserError(
            f"{who} drew from torch's global generator, so that runs would not repeat. Let its layers draw only by "
            "their own initialisers (uniform, normal, Kaiming, ...), and in training only by nn.Dropout, 1d to 3d."
        )


class DrawFrom(TorchFunctionMode):
    """Inside this block the layers' own initialisers draw from the given generator.

    It reaches modules that know nothing of it: `nn.Linear(2, 3)` inside the block is a function of the generator.
    """

    DRAWING = frozenset(
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

    def __init__(self, source: torch.Generator) -> None:
        super().__init__()
        self.source = source

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.__name__ in self.DRAWING and kwargs.get("generator") is None:
            kwargs["generator"] = self.source
        return func(*args, **kwargs)


class DerivedDropout(TorchFunctionMode):
    """Inside this block every dropout layer's mask is a hash of (key, which call, position): no generator at all.

    So a mask does not depend on who else is trained in the same process or tensor, and torch.func can map over the key.
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
        """`x` with a share `p` of its elements, or of its channels, set to 0 and the rest scaled up."""
        if not training or p == 0:
            return x
        if p == 1:
            return x * 0
        shape = x.shape if name == "dropout" else x.shape[:2] + (1,) * (x.dim() - 2)
        self.calls += 1
        kept = hashed(self.key, self.calls, shape.numel()).reshape(shape) >= int(p * (_WORD + 1))
        return x * (kept.to(x.dtype) / (1 - p))


def hashed(key: Tensor, call: int, count: int) -> Tensor:
    """`count` integers, uniform in [0, 2^32), from a 63-bit key [] and a call number."""
    position = torch.arange(count, device=key.device)
    word = _mixed((key & _WORD) + call & _WORD)
    return _mixed((_mixed(position ^ word) + (key >> 32)) & _WORD)


def _mixed(word: Tensor) -> Tensor:
    """A bijection of 32-bit words (held in int64) that spreads every input bit over all output bits."""
    word = ((word ^ (word >> 16)) * 0x7FEB352D) & _WORD
    word = ((word ^ (word >> 15)) * 0x846CA68B) & _WORD
    return word ^ (word >> 16)
