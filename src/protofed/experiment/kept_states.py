"""What clients keep between rounds: the states used last in memory, within a budget, and all others in a database.

Only clients that have trained have a state here. The state of any other client follows from the seed, whenever it is
needed (`Method.join`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn

from safetensors.torch import load

from protofed.errors import UserError
from protofed.experiment.store import DamageError, Store, StoredState
from protofed.messages import Nothing, group_by_first_name, message_size, to_bytes, unflatten
from protofed.trust.privacy.public_body import state_before_training

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.members import Members

GIGABYTE = 10**9


def state_bytes(state: Any) -> bytes:
    """What a client keeps, as it is stored."""
    return to_bytes({"kept": state})


class KeptStates(MutableMapping[int, Any]):
    """The states of the clients that have trained, by client.

    `declared`: the type of a state. `budget`: bytes of states in memory. Changed states that do not fit are written to
    the database before the next checkpoint; without a run folder the database is a temporary one.
    """

    def __init__(self, declared: Any, budget: float, store: Store | None = None, version: int = 0) -> None:
        self.declared, self.budget, self.store = declared, budget, store
        self.version = version
        """The newest version that is read. While a run goes on, also the version of what changes: one more than the
        rounds of the newest checkpoint, so that the checkpoint keeps its versions."""
        self.overall = 0
        """The exclusive or of the checksums of all states in the database, by which a lost state is noticed."""
        self._clients: set[int] = set()
        self._memory: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._changed: set[int] = set()

    def __getitem__(self, client: int) -> Any:
        if client not in self._clients:
            raise KeyError(client)
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client][0]
        assert self.store is not None
        try:
            state = self._read(self.store.state(client, self.version))
        except DamageError as problem:
            raise UserError(
                f"{self.store.path} is damaged ({problem}). "
                "Run `protofed run --resume --out DIR`, which continues from the last intact checkpoint."
            ) from problem
        self._remember(client, state)
        self._shrink()
        return state

    def __setitem__(self, client: int, state: Any) -> None:
        self._clients.add(client)
        self._changed.add(client)
        self._remember(client, state)
        self._shrink()

    def __delitem__(self, client: int) -> NoReturn:
        raise TypeError("a client that has trained has a state from then on")

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._clients))

    def __len__(self) -> int:
        return len(self._clients)

    def in_memory(self) -> int:
        """The bytes of the states in memory."""
        return self._bytes

    def _remember(self, client: int, state: Any) -> None:
        size = message_size(state).bytes
        self._bytes += size - self._memory.pop(client, (None, 0))[1]
        self._memory[client] = (state, size)

    def _shrink(self) -> None:
        """Drop the states that were not used for the longest time, and write changed ones before."""
        while self._bytes > self.budget and len(self._memory) > 1:
            client = next(iter(self._memory))
            if client in self._changed:
                self.store = self.store or Store.temporary()
                with self.store.transaction():
                    self.write_changes(self.store)
            self._bytes -= self._memory.pop(client)[1]

    def write_changes(self, store: Store) -> None:
        """Write the states that have changed since the last checkpoint; within a transaction."""
        changes = ((client, state_bytes(self._memory[client][0])) for client in sorted(self._changed))
        changed = store.put_states(self.version, changes)
        self.overall ^= changed
        self._changed.clear()

    def _read(self, content: bytes) -> Any:
        return unflatten(self.declared, group_by_first_name(load(content)).get("kept", {}))

    def fill(self, states: Iterable[StoredState]) -> None:
        """Take over the states of a checkpoint: those that fit stay in memory."""
        for client, digest, content in states:
            state = self._read(content)  # all of them are read, so that a state of another type is noticed now
            self._clients.add(client)
            self.overall ^= digest
            if self._bytes <= self.budget:
                self._remember(client, state)
        self._shrink()


class AllStates(Mapping[int, Any]):
    """What every client keeps: of clients that have never trained, what they join with (`join`)."""

    def __init__(self, trained: Mapping[int, Any], clients: int, join: Callable[[int], Any]) -> None:
        self.trained, self.clients, self.join = trained, clients, join

    def __getitem__(self, client: int) -> Any:
        if client in self.trained:
            return self.trained[client]
        if not 0 <= client < self.clients:
            raise KeyError(client)
        return self.join(client)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and 0 <= client < self.clients

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.clients))

    def __len__(self) -> int:
        return self.clients


def states_of_all(config: Config, clients: int, trained: Mapping[int, Any], members: Callable[[], Members]) -> Any:
    """What each of the clients keeps at the end of a run; {} if it is on the clients' own machines.

    `members` returns the clients with their data. It is called if a state of a client that never trained is needed.
    """
    if config.engine.name == "flower":
        return trained
    method, seed = config.method, config.run.seed

    def join(client: int) -> Any:
        if method.types()["kept"] == Nothing:
            return ()
        return state_before_training(method, config.privacy, members().client(seed, 0, client), seed)

    return AllStates(trained, clients, join)
