"""A client's part of a secure sum. Flower starts a new process per message, so the secrets of a round are in a file.

Only its owner may read the file. Each step is done once per attempt of the server at a round: the same message gets the
same answer, another one is refused, because two answers with the same secrets could give away what they hide. When the
client has revealed its shares, or is tested after the round, its secrets are deleted.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from protofed.core import Upload
from protofed.deploy.client_work import ClientWork, Reply
from protofed.deploy.deployment import PEERS_FOLDER, replace_file
from protofed.deploy.secure_wire import (
    MESSAGE_BYTES,
    pack_keys,
    pack_revealed,
    pack_rows,
    pack_vector,
    unpack_keys,
    unpack_rows,
)
from protofed.deploy.signed_keys import SIGNATURE_BYTES, is_signed, sign_keys, signed_text
from protofed.deploy.tasks import FORGETTABLE, identity_of
from protofed.engines.flower.wire import content_hash
from protofed.messages import unflatten
from protofed.trust.secure_sum.field import SecureSumError
from protofed.trust.secure_sum.protocol import PublicKeys, Revealed, SecureClient
from protofed.trust.secure_sum.totals import needed_clients, upload_vector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

    from protofed.engines.flower.client_answers import MessageFigures

    Answer = tuple[dict[str, Tensor], MessageFigures]

SECRETS_FILE = "secure_sum.json"
"""In the store of a run: the secrets of the round that is going on."""
TOTALS_FILE = "secure_totals.json"
"""In the folder of a client: hashes of the messages it trained on, by round, and of the clients of totals."""
_OWNER_ONLY = 0o600
_FEWEST = 2
"""The total of one client would be its upload."""


class SecureSteps:
    """The steps of a secure sum, for one client."""

    def __init__(self, work: ClientWork, task: MessageFigures) -> None:
        work.check_task(task)
        self.work, self.task = work, task
        self.store = work.folder / "store"
        self.file = self.store / str(task["run"]) / SECRETS_FILE
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(work.folder / ".secure_lock")

    def answer(self, tensors: Mapping[str, Tensor]) -> Reply:
        """The answer to a message of a round."""
        kind, secure = self.task["kind"], self._checked()
        relayed = {name.removeprefix("secure/"): t for name, t in tensors.items() if name.startswith("secure/")}
        about = {key: value for key, value in self.task.items() if key not in FORGETTABLE}
        asked = content_hash(tensors, about)
        with self.lock:
            kept = self._kept(kind, secure)
            if kept["asked"].setdefault(kind, asked) != asked:
                raise SecureSumError(f"the server has asked twice for {kind} of one round, with different messages")
            steps = {"keys": self._keys, "shares": self._shares, "train": self._train, "reveal": self._reveal}
            reply_tensors, figures = steps[kind](kept, secure, relayed, tensors)
            replace_file(self.file, json.dumps(kept).encode(), _OWNER_ONLY)  # before the answer leaves
        return Reply(kind, reply_tensors, {**identity_of(self.task), **figures})

    def _checked(self) -> MessageFigures:
        """What the message says about the secure sum; an error if this client must not take part in one."""
        if not self.work.config.privacy.secure_sum:
            raise SecureSumError("its experiment has no secure sums")
        secure = self.task.get("secure")
        if not isinstance(secure, dict) or not re.fullmatch(r"[0-9a-f]{32}", str(secure.get("attempt"))):
            raise SecureSumError("the server's message has nothing about a secure sum, and nothing leaves without one")
        if type(secure.get("threshold")) is not int or secure["threshold"] < _FEWEST:
            raise SecureSumError(f"a secure sum of fewer than {_FEWEST} clients would hide nothing")
        return secure

    def _kept(self, kind: str, secure: MessageFigures) -> dict[str, Any]:
        """What the client keeps of this attempt. The first step begins it, and replaces what was kept before."""
        attempt = [self.task["round"], self.task["number"], secure["attempt"], secure["threshold"]]
        try:
            kept: dict[str, Any] = json.loads(self.file.read_bytes())
            if kept["attempt"] == attempt:
                return kept
        except (OSError, ValueError, KeyError):
            pass  # there is none, or it was not written completely
        if kind != "keys":
            raise SecureSumError("it does not have the secrets of this round")
        self._delete_secrets(self.store.glob(f"*/*{SECRETS_FILE}*"))
        client = SecureClient(self.task["number"], self.task["round"], secure["threshold"])
        return {"attempt": attempt, "asked": {}, "secrets": client.secrets()}

    def _client(self, kept: Mapping[str, Any]) -> SecureClient:
        if kept["secrets"] is None:
            raise SecureSumError("it has deleted the secrets of this round")
        return SecureClient.restored(kept["secrets"])

    def _keys(self, kept: dict[str, Any], *_: Any) -> Answer:
        """Step 1. A client with a policy that forbids the upload does not begin."""
        self.work.data_to_upload(self.task)
        number, keys, private = self.task["number"], self._client(kept).public_keys(), self.work.folder / "client.key"
        tensors, figures = pack_keys({number: keys})
        if private.is_file():
            text = signed_text(self.task, self.work.settings.name, number, keys)
            signed = pack_rows("signatures", {number: sign_keys(private, text)})
            tensors, figures = tensors | signed[0], figures | signed[1]
        return tensors, figures

    def _shares(self, kept: dict[str, Any], secure: MessageFigures, relayed: Mapping[str, Tensor], *_: Any) -> Answer:
        """Step 2. The threshold must be at least what the experiment file asks for."""
        if "messages" not in kept:
            client, keys = self._client(kept), unpack_keys(relayed, secure)
            if client.threshold < needed_clients(self.work.config.privacy.threshold, len(keys)):
                raise SecureSumError(f"the server wants a total of {client.threshold} of {len(keys)} clients only")
            self._check_signatures(keys, secure, relayed)
            messages = client.shares(keys)
            kept |= {"messages": [[peer, text.hex()] for peer, text in messages.items()], "secrets": client.secrets()}
        return pack_rows("shares", {peer: bytes.fromhex(text) for peer, text in kept["messages"]})

    def _check_signatures(
        self, keys: Mapping[int, PublicKeys], secure: MessageFigures, relayed: Mapping[str, Tensor]
    ) -> None:
        """Raise an error if the server passed on a key that is not of the client whose name it gives.

        A client without the public keys of the others (no folder `peers`) has to believe the server.
        """
        peers = self.work.folder / PEERS_FOLDER
        if not peers.is_dir():
            return
        public = {path.stem: path for path in peers.glob("*.pub")}
        signatures = unpack_rows("signatures", relayed, secure, SIGNATURE_BYTES)
        names: Any = secure.get("names")
        if not isinstance(names, list) or len(set(map(str, names))) < len(keys) or signatures.keys() != keys.keys():
            raise SecureSumError("the server does not pass on the names and signatures of all clients")
        for (number, key), name in zip(keys.items(), names, strict=True):
            if number == self.task["number"]:
                continue  # `SecureClient.shares` compares its own keys
            text = signed_text(self.task, str(name), number, key)
            if name not in public or not is_signed(public[name], text, signatures[number]):
                raise SecureSumError(f"the keys of client {number} are not signed by a client that it knows")

    def _train(
        self,
        kept: dict[str, Any],
        secure: MessageFigures,
        relayed: Mapping[str, Tensor],
        tensors: Mapping[str, Tensor],
    ) -> Answer:
        """Step 3: train and mask. The upload itself stays in the client's store."""
        client, work = self._client(kept), self.work
        if self.task["epochs"] is not None and not work.config.system.slow:
            raise SecureSumError("the server asks for other training than its experiment, which may give uploads away")
        client.receive(unpack_rows("shares", relayed, secure, MESSAGE_BYTES))
        task = {key: value for key, value in self.task.items() if key != "secure"}
        replace_file(self.file, json.dumps(kept).encode(), _OWNER_ONLY)  # so that no other message is trained on
        down = {name: value for name, value in tensors.items() if name.startswith("down/")}
        message = content_hash(down, {key: value for key, value in task.items() if key not in FORGETTABLE})
        self._remember(f"run {task['run']} round {task['round']}", message)
        reply = work.train(task, down)
        content = unflatten(work.config.method.types()["up"], reply.tensors)
        num_examples = reply.figures["num_examples"]
        upload = Upload(task["number"], num_examples, reply.figures["steps"], reply.figures["work"], content)
        vector = upload_vector(work.config.method, upload)
        masked = client.masked(vector)
        kept |= {"secrets": client.secrets(), "upload": _short_hash(vector.tobytes()) if vector.any() else None}
        return pack_vector(masked), reply.figures

    def _reveal(self, kept: dict[str, Any], secure: MessageFigures, *_: Any) -> Answer:
        """Step 4: per client one share, that of its seed or that of its key. Afterwards the secrets are deleted."""
        if "revealed" not in kept:
            client, uploaded = self._client(kept), secure.get("uploaded")
            if not isinstance(uploaded, list) or not all(type(number) is int for number in uploaded):
                raise SecureSumError("the server does not say which clients uploaded")
            revealed = client.reveal(uploaded)
            if kept["upload"]:  # an upload of zeros, such as that of a client without examples, hides nothing
                self._remember(f"upload {kept['upload']} round {self.task['round']}", json.dumps(sorted(set(uploaded))))
            kept["revealed"] = [list(shares.items()) for shares in revealed]
            kept["secrets"], kept["messages"] = None, []
        return pack_revealed(Revealed(*(dict(pairs) for pairs in kept["revealed"])))

    def _remember(self, name: str, content: str) -> None:
        """Raise an error if another content has this name: totals could be compared, and the difference is an upload.

        A server that was interrupted repeats its last round. Then the message must be the same, and of equal uploads
        all clients, also if another run with the same seed made them.
        """
        path, digest = self.work.folder / TOTALS_FILE, _short_hash(content.encode())
        totals = json.loads(path.read_bytes()) if path.exists() else {}
        if totals.setdefault(name, digest) != digest:
            raise SecureSumError(
                "the server repeats a round with other clients or another message, and the totals could be compared"
            )
        replace_file(path, json.dumps(totals).encode(), _OWNER_ONLY)

    def forget(self) -> None:
        """Delete the secrets of rounds that are over, which the server may not have asked for."""
        with self.lock:
            try:
                number = json.loads(self.file.read_bytes())["attempt"][0]
            except (OSError, ValueError, KeyError):
                number = -1
            current = {self.file} if number > self.task["round"] else set()
            self._delete_secrets(set(self.store.glob(f"*/*{SECRETS_FILE}*")) - current)

    def _delete_secrets(self, files: Iterable[Path]) -> None:
        """Delete files with secrets: those of other runs, and what a crash has left."""
        for path in files:
            path.unlink(missing_ok=True)


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
