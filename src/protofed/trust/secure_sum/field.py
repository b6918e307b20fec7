"""The finite field of secure sums: numbers as integers modulo a prime, and masks that are uniform in it."""

from __future__ import annotations

import numpy as np

from protofed.errors import UserError


class SecureSumError(UserError):
    """A secure sum that cannot be completed, because too few clients are left or a message was changed."""


PRIME = 2**61 - 1
"""Sums of two numbers below it fit into 64 bits."""
FRACTION_BITS = 24
"""A number is rounded to a multiple of 2^-24."""
LARGEST = float(2**22)
"""Larger numbers cannot be summed: 8,192 clients with numbers of this size still fit into the field."""
MOST_CLIENTS = 2**13
_UNIT = float(2**FRACTION_BITS)
Vector = np.ndarray
"""Integers [n] from 0 to PRIME - 1, of type uint64."""


def to_field(values: np.ndarray) -> Vector:
    """Numbers as elements of the field. Negative numbers are the upper half."""
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all() or (len(values) and np.abs(values).max() > LARGEST):
        raise UserError(
            f"privacy.secure_sum: an upload has a number that is not finite or above {LARGEST:,.0f}, which cannot be "
            "summed securely. Use smaller learning rates, or set privacy.secure_sum = false."
        )
    integers = np.rint(values * _UNIT).astype(np.int64)
    return np.where(integers < 0, integers + PRIME, integers).astype(np.uint64)


def from_field(vector: Vector) -> np.ndarray:
    """The numbers of elements of the field.

    >>> from_field(field_sum(to_field(np.array([1.5, -2.0])), to_field(np.array([0.25, 1.0])))).tolist()
    [1.75, -1.0]
    """
    integers = vector.astype(np.int64)
    result: np.ndarray = np.where(integers > PRIME // 2, integers - PRIME, integers) / _UNIT
    return result


def field_sum(a: Vector, b: Vector) -> Vector:
    """The sum in the field."""
    total: Vector = (a + b) % np.uint64(PRIME)
    return total


def field_difference(a: Vector, b: Vector) -> Vector:
    """The difference in the field."""
    difference: Vector = (a + (np.uint64(PRIME) - b)) % np.uint64(PRIME)
    return difference


def mask(seed: bytes, size: int) -> Vector:
    """`size` uniform elements of the field, from a seed of 32 bytes, by ChaCha20.

    61 random bits are uniform up to one value in 2^61, which becomes 0.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    words: Vector = np.frombuffer(stream, dtype="<u8") & np.uint64(PRIME)
    return words % np.uint64(PRIME)
