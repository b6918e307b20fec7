"""The messages of secure sums as tensors of bytes, checked before anything is computed with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protofed.trust.secure_sum.field import PRIME, Vector
from protofed.trust.secure_sum.protocol import PublicKeys, Revealed
from protofed.trust.secure_sum.shamir import SHARE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from protofed.engines.flower.client_answers import MessageFigures

KEY_BYTES = 32
MESSAGE_BYTES = 12 + 2 * SHARE_BYTES + 16
"""Two shares, encrypted, with a nonce and a tag."""
Packed = tuple[dict[str, "Tensor"], dict[str, list[int]]]
"""Tensors and figures of a message."""


def pack_rows(name: str, rows: Mapping[int, bytes]) -> Packed:
    """Bytes per client as a tensor [clients, bytes], and in the figures the clients."""
    if not rows:
        return {}, {name: []}
    table = np.frombuffer(b"".join(rows.values()), np.uint8).reshape(len(rows), -1)
    return {name: torch.from_numpy(table.copy())}, {name: list(rows)}


def unpack_rows(name: str, tensors: Mapping[str, Tensor], figures: MessageFigures, length: int) -> dict[int, bytes]:
    """The bytes per client; an error (ValueError) unless each client has `length` of them, once."""
    clients: Any = figures.get(name)
    if not isinstance(clients, list) or not all(type(client) is int and client >= 0 for client in clients):
        raise ValueError(f"{name} has no list of clients")
    if len(set(clients)) < len(clients):
        raise ValueError(f"{name} names a client twice")
    if not clients:
        return {}
    rows = tensors.get(name)
    if rows is None or rows.dtype != torch.uint8 or rows.shape != (len(clients), length):
        raise ValueError(f"{name} is not a table of {len(clients)} rows of {length} bytes")
    return {client: row.tobytes() for client, row in zip(clients, rows.numpy(), strict=True)}


def pack_keys(keys: Mapping[int, PublicKeys]) -> Packed:
    """The public keys of clients."""
    return pack_rows("keys", {client: key.masks + key.messages for client, key in keys.items()})


def unpack_keys(tensors: Mapping[str, Tensor], figures: MessageFigures) -> dict[int, PublicKeys]:
    """The public keys of clients; an error (ValueError) if they are not such."""
    rows = unpack_rows("keys", tensors, figures, 2 * KEY_BYTES)
    return {client: PublicKeys(row[:KEY_BYTES], row[KEY_BYTES:]) for client, row in rows.items()}


def pack_revealed(revealed: Revealed) -> Packed:
    """The shares that a client reveals."""
    tensors: dict[str, Tensor] = {}
    figures: dict[str, list[int]] = {}
    for name, shares in revealed._asdict().items():
        rows = {client: share.to_bytes(SHARE_BYTES, "big") for client, share in shares.items()}
        part, clients = pack_rows(f"{name}_of", rows)
        tensors, figures = tensors | part, figures | clients
    return tensors, figures


def unpack_revealed(tensors: Mapping[str, Tensor], figures: MessageFigures) -> Revealed:
    """The shares that a client reveals; an error (ValueError) if they are not such."""
    rows = [unpack_rows(f"{name}_of", tensors, figures, SHARE_BYTES) for name in Revealed._fields]
    seeds, keys = ({client: int.from_bytes(row, "big") for client, row in part.items()} for part in rows)
    return Revealed(seeds, keys)


def pack_vector(vector: Vector) -> dict[str, Tensor]:
    """A masked upload."""
    return {"masked": torch.from_numpy(vector.astype(np.int64))}


def unpack_vector(tensors: Mapping[str, Tensor], length: int) -> Tensor:
    """A masked upload; an error (ValueError) unless it has `length` elements of the field, and nothing else came."""
    if set(tensors) != {"masked"}:
        raise ValueError(f"it sent {', '.join(sorted(tensors)) or 'no tensors'} instead of a masked upload")
    masked = tensors["masked"]
    if masked.dtype != torch.int64 or masked.shape != (length,):
        raise ValueError(f"its masked upload has the shape {list(masked.shape)} of {masked.dtype}; must be [{length}]")
    if length and not (int(masked.min()) >= 0 and int(masked.max()) < PRIME):
        raise ValueError("its masked upload has a number outside the field")
    return masked
