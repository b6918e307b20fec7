"""Shamir's shares: any `threshold` of them give the secret, and fewer say nothing about it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

_FIELD = 2**521 - 1
"""A prime above all secrets of 32 bytes."""
SHARE_BYTES = 66


def share_secret(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, int]:
    """A share of a secret of 32 bytes for each holder (numbers from 1): a random polynomial's value there."""
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"a threshold of {threshold} is not possible with {len(holders)} holders")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(_FIELD) for _ in range(threshold - 1))]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * holder + coefficient) % _FIELD
        shares[holder] = value
    return shares


def recovered_secret(shares: Mapping[int, int]) -> bytes:
    """The secret from at least `threshold` shares: the polynomial's value at 0, by Lagrange's formula.

    >>> shares = share_secret(bytes(31) + b"7", holders=[1, 2, 3], threshold=2)
    >>> recovered_secret({holder: shares[holder] for holder in (1, 3)})[-1:]
    b'7'
    """
    weights = _weights(tuple(shares))
    secret = sum(value * weight for value, weight in zip(shares.values(), weights, strict=True)) % _FIELD
    if secret >= 2**256:
        raise ValueError("the shares do not belong together, or are too few")
    return secret.to_bytes(32, "big")


@lru_cache(maxsize=4)
def _weights(holders: tuple[int, ...]) -> tuple[int, ...]:
    """The weights of the holders' shares in Lagrange's formula. A server needs those of the same holders many times."""
    weights = []
    for holder in holders:
        numerator = denominator = 1
        for other in holders:
            if other != holder:
                numerator = numerator * -other % _FIELD
                denominator = denominator * (holder - other) % _FIELD
        weights.append(numerator * pow(denominator, -1, _FIELD) % _FIELD)
    return tuple(weights)
