"""Feed damaged and malicious input to everything that reads messages and files of other people.

    python scripts/fuzz.py [--inputs 100000] [--seed 0]

Each reader may return something or raise its documented error: a message is refused with `ValueError`, a file with
`UserError`, also if all checkpoints of a run are damaged; a damaged stored round is skipped (None). Any other exception is a bug, and is shown with the
input's number, from which it can be made again. Nothing is unpickled: if anything tries, that is a bug, too.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import pickle
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import save

from protofed.core import Prototypes
from protofed.data.npz_files import read_npz, write_npz
from protofed.deploy.client_store import ClientStore, StoredRound
from protofed.engines.flower.client_answers import (
    EnrolledSizes,
    read_evaluation,
    read_hits,
    read_report,
    read_server_scores,
)
from protofed.engines.flower.wire import record_figures, record_tensors, to_records
from protofed.errors import UserError
from protofed.experiment.checkpoint import latest_checkpoint
from protofed.experiment.config import Config, read_toml
from protofed.experiment.folder import Folder
from protofed.experiment.kept_states import state_bytes
from protofed.experiment.store import STORE_FILE, Store
from protofed.messages import flatten, to_bytes
from protofed.methods import METHODS
from protofed.methods.fedproto import Bank, BankWithHolders, KeptWithClasses

METHOD = METHODS["fedproto"]()
SIZES = EnrolledSizes(6, 6)
STRANGE_JSON = [
    None, True, -1, 1e308, float("nan"), "", "x" * 300, [], {}, [[]], {"": {}}, 2**70, "[" * 9, -0.0, [None], {"a": [1]},
]  # fmt: skip


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Bytes with a few changes: flipped, cut, repeated, or replaced."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        kind, at = draw.randrange(6), draw.randrange(len(data) + 1)
        if kind == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = draw.randbytes(draw.randrange(9))
        elif kind == 3:
            data[at : at + 8] = draw.choice((b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"9" * 8, b"[" * 2000))
        elif kind == 4:
            data[at:at] = data[: draw.randrange(len(data) + 1)]
        else:
            del data[at : at + draw.randrange(1, 40)]
    return bytes(data)


def changed_json(value: Any, draw: random.Random) -> Any:
    """A JSON value in which one part is exchanged, removed or added."""
    if draw.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return draw.choice(STRANGE_JSON)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return [*value[:at], changed_json(value[at], draw), *value[at + 1 :]]
    key = draw.choice(sorted(value))
    changed = dict(value)
    if draw.random() < 0.2:
        del changed[key]
    else:
        changed[key] = changed_json(value[key], draw)
    if draw.random() < 0.1:
        changed[draw.choice(("", "../x", "check", "a/b"))] = draw.choice(STRANGE_JSON)
    return changed


def changed_tensors(tensors: dict[str, torch.Tensor], draw: random.Random) -> dict[str, torch.Tensor]:
    """Tensors by name, of which one has another type, shape, value or name."""
    changed = dict(tensors)
    name = draw.choice(sorted(changed))
    value = changed[name]
    kind = draw.randrange(7)
    if kind == 0:
        del changed[name]
    elif kind == 1:
        changed[draw.choice(("", "a", "prototypes", "prototypes/mean/x", "/", "prototypes//rows"))] = changed.pop(name)
    elif kind == 2:
        changed[name] = value.to(draw.choice((torch.bool, torch.int8, torch.int64, torch.float16, torch.float64)))
    elif kind == 3:
        changed[name] = torch.zeros([draw.randrange(4) for _ in range(draw.randrange(4))], dtype=value.dtype)
    elif kind == 4:
        changed[name] = torch.full_like(value, draw.choice((-1, 0, 1, 127)))
    elif kind == 5 and value.is_floating_point():
        changed[name] = value * draw.choice((float("nan"), float("inf"), -1.0, 1e30))
    else:
        changed["prototypes/shape"] = torch.tensor([draw.choice((-1, 0, 3, 2**31 - 1, 2**20)) for _ in range(3)]).int()
    return changed


class Readers:
    """Every reader with a valid input to start from. The functions take a random generator and read one input."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prototypes = Prototypes.of(torch.arange(12.0).reshape(6, 2), torch.tensor([0, 0, 1, 1, 2, 2]), 3)
        self.upload = Bank(self.prototypes)
        self.figures = {
            "round": 1,
            "num_examples": 6,
            "steps": 3,
            "work": 1.0,
            "terms": {"pull": 0.5},
            "examples_seen": 6.0,
        }
        self.figures |= {"correct": {"head": 3}, "total": 6, "pixels": {}, "hits": {"head": [1, 2, 0]}}
        kept = KeptWithClasses({"w": torch.ones(2, 3)}, torch.ones(3))
        server = BankWithHolders(self.prototypes, torch.ones(2, 3))
        self.state = flatten({"server": server, "kept": {"0": kept, "1": kept}})
        self.kept, self.server = state_bytes(kept), to_bytes({"server": server})
        (folder / "checkpoint").mkdir()
        self.run = Store(folder / "checkpoint" / STORE_FILE)
        self._put_checkpoint(self.kept, self.server, {})
        self.database = self.run.path.read_bytes()
        (folder / "former").mkdir()
        self.former = {"rounds": 3, "clients": [0, 1], "experiment": "digest"}
        self.store = ClientStore(folder / "store", "0" * 32, METHOD)
        self.store.write(StoredRound(1, "hash", kept, flatten(self.upload), self.figures), 0)
        self.stored = self.store.store.path.read_bytes()
        write_npz(folder / "data.npz", {"x": np.ones((4, 2), np.float32), "y": np.arange(4)})
        self.npz_bytes = (folder / "data.npz").read_bytes()
        self.toml_text = (
            b'[run]\nrounds = 3\nsample = 0.5\n[net]\nname = "mlp"\nhidden = [8, 4]\n[privacy]\nnoise = 1.0\n'
            b'[[compare]]\nname = "a"\n[data]\nname = "digits"\nscaling = {age = [50, 10]}\n'
        )
        rows = [{"round": 1, "clients": [0], "loss": {"pull": 1.0}, "rejected": {}}] * 2
        self.rows = "".join(json.dumps(row) + "\n" for row in rows).encode()

    def wire(self, draw: random.Random) -> None:
        """A message of Flower with changed bytes, types or figures."""
        content = to_records(flatten(self.upload), self.figures)
        record = content["tensors"]
        name = draw.choice(list(record))
        array = record[name]
        data = mutated(array.data, draw) if draw.random() < 0.8 else _object_array()
        kind = draw.choice(("numpy.ndarray",) * 8 + ("torch.pickle", ""))
        broken = ArrayRecord({**dict(record), name: Array(array.dtype, array.shape, kind, data)})
        text = mutated(json.dumps(self.figures).encode(), draw).decode("utf-8", "replace")
        message = RecordDict({"tensors": broken, "figures": ConfigRecord({"json": text})})
        tensors = record_tensors(message) if draw.random() < 0.7 else flatten(self.upload)
        read_report(METHOD, 0, tensors, record_figures(message), self.upload, None)

    def answers(self, draw: random.Random) -> None:
        """An upload with changed tensors, or figures with changed values."""
        if draw.random() < 0.5:
            read_report(METHOD, 0, changed_tensors(flatten(self.upload), draw), self.figures, self.upload, None)
        figures = changed_json(self.figures, draw)
        figures = figures if isinstance(figures, dict) else {}
        draw.choice(
            (
                lambda: read_report(METHOD, 0, flatten(self.upload), figures, self.upload, None),
                lambda: read_evaluation(0, figures, 3, SIZES, "test"),
                lambda: read_hits(figures, [2, 2, 2]),
                lambda: read_server_scores({**figures, "server": figures}, 3, SIZES),
            )
        )()

    def _put_checkpoint(self, kept: bytes, server: bytes, changed: dict[str, Any]) -> None:
        """Write a checkpoint of two clients with right checksums; `changed`: other values of what it says of itself."""
        self.run.delete()
        self.run.open_to_write(durable=False)
        with self.run.transaction():
            overall = self.run.put_states(1, [(0, kept), (1, self.kept)])
            about = {"experiment": "digest", "clients": 2, "states": f"{overall:064x}", **changed}
            self.run.put_lines({1: json.dumps({"round": 1})})
            self.run.put_checkpoint(1, json.dumps(about), server)
        self.run.close()

    def checkpoint(self, draw: random.Random) -> None:
        """A database with changed bytes, or with changed content and right checksums."""
        if draw.random() < 0.5:
            self.run.delete()
            self.run.path.write_bytes(mutated(self.database, draw))
        else:
            name = draw.choice(("kept/0/", "server/"))
            part = {key.replace("kept/0/", "kept/"): value for key, value in self.state.items() if key.startswith(name)}
            content = save({key: value.clone() for key, value in changed_tensors(part, draw).items()})
            content = mutated(content, draw) if draw.random() < 0.2 else content
            about = changed_json({"experiment": "digest", "clients": 2}, draw) if draw.random() < 0.3 else {}
            parts = (content, self.server) if name == "kept/0/" else (self.kept, content)
            self._put_checkpoint(*parts, about if isinstance(about, dict) else {})
        if found := latest_checkpoint(self.run.path.parent, METHOD, "digest"):
            list(found.kept.items())
            found.close()

    def former_checkpoint(self, draw: random.Random) -> None:
        """A checkpoint of an earlier version with changed bytes, or with changed content and right checksums."""
        content = save({name: value.clone() for name, value in changed_tensors(self.state, draw).items()})
        content = mutated(content, draw) if draw.random() < 0.4 else content
        about = self.former | {"sha256": hashlib.sha256(content).hexdigest() if draw.random() < 0.8 else "0" * 64}
        changed = changed_json(about, draw) if draw.random() < 0.5 else about
        if isinstance(changed, dict):
            check = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
            changed = {**changed, "check": check}
        text = json.dumps(changed).encode()
        text = mutated(text, draw) if draw.random() < 0.2 else text
        (self.folder / "former" / "000003.json").write_bytes(text)
        (self.folder / "former" / "000003.safetensors").write_bytes(content)
        latest_checkpoint(self.folder / "former", METHOD, "digest")

    def client_store(self, draw: random.Random) -> None:
        """A stored round of a client, or the server's stored message, with changed bytes or content."""
        store = self.store.store
        if draw.random() < 0.5:
            store.delete()
            store.path.write_bytes(mutated(self.stored, draw))
        else:
            tensors = changed_tensors({f"kept/{name}": value for name, value in self.state.items()}, draw)
            content = save({name: value.clone() for name, value in tensors.items()})
            text = json.dumps(changed_json({"message": "x", "figures": {}}, draw))
            store.delete()
            store.open_to_write(durable=False)
            with store.transaction():
                store.put_states(1, [(0, content)])
                store.put_checkpoint(1, text, content)
            store.close()
        self.store.read(1)
        self.store.newest(9)
        if draw.random() < 0.5:
            return
        text = json.dumps(changed_json({"task": {"round": 1}, "check": "y"}, draw))
        message = mutated(save({"down/x": torch.ones(2)}, {"about": text}), draw)
        (self.store.folder / "message.safetensors").write_bytes(message)
        self.store.message()

    def npz(self, draw: random.Random) -> None:
        """An npz file with changed bytes, or with Python objects."""
        content = mutated(self.npz_bytes, draw)
        (self.folder / "data.npz").write_bytes(content)
        read_npz(self.folder / "data.npz")

    def toml_file(self, draw: random.Random) -> None:
        """An experiment file with changed bytes."""
        (self.folder / "own.toml").write_bytes(mutated(self.toml_text, draw))
        table = read_toml(self.folder / "own.toml")
        if not any(
            "/" in str(value) or ":" in str(value) for value in table.values()
        ):  # names of code are not imported
            Config.of(table)

    def run_folder(self, draw: random.Random) -> None:
        """The text files of a run folder with changed bytes."""
        run = self.folder / "run"
        run.mkdir(exist_ok=True)
        (run / "rounds.jsonl").write_bytes(mutated(self.rows, draw))
        (run / "config.toml").write_bytes(b"")
        (run / "partition.json").write_bytes(mutated(b'{"sha256": "x", "clients": [[1, 2]]}', draw))
        folder = Folder.existing(run)
        folder.rounds(up_to_damage=draw.random() < 0.5)
        folder.partition()


def _object_array() -> bytes:
    """A .npy file with a Python object: reading it would unpickle."""
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


TARGETS: dict[str, type[Exception]] = {
    "wire": ValueError,
    "answers": ValueError,
    "checkpoint": UserError,
    "former_checkpoint": UserError,
    "client_store": UserError,
    "npz": UserError,
    "toml_file": UserError,
    "run_folder": UserError,
}
"""The readers, and the documented error of each."""


def fuzz(inputs: int, seed: int, target: str) -> Counter[str]:
    """Feed inputs to one reader. Returns how many it read and refused; an AssertionError if anything else happens."""
    outcomes: Counter[str] = Counter()
    unpickle = _forbidden_unpickling()
    with tempfile.TemporaryDirectory() as folder, unpickle, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # numpy's, about headers of Python 2
        readers = Readers(Path(folder))
        read: Callable[[random.Random], None] = getattr(readers, target)
        for number in range(inputs):
            try:
                read(random.Random(f"{seed} {target} {number}"))
                outcomes["read"] += 1
            except TARGETS[target]:
                outcomes["refused"] += 1
            except Exception as problem:
                raise AssertionError(f"{target}, seed {seed}, input {number}: {problem!r}") from problem
    return outcomes


class _forbidden_unpickling:  # noqa: N801
    """Inside this block, every attempt to unpickle is an error that no reader catches."""

    def __enter__(self) -> None:
        self.before = (pickle.load, pickle.loads, pickle.Unpickler)

        class Unpickled(BaseException):
            pass

        def refuse(*words: Any, **options: Any) -> Any:
            raise Unpickled("something was unpickled")

        pickle.load, pickle.loads, pickle.Unpickler = refuse, refuse, refuse  # type: ignore[assignment, misc]

    def __exit__(self, *error: Any) -> None:
        pickle.load, pickle.loads, pickle.Unpickler = self.before  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000, help="over all readers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    total = 0
    for target in TARGETS:
        outcomes = fuzz(-(-options.inputs // len(TARGETS)), options.seed, target)
        total += sum(outcomes.values())
        print(f"{target}: {outcomes['read']:,} read, {outcomes['refused']:,} refused", flush=True)
    print(f"{total:,} inputs, documented errors only, nothing unpickled.")


if __name__ == "__main__":
    main()
