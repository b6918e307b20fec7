"""The engine of a deployed federation with secure sums: four messages per round and client instead of one.

The server asks for keys, passes on keys and shares, lets clients train and upload masked vectors, and asks for what
removes the masks of their total. A client that fails between two steps has dropped out of the round.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from protofed.deploy.secure_wire import (
    MESSAGE_BYTES,
    pack_keys,
    pack_rows,
    unpack_keys,
    unpack_revealed,
    unpack_rows,
    unpack_vector,
)
from protofed.deploy.signed_keys import SIGNATURE_BYTES, is_signed, signed_text
from protofed.engines.engine import ORDINARY, Report, RoundPlan, hold_in_memory
from protofed.engines.flower.client_answers import one_line, report_of
from protofed.engines.flower.exchange import Exchange, Parcel
from protofed.engines.flower.remote import Remote
from protofed.trust.secure_sum.field import SecureSumError
from protofed.trust.secure_sum.protocol import SecureServer
from protofed.trust.secure_sum.totals import needed_clients, summed_numbers, upload_of_total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from protofed.core import Upload
    from protofed.trust.secure_sum.protocol import PublicKeys

    Take = Callable[[int, Parcel], None]

_TOO_FEW = "too few clients are left for a secure sum"


class SecureRemote(Remote):
    """Sees the figures of each client and the total of their uploads. `threshold`: the share that must upload."""

    threshold = 1.0
    keys: Path | None = None
    """The folder with the public keys of clients, if these authenticate: they sign their keys for the sum."""
    server: SecureServer
    attempt = ""

    def train(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[Report]:
        """Let clients train; the messages of the reports are masked. A round that is repeated has other secrets."""
        self.hold = hold_in_memory  # masked uploads are no messages of the method, and are added in memory anyway
        self.attempt = secrets.token_hex(16)
        self.server = SecureServer(round, needed_clients(self.threshold, len(downs)))
        return super().train(round, downs, plan)

    def _trained(self, round: int, tasks: dict[int, Parcel]) -> Exchange:
        """Steps 1 to 3. Only clients that have completed a step take part in the next one."""
        server, failures, signatures = self.server, dict[int, str](), dict[int, bytes]()

        def take_keys(number: int, answer: Parcel) -> None:
            keys = unpack_keys(*answer)
            if set(keys) != {number}:
                raise ValueError("it sent other keys than its own")
            if self.keys:  # a wrong signature would stop all other clients
                signatures.update(self._signature(number, keys[number], answer))
            server.take_keys(number, keys[number])

        def take_shares(number: int, answer: Parcel) -> None:
            server.take_shares(number, unpack_rows("shares", *answer, MESSAGE_BYTES))

        failures |= self._step("keys", round, tasks, lambda number: Parcel({}, {}), take_keys)
        if self._are_enough(server.keys, failures):
            keys = self._relayed_keys(signatures)
            failures |= self._step("shares", round, server.keys, lambda number: keys, take_shares)
        if not self._are_enough(server.sent, failures):
            return Exchange(tasks, failures=failures)
        training = {
            number: self._with_secrets(tasks[number], Parcel(*pack_rows("shares", server.shares_for(number))))
            for number in server.sent
        }
        exchange = self.post.exchange(round, training)
        exchange.failures = failures | exchange.failures
        return exchange

    def _signature(self, number: int, keys: PublicKeys, answer: Parcel) -> dict[int, bytes]:
        """The signature of a client's keys; an error (ValueError) if it is not that of the registered key."""
        signature = unpack_rows("signatures", *answer, SIGNATURE_BYTES)
        task = self._with_secrets(self._parcel("keys", self.server.round, number, {}), Parcel({}, {})).figures
        name = self.post.names[number]
        text = signed_text(task, name, number, keys)
        if self.keys is None or set(signature) != {number}:
            raise ValueError("its keys are not signed")
        if not is_signed(self.keys / f"{name}.pub", text, signature[number]):
            raise ValueError("its keys are not signed with the key that is registered for it")
        return signature

    def _relayed_keys(self, signatures: Mapping[int, bytes]) -> Parcel:
        """The keys of all clients, with their names and signatures if there are any."""
        tensors, figures = pack_keys(self.server.keys)
        content: dict[str, Any] = dict(figures)
        if self.keys:
            signed = pack_rows("signatures", {number: signatures[number] for number in self.server.keys})
            tensors, content = tensors | signed[0], content | signed[1]
            content["names"] = [self.post.names[number] for number in self.server.keys]
        return Parcel(tensors, content)

    def _are_enough(self, clients: Iterable[int], failures: dict[int, str]) -> bool:
        """Whether enough clients are left to go on; otherwise all of them have failed."""
        left = list(clients)
        if len(left) >= self.server.threshold:
            return True
        failures |= dict.fromkeys((number for number in left if number not in failures), _TOO_FEW)
        return False

    def _step(
        self, kind: str, round: int, clients: Iterable[int], content: Callable[[int], Parcel], take: Take
    ) -> dict[int, str]:
        """One step with these clients. Returns why some did not complete it."""
        tasks = {
            number: self._with_secrets(self._parcel(kind, round, number, {}), content(number)) for number in clients
        }
        exchange = self.post.exchange(round, tasks)
        for number, answer in sorted(exchange.answers.items()):
            try:
                take(number, answer)
            except (ValueError, SecureSumError) as problem:
                exchange.failures[number] = str(problem)
        return {number: f"{kind}: {reason}" for number, reason in exchange.failures.items()}

    def _with_secrets(self, task: Parcel, content: Parcel) -> Parcel:
        """A message with what secure sums add to it."""
        secure = {"attempt": self.attempt, "threshold": self.server.threshold, **content.figures}
        tensors = {f"secure/{name}": value for name, value in content.tensors.items()}
        return Parcel(task.tensors | tensors, {**task.figures, "secure": secure})

    def _read(self, number: int, down: Any, parcel: Parcel) -> Report:
        masked = unpack_vector(parcel.tensors, summed_numbers(self.method, self._template(number, down)))
        return report_of(number, masked, parcel.figures)

    def summed_upload(self, round: int, uploads: Sequence[Upload[Any]], clients: Iterable[int]) -> Upload[Any]:
        """Step 4: one upload in place of all. Clients without a usable upload have dropped out."""
        server = self.server
        server.uploads = {upload.client: upload.message.numpy().astype(np.uint64) for upload in uploads}
        server.require(len(server.uploads), "uploaded")
        uploaded = Parcel({}, {"uploaded": sorted(server.uploads)})

        def take_revealed(number: int, answer: Parcel) -> None:
            server.take_revealed(number, unpack_revealed(*answer))

        failures = self._step("reveal", round, server.uploads, lambda number: uploaded, take_revealed)
        for number, reason in sorted(failures.items()):
            self.post.say(number, f"did not help to remove the masks of round {round + 1}: {one_line(reason)}")
        server.require(len(server.revealed), "helped to remove the masks")
        return upload_of_total(
            self.method, uploads[0]._replace(message=self.templates[uploads[0].client]), server.total()
        )
