"""Signatures of the public keys of a secure sum, with which a client knows that the server passed on the true ones.

Clients sign with the key with which they authenticate (`deploy init --auth`), and know each other's public keys from
the folder `peers`, which the operator gave them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from protofed.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.engines.flower.client_answers import MessageFigures
    from protofed.trust.secure_sum.protocol import PublicKeys

_HALF = 66
SIGNATURE_BYTES = 2 * _HALF
"""Two numbers; those of the largest curve have 66 bytes."""
_ALGORITHM = ECDSA(SHA384())


def signed_text(task: MessageFigures, name: str, number: int, keys: PublicKeys) -> bytes:
    """What a client signs: who it is, for which attempt at which round, and its keys."""
    about = ["protofed secure sum", task["run"], task["round"], task["secure"]["attempt"], name, number]
    return json.dumps([*about, keys.masks.hex(), keys.messages.hex()]).encode()


def sign_keys(private: Path, text: bytes) -> bytes:
    """The signature with a client's key (OpenSSH)."""
    key = load_ssh_private_key(private.read_bytes(), password=None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(f"{private} is not an elliptic-curve key. Make one with: ssh-keygen -t ecdsa -b 384")
    return b"".join(part.to_bytes(_HALF, "big") for part in decode_dss_signature(key.sign(text, _ALGORITHM)))


def is_signed(public: Path, text: bytes, signature: bytes) -> bool:
    """Whether this is the signature of the owner of the public key; False if there is no such file."""
    try:
        key = load_ssh_public_key(public.read_bytes())
        if not isinstance(key, EllipticCurvePublicKey):
            return False
        parts = (int.from_bytes(part, "big") for part in (signature[:_HALF], signature[_HALF:]))
        key.verify(encode_dss_signature(*parts), text, _ALGORITHM)
    except (OSError, ValueError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True
