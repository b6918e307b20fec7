"""Both sides of a secure sum. A client keeps its secrets; the server passes messages on and adds.

1. Every client publishes two X25519 keys: one for masks, one for messages to other clients.
2. Every client draws a seed of its own and shares it, and its private key for masks, among all clients (Shamir). The
   shares travel through the server, encrypted for their receivers.
3. Every client uploads its vector plus a mask from its own seed, plus a mask per other client from their common
   secret, with opposite signs at both ends. Clients may drop out before or in this step.
4. For every client that uploaded, the others reveal their shares of its seed; for every client that dropped out, their
   shares of its private key. No client reveals both of one client. With `threshold` answers the server can remove the
   masks that do not cancel.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protofed.trust.secure_sum.field import SecureSumError, Vector, field_difference, field_sum, mask
from protofed.trust.secure_sum.shamir import SHARE_BYTES, recovered_secret, share_secret


class PublicKeys(NamedTuple):
    """What a client publishes."""

    masks: bytes
    messages: bytes


class Revealed(NamedTuple):
    """The shares that a client reveals: of seeds of clients that uploaded, of private keys of those that did not."""

    seeds: dict[int, int]
    keys: dict[int, int]


def _derived(own: X25519PrivateKey, other: bytes, purpose: bytes) -> bytes:
    """A secret of 32 bytes that only the owners of both keys can compute."""
    common = own.exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(common)


def _purpose(kind: str, round: int, *clients: int) -> bytes:
    return f"protofed {kind} {round} {' '.join(map(str, clients))}".encode()


def pair_mask(own: X25519PrivateKey, other: bytes, round: int, client: int, peer: int, size: int) -> Vector:
    """The mask that two clients have in common. The client with the lower number adds it, the other subtracts it."""
    seed = _derived(own, other, _purpose("mask", round, min(client, peer), max(client, peer)))
    return mask(seed, size)


class SecureClient:
    """One client in one round."""

    def __init__(self, number: int, round: int, threshold: int) -> None:
        self.number, self.round, self.threshold = number, round, threshold
        self._masks, self._messages = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = secrets.token_bytes(32)
        self._keys: dict[int, PublicKeys] = {}
        self._received: dict[int, tuple[int, int]] = {}
        self._has_revealed = False

    def secrets(self) -> dict[str, Any]:
        """Everything that this client must keep between two messages, as JSON can hold it."""
        private = (self._masks.private_bytes_raw(), self._messages.private_bytes_raw(), self._seed)
        return {
            "client": [self.number, self.round, self.threshold, self._has_revealed],
            "private": [secret.hex() for secret in private],
            "keys": [[peer, key.masks.hex(), key.messages.hex()] for peer, key in self._keys.items()],
            "received": [[peer, hex(seed), hex(key)] for peer, (seed, key) in self._received.items()],
        }

    @classmethod
    def restored(cls, kept: Mapping[str, Any]) -> SecureClient:
        """The client with these secrets, in another process."""
        *numbers, has_revealed = kept["client"]
        client = cls(*numbers)
        masks, messages, client._seed = map(bytes.fromhex, kept["private"])
        client._masks, client._messages = map(X25519PrivateKey.from_private_bytes, (masks, messages))
        client._keys = {p: PublicKeys(bytes.fromhex(a), bytes.fromhex(b)) for p, a, b in kept["keys"]}
        client._received = {peer: (int(seed, 16), int(key, 16)) for peer, seed, key in kept["received"]}
        client._has_revealed = has_revealed
        return client

    def public_keys(self) -> PublicKeys:
        """Step 1."""
        return PublicKeys(self._masks.public_key().public_bytes_raw(), self._messages.public_key().public_bytes_raw())

    def shares(self, keys: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Step 2: an encrypted message for each other client."""
        if len(keys) < self.threshold:
            raise SecureSumError(f"{len(keys)} clients take part, but the threshold is {self.threshold}.")
        if keys.get(self.number) != self.public_keys() or len({key.masks for key in keys.values()}) < len(keys):
            raise SecureSumError("The server has passed on other keys than those of the clients.")
        self._keys = dict(keys)
        holders = [number + 1 for number in keys]
        seeds = share_secret(self._seed, holders, self.threshold)
        private = share_secret(self._masks.private_bytes_raw(), holders, self.threshold)
        self._received[self.number] = (seeds[self.number + 1], private[self.number + 1])
        messages, view = {}, self._view()
        for peer in keys:
            if peer != self.number:
                text = b"".join(part[peer + 1].to_bytes(SHARE_BYTES, "big") for part in (seeds, private))
                cipher, nonce = self._cipher(peer), secrets.token_bytes(12)
                about = _purpose("shares", self.round, self.number, peer) + view
                messages[peer] = nonce + cipher.encrypt(nonce, text, about)
        return messages

    def _view(self) -> bytes:
        """A hash of the round's clients, their keys and the threshold, as the server has told this client.

        Shares can be read only by clients with the same view. A server that tells clients of different sets of peers,
        all with true keys, could otherwise choose them so that the masks of one upload are known to all.
        """
        told = sorted((number, key.masks, key.messages) for number, key in self._keys.items())
        return hashlib.sha256(repr((self.threshold, told)).encode()).digest()

    def _cipher(self, peer: int) -> ChaCha20Poly1305:
        pair = (min(self.number, peer), max(self.number, peer))
        return ChaCha20Poly1305(_derived(self._messages, self._keys[peer].messages, _purpose("key", self.round, *pair)))

    def receive(self, messages: Mapping[int, bytes]) -> None:
        """Step 2: the messages of the other clients, by sender."""
        view = self._view()
        for peer, message in messages.items():
            about = _purpose("shares", self.round, peer, self.number) + view
            try:
                text = self._cipher(peer).decrypt(message[:12], message[12:], about)
            except (InvalidTag, KeyError, ValueError):
                raise SecureSumError(
                    f"The shares from client {peer} have been changed on their way, or it was told of other clients."
                ) from None
            self._received[peer] = (
                int.from_bytes(text[:SHARE_BYTES], "big"),
                int.from_bytes(text[SHARE_BYTES:], "big"),
            )

    def masked(self, vector: Vector) -> Vector:
        """Step 3: the upload. Clients from which no shares came have no common mask."""
        if len(self._received) < self.threshold:
            raise SecureSumError(f"{len(self._received)} clients sent shares, but the threshold is {self.threshold}.")
        result = field_sum(vector, mask(self._seed, len(vector)))
        for peer in self._received:
            if peer != self.number:
                common = pair_mask(self._masks, self._keys[peer].masks, self.round, self.number, peer, len(vector))
                result = field_sum(result, common) if self.number < peer else field_difference(result, common)
        return result

    def reveal(self, uploaded: Iterable[int]) -> Revealed:
        """Step 4, once per round: a client that answered twice could reveal both secrets of another one."""
        alive = set(uploaded) & self._received.keys()
        if self._has_revealed:
            raise SecureSumError("The server has asked twice for shares.")
        if len(alive) < self.threshold:
            raise SecureSumError(f"{len(alive)} clients uploaded, but the threshold is {self.threshold}.")
        self._has_revealed = True
        return Revealed(
            {peer: seed for peer, (seed, _) in self._received.items() if peer in alive},
            {peer: key for peer, (_, key) in self._received.items() if peer not in alive},
        )


def unmasked_total(
    keys: Mapping[int, PublicKeys],
    sharing: Iterable[int],
    uploads: Mapping[int, Vector],
    revealed: Mapping[int, Revealed],
    round: int,
    threshold: int,
) -> Vector:
    """The server's last step: the total of the vectors of the clients that uploaded.

    `sharing`: the clients that completed step 2, with which the others have common masks.
    """
    if len(uploads) < threshold or len(revealed) < threshold:
        raise SecureSumError(
            f"privacy.secure_sum: {len(uploads)} clients uploaded and {len(revealed)} helped to remove the masks, but "
            f"{threshold} are needed (privacy.threshold); the total stays secret"
        )
    size = len(next(iter(uploads.values())))
    total = mask(bytes(32), size) * 0
    for vector in uploads.values():
        total = field_sum(total, vector)
    for client in uploads:
        shares = {helper + 1: part.seeds[client] for helper, part in revealed.items() if client in part.seeds}
        total = field_difference(total, mask(recovered_secret(_first(shares, threshold)), size))
    for client in set(sharing) - set(uploads):
        shares = {helper + 1: part.keys[client] for helper, part in revealed.items() if client in part.keys}
        private = X25519PrivateKey.from_private_bytes(recovered_secret(_first(shares, threshold)))
        for peer in uploads:
            common = pair_mask(private, keys[peer].masks, round, client, peer, size)
            total = field_difference(total, common) if peer < client else field_sum(total, common)
    return total


def _first(shares: Mapping[int, int], threshold: int) -> dict[int, int]:
    """As many shares as are needed."""
    if len(shares) < threshold:
        raise SecureSumError(f"{len(shares)} shares of a secret came, but {threshold} are needed.")
    return dict(sorted(shares.items())[:threshold])


class SecureServer:
    """The server in one round: it passes on keys and shares, and adds. Whatever a client sends is checked first."""

    def __init__(self, round: int, threshold: int) -> None:
        self.round, self.threshold = round, threshold
        self.keys: dict[int, PublicKeys] = {}
        self.sent: dict[int, Mapping[int, bytes]] = {}
        self.uploads: dict[int, Vector] = {}
        self.revealed: dict[int, Revealed] = {}

    def take_keys(self, client: int, keys: PublicKeys) -> None:
        """Step 1. A key that another client has, or with which no secret is possible, would stop all clients."""
        try:
            for key in keys:
                _derived(X25519PrivateKey.generate(), key, b"")
        except ValueError:
            raise SecureSumError("its public keys cannot be used") from None
        if any(keys.masks == other.masks for other in self.keys.values()):
            raise SecureSumError("another client has the same public key")
        self.keys[client] = keys

    def take_shares(self, client: int, messages: Mapping[int, bytes]) -> None:
        """Step 2: the encrypted shares of a client, by receiver."""
        if messages.keys() != self.keys.keys() - {client}:
            raise SecureSumError("its shares are not for the other clients of the round")
        self.sent[client] = messages

    def shares_for(self, client: int) -> dict[int, bytes]:
        """Step 2: what the other clients sent to this one, by sender."""
        return {sender: messages[client] for sender, messages in self.sent.items() if sender != client}

    def take_revealed(self, client: int, revealed: Revealed) -> None:
        """Step 4: the shares that a client reveals, after all uploads."""
        if revealed.seeds.keys() != self.uploads.keys() or revealed.keys.keys() != self.sent.keys() - self.uploads:
            raise SecureSumError("it reveals other shares than those that are needed")
        self.revealed[client] = revealed

    def require(self, clients: int, what: str) -> None:
        """Raise an error if too few clients are left."""
        if clients < self.threshold:
            raise SecureSumError(
                f"privacy.secure_sum: {clients} clients {what}, but {self.threshold} are needed (privacy.threshold)"
            )

    def total(self) -> Vector:
        """The total of the uploads, after step 4."""
        try:
            return unmasked_total(self.keys, self.sent, self.uploads, self.revealed, self.round, self.threshold)
        except ValueError as problem:
            raise SecureSumError(f"privacy.secure_sum: the masks cannot be removed: {problem}.") from None


def secure_total(vectors: Mapping[int, Vector], clients: Iterable[int], round: int, threshold: int) -> Vector:
    """A complete round with all parties in this process. `clients`: all that began; those without a vector dropped out.

    Masks cancel exactly, so the total does not depend on the secrets that were drawn.
    """
    parties = {number: SecureClient(number, round, threshold) for number in sorted(clients)}
    server = SecureServer(round, threshold)
    for number, party in parties.items():
        server.take_keys(number, party.public_keys())
    for number, party in parties.items():
        server.take_shares(number, party.shares(server.keys))
    for number, party in parties.items():
        party.receive(server.shares_for(number))
    server.uploads = {number: parties[number].masked(vector) for number, vector in vectors.items()}
    if len(server.uploads) >= threshold:
        for number in server.uploads:
            server.take_revealed(number, parties[number].reveal(server.uploads))
    return server.total()
