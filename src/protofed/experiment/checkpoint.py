"""Checkpoints: the states of the server and of clients after a round, with its row, in the database of a run folder.

A checkpoint writes only the clients that have changed since the one before. The run folders of earlier versions, with
files per checkpoint, are read, too.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load

from protofed.errors import UserError
from protofed.experiment.folder import json_value
from protofed.experiment.former_checkpoint import former_names, read_former, remove_former
from protofed.experiment.kept_states import GIGABYTE, KeptStates, state_bytes
from protofed.experiment.store import STORE_FILE, DamageError, Store
from protofed.messages import group_by_first_name, to_bytes, unflatten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from protofed.core import AnyMethod


class Checkpoint(NamedTuple):
    """The state of a run between two rounds."""

    rounds: int  # the number of rounds done
    server: Any
    kept: KeptStates  # of the clients that have trained
    rows: list[dict[str, Any]] | None  # of the rounds; None if they are damaged, or in the former format
    damaged: list[str]  # the names of newer checkpoints that are damaged

    def close(self) -> None:
        """Close the database that the states are read from. It opens again when one is needed."""
        if self.kept.store:
            self.kept.store.close()


class Checkpoints:
    """The checkpoints of a run while it goes on. Without a folder, only the states that clients keep, in memory."""

    def __init__(self, folder: Path | None, method: AnyMethod, experiment: str, budget: float = GIGABYTE) -> None:
        self.folder, self.method, self.experiment, self.budget = folder, method, experiment, budget
        self.kept = KeptStates(method.types()["kept"], budget)
        self.store = Store(folder / STORE_FILE) if folder else None
        self.rows_written = 0

    def start(self) -> None:
        """Begin with an empty database."""
        assert self.folder is not None
        assert self.store is not None
        self.folder.mkdir(exist_ok=True)
        self.store.open_to_write()
        self.kept.store = self.store

    def latest(self) -> Checkpoint | None:
        """The newest intact checkpoint, from which the run can continue after `resume`."""
        assert self.folder is not None
        return latest_checkpoint(self.folder, self.method, self.experiment, self.budget)

    def resume(self, checkpoint: Checkpoint, rows: Sequence[Mapping[str, Any]]) -> None:
        """Continue from a checkpoint. Newer entries are deleted; a damaged or former database is written again.

        `rows`: of the rounds before the checkpoint.
        """
        folder, store = self.folder, self.store
        assert folder is not None
        assert store is not None
        if checkpoint.damaged or checkpoint.rows is None or not store.exists() or not store.is_sound():
            fresh = Store(folder / f"{STORE_FILE}.new")
            fresh.path.unlink(missing_ok=True)
            fresh.open_to_write()
            with fresh.transaction():
                states = ((client, state_bytes(state)) for client, state in checkpoint.kept.items())
                overall = fresh.put_states(checkpoint.rounds, states)
                about = self._about(len(checkpoint.kept), overall)
                _put_round(fresh, checkpoint.rounds, about, checkpoint.server, rows)
            fresh.close()
            checkpoint.close()
            store.replaced_by(fresh.path)
            remove_former(folder)
            checkpoint = read_checkpoint(folder, f"{checkpoint.rounds:06d}", self.method, self.experiment, self.budget)
        checkpoint.close()
        store.open_to_write()
        with store.transaction():
            store.remove_after(checkpoint.rounds)
        self.kept, self.rows_written = checkpoint.kept, checkpoint.rounds
        self.kept.store, self.kept.version = store, checkpoint.rounds + 1

    def write(
        self, server: Any, rows: Sequence[Mapping[str, Any]], keep: int, kept: Mapping[int, Any] | None = None
    ) -> None:
        """Write the state after these rounds in one transaction, and delete all but the newest `keep` checkpoints.

        0 deletes none. With 2 or more, an earlier one can be used if this one gets damaged. `kept`: what clients keep,
        if it is not in `self.kept`.
        """
        store = self.store
        assert store is not None
        if kept is not None and kept is not self.kept:
            self.kept.update(kept)
        with store.transaction():
            self.kept.write_changes(store)
            about = self._about(len(self.kept), self.kept.overall)
            _put_round(store, len(rows), about, server, rows[self.rows_written :])
            if keep and len(names := store.checkpoints()) > keep:
                store.remove_before(names[keep - 1])
        if not rows:
            store.empty_log()
        self.kept.version, self.rows_written = len(rows) + 1, len(rows)

    def _about(self, clients: int, overall: int) -> str:
        return json.dumps({"experiment": self.experiment, "clients": clients, "states": f"{overall:064x}"})

    def oldest(self) -> int:
        """The number of rounds of the oldest checkpoint."""
        return min(self.store.checkpoints(), default=0) if self.store and self.store.exists() else 0

    def close(self) -> None:
        """Close the database. What clients keep can still be read."""
        if self.store:
            self.store.close()


def recovery_notes(checkpoint: Checkpoint, rounds_written: int, every: int) -> list[str]:
    """What the user is told about rounds that are lost. `rounds_written`: the lines of rounds.jsonl."""
    if checkpoint.damaged:
        return [f"damaged and computed again: checkpoint {', '.join(checkpoint.damaged)}"]
    lost = rounds_written - checkpoint.rounds
    if lost < every:  # a run that was killed between two checkpoints
        return []
    return [
        f"the newest {lost} of {rounds_written} rounds are not in checkpoint/{STORE_FILE} and are computed again: "
        f"{STORE_FILE}-wal is missing or damaged"
    ]


def checkpoint_names(folder: Path) -> list[str]:
    """The names of all checkpoints in the folder, the newest first."""
    store = Store(folder / STORE_FILE)
    if not store.exists():
        return former_names(folder)
    try:
        return [f"{rounds:06d}" for rounds in store.checkpoints()]
    except DamageError:
        return []
    finally:
        store.close()


def latest_checkpoint(folder: Path, method: AnyMethod, experiment: str, budget: float = GIGABYTE) -> Checkpoint | None:
    """The newest intact checkpoint; None if the folder has none, an error if all are damaged."""
    names = checkpoint_names(folder)
    for position, name in enumerate(names):
        try:
            return read_checkpoint(folder, name, method, experiment, budget)._replace(damaged=names[:position])
        except DamageError:
            continue
    store = Store(folder / STORE_FILE)
    if names or (store.exists() and not store.is_sound()):  # without damage, it was never written to
        listed = f" ({', '.join(names)})" if names else f": {STORE_FILE} cannot be read"
        raise UserError(
            f"None of the checkpoints in {folder} is intact{listed}. Start the run again with another --out."
        )
    return None


def read_checkpoint(
    folder: Path, name: str, method: AnyMethod, experiment: str, budget: float = GIGABYTE
) -> Checkpoint:
    """The checkpoint with this name; `DamageError` if it is damaged, an error if it is of another experiment or method.

    Every state is read and compared with its checksum; those that exceed `budget` bytes are read again when needed.
    """
    store, rounds, types = Store(folder / STORE_FILE), int(name), method.types()
    if not store.exists():
        return _former_checkpoint(folder, name, method, experiment, budget)
    text, server_content = store.checkpoint(rounds)
    try:
        about = {key: json.loads(text)[key] for key in ("experiment", "clients", "states")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamageError(f"the description of checkpoint {name}") from None
    _require_experiment(about["experiment"], experiment, folder)
    kept = KeptStates(types["kept"], budget, store, rounds)
    with _other_version(folder):
        server = unflatten(types["server"], group_by_first_name(load(server_content)).get("server", {}))
        kept.fill(store.states(rounds))
    if (len(kept), f"{kept.overall:064x}") != (about["clients"], about["states"]):
        raise DamageError("states are missing")
    try:
        rows: list[dict[str, Any]] | None = [json.loads(line) for line in store.lines(rounds)]
    except DamageError:
        rows = None
    return Checkpoint(rounds, server, kept, rows, [])


def _former_checkpoint(folder: Path, name: str, method: AnyMethod, experiment: str, budget: float) -> Checkpoint:
    """A checkpoint in the format of earlier versions."""
    found = read_former(folder, name)
    if found is None:
        raise DamageError(name)
    _require_experiment(found.about["experiment"], experiment, folder)
    with _other_version(folder):
        server, states = found.states(method)
    kept = KeptStates(method.types()["kept"], budget)
    kept.update(states)
    return Checkpoint(found.about["rounds"], server, kept, None, [])


def _put_round(store: Store, rounds: int, about: str, server: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a checkpoint without the clients' states; within a transaction. `rows`: those that are not stored yet."""
    store.put_lines({row["round"]: json.dumps(json_value(dict(row))) for row in rows})
    store.put_checkpoint(rounds, about, to_bytes({"server": server}))


def _require_experiment(stored: str, experiment: str, folder: Path) -> None:
    """Raise an error if a checkpoint is of another experiment."""
    if stored != experiment:
        raise UserError(
            f"{folder} does not match config.toml: the file was changed, or the run is of an earlier version of "
            "protofed. Start a new run with another --out."
        )


@contextmanager
def _other_version(folder: Path) -> Iterator[None]:
    """Explain the errors that the state of another version of the method gives."""
    try:
        yield
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError, SafetensorError) as problem:
        raise UserError(
            f"{folder} was written by another version of the method, whose state has other parts. "
            "Start a new run with another --out."
        ) from problem
