"""Where noise comes from: derived draws in a simulation, the operating system's secret randomness at a deployed client.

Whoever knows the noise can subtract it. Derived draws can be repeated by everybody who knows the seed, which is right
for an experiment and wrong for a client with data of its own.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from protofed.core import Client


class Noise(Protocol):
    """A source of random numbers."""

    def uniform(self, count: int) -> Tensor:
        """Numbers [count] in (0, 1), of double precision."""
        ...

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers of double precision."""
        ...


class DerivedNoise:
    """Numbers that follow from the seed, the round and the client: a run can be repeated bit for bit."""

    def __init__(self, client: Client) -> None:
        self.generator = client.generator("privacy")

    def uniform(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator, dtype=torch.double)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.double)


class SecretNoise:
    """Numbers from the operating system's generator for secrets. They cannot be repeated or predicted."""

    def __init__(self, client: Client) -> None:
        pass

    def uniform(self, count: int) -> Tensor:
        words = torch.frombuffer(bytearray(secrets.token_bytes(8 * count) or b"\0"), dtype=torch.uint8)
        if not count:
            return torch.zeros(0, dtype=torch.double)
        integers = words.view(torch.int64) & (2**52 - 1)
        return (integers.double() + 0.5) / 2**52

    def normal(self, *shape: int) -> Tensor:
        count = int(torch.Size(shape).numel())
        values: Tensor = torch.special.ndtri(self.uniform(count))
        return values.reshape(shape)
