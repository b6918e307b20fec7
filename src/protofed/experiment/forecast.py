"""What a run will take: seconds, memory and disk, from a few rounds of it and a cost model.

The model: a round costs its optimiser steps, a test and the final figures cost their clients, a checkpoint costs the
bytes of the clients that changed. The first rounds, in which libraries are loaded and steps recorded, are measured.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from protofed.experiment.folder import Folder
from protofed.experiment.kept_states import GIGABYTE, state_bytes, states_of_all
from protofed.experiment.members import Members
from protofed.experiment.results import State
from protofed.experiment.roster import draw_roster, trained_per_round
from protofed.experiment.run import resolve_engine
from protofed.experiment.runner import Runner
from protofed.experiment.store import PAGE_BYTES
from protofed.experiment.unknown import client_calibration

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.training import TrainSection

_PROBE_ROUNDS = 8
"""Rounds that are done. The second half of them says what a later round costs."""
_CLIENTS = 20
"""Clients that are tested to measure a test."""


class Cost(NamedTuple):
    """Seconds on the clock, and of the processor in this process."""

    wall: float = 0.0
    cpu: float = 0.0

    def plus(self, other: Cost, times: float = 1.0) -> Cost:
        """This and so many times another cost."""
        return Cost(self.wall + times * other.wall, self.cpu + times * other.cpu)

    def times(self, factor: float) -> Cost:
        """So many times this cost."""
        return Cost().plus(self, factor)


@dataclass(frozen=True)
class Forecast:
    """The parts of a run, and what they cost."""

    clients: int
    rounds: int
    per_round: int
    tested: int  # clients per test
    tests: int
    start: Cost  # reading and dividing the data
    first_rounds: Cost  # of the `measured` ones, together
    measured: int
    round: Cost  # a later one, without a test
    test: Cost
    end: Cost  # the final figures
    steps_per_round: float
    state_bytes: int  # of one client
    upload_bytes: int  # of one client
    server_bytes: int
    trained: int  # clients that have trained in the end, on average
    memory: float  # bytes, at most
    memory_per_client: float  # bytes, whether it trains or not
    disk: float  # bytes of the run folder
    written_per_round: float  # bytes of a checkpoint

    @property
    def total(self) -> Cost:
        """The complete run."""
        rounds = self.start.plus(self.first_rounds).plus(self.round, self.rounds - self.measured)
        return rounds.plus(self.test, self.tests).plus(self.end)

    @property
    def steps_per_second(self) -> float:
        """Optimiser steps of clients per second."""
        return self.steps_per_round / max(self.round.wall, 1e-9)

    def with_clients(self, clients: int, per_round: int, tested: int) -> Forecast:
        """The same run with another number of clients, of which so many train per round and are tested."""
        factor, trained = clients / self.clients, _distinct(clients, per_round, self.rounds)
        work = per_round / max(1, self.per_round)
        more = (clients - self.clients) * self.memory_per_client + (trained - self.trained) * self.state_bytes
        disk = self.disk * factor + (trained - factor * self.trained) * _stored(self.state_bytes)
        return replace(
            self,
            clients=clients,
            per_round=per_round,
            tested=tested,
            test=self.test.times(tested / self.tested),
            end=self.end.times(tested / self.tested),
            start=self.start.times(factor),
            first_rounds=self.first_rounds.times(work),
            round=self.round.times(work),
            steps_per_round=self.steps_per_round * work,
            written_per_round=self.written_per_round * work,
            trained=trained,
            memory=self.memory + more,
            disk=max(disk, self.disk),
        )


def forecast(config: Config) -> Forecast:
    """Measure a few rounds of an experiment in a temporary folder, and compute from them what all of it takes."""
    memory_before = _resident()
    start, members = _timed(lambda: Members.of(config))
    describing, partition = _timed(members.describe)
    memory_per_client = max(0.0, _resident() - memory_before) / len(members)
    config = resolve_engine(config.with_clients(len(members)), members)
    run = config.run
    probed = min(_PROBE_ROUNDS, run.rounds)
    untested = replace(run, rounds=max(run.rounds, probed + 1), eval_every=10**9, eval_last=0, seconds=0.0, monitor=0)
    probe = replace(config, run=untested, eval=replace(config.eval, personal=False))
    with tempfile.TemporaryDirectory(prefix="protofed-plan-") as name:
        runner = Runner(probe, members, Folder(Path(name)))
        try:
            runner.start()
            costs = [_timed(lambda: _one_round(runner))[0] for _ in range(probed)]
            per_test, test_base, per_end = _costs_of_tests(runner, config)
            kept, server = runner.engine.state(), len(state_bytes(runner.server))
            state = max((len(state_bytes(kept[client])) for client in list(kept)[:5]), default=0)
            held = runner.checkpoints.kept.in_memory()
            peak = _peak()
        finally:
            runner.close()
    uploads = max(1, sum(len(row["clients"]) for row in runner.rounds))
    rosters = [draw_roster(config, members, number).clients for number in range(probed)]
    steps = [_steps(config.train, members, roster) for roster in rosters]
    per_round = trained_per_round(config, len(members))
    usual = _steps(config.train, members, range(len(members))) / len(members) * per_round
    later = costs[probed // 2 :]
    done = sum(steps[-len(later) :])
    factor = usual * len(later) / done if done else 1.0
    typical = Cost(_lower_median([cost.wall for cost in later]), _lower_median([cost.cpu for cost in later]))
    tested = len(runner.tested)
    trained = _distinct(len(members), per_round, run.rounds)
    in_memory = min(config.engine.memory * GIGABYTE, trained * state)
    line = max(len(str(row)) for row in runner.rounds)
    versions = trained + (per_round if run.keep_checkpoints != 1 else 0)
    disk = versions * _stored(state) + 2 * _stored(server) + 20 * PAGE_BYTES
    return Forecast(
        clients=len(members),
        rounds=run.rounds,
        per_round=per_round,
        tested=tested,
        tests=run.number_of_tests(),
        start=start.plus(describing, 2),  # written, and compared when the run begins
        first_rounds=Cost(sum(cost.wall for cost in costs), sum(cost.cpu for cost in costs)),
        measured=probed,
        round=typical.times(factor),
        test=test_base.plus(per_test, tested),
        end=per_end.times(tested),
        steps_per_round=usual,
        state_bytes=state,
        upload_bytes=round(sum(row["up_bytes"] for row in runner.rounds) / uploads),
        server_bytes=server,
        trained=trained,
        memory=peak + max(0.0, in_memory - held),
        memory_per_client=memory_per_client,
        disk=disk + len(str(partition)) + 2 * run.rounds * line,
        written_per_round=per_round * state + server,
    )


def _one_round(runner: Runner) -> None:
    row = runner.one_round(len(runner.rounds))
    runner.rounds.append(row)
    assert runner.folder is not None
    runner._write_round(runner.folder, row)


def _costs_of_tests(runner: Runner, config: Config) -> tuple[Cost, Cost, Cost]:
    """The cost of a test per client, of the server's own test, and of the final figures per client."""
    members, clients = runner.members, list(runner.tested)[:_CLIENTS]
    number = len(runner.rounds) - 1
    messages = runner._messages(clients)
    per_client, _ = _timed(lambda: runner.engine.evaluate(number, messages))
    if members.validation:
        per_client = per_client.plus(_timed(lambda: runner.engine.evaluate(number, messages, "validation"))[0])
    server, _ = _timed(runner._server_columns)
    kept = states_of_all(config, len(members), runner.engine.state(), lambda: members)
    state = State(config.with_rounds(number + 1), members, runner.server, kept)
    end, _ = _timed(lambda: [client_calibration(state.model(client), config.eval, members) for client in clients])
    if config.eval.personal:
        end = end.plus(_timed(lambda: runner.engine.examine(number, messages))[0])
    return per_client.times(1 / len(clients)), server, end.times(1 / len(clients))


def _timed(work: Callable[[], Any]) -> tuple[Cost, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu), made


def _steps(training: TrainSection, members: Members, clients: Iterable[int]) -> float:
    """The optimiser steps of these clients in one round."""
    sizes = [(len(members.train[client]), members.nets[client].has_batch_norm) for client in clients]
    return float(sum(training.local_epochs(*size) * training.batches_per_epoch(*size) for size in sizes))


def _distinct(clients: int, per_round: int, rounds: int) -> int:
    """How many different clients take part in the rounds, on average, if each round draws again.

    >>> _distinct(100, 100, 3), _distinct(1000, 100, 2)
    (100, 190)
    """
    return round(clients * (1 - (1 - min(1.0, per_round / clients)) ** rounds))


def _lower_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _stored(size: int) -> int:
    """The bytes that an entry of this size takes in the database: pages of its own if it is large."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES if size > PAGE_BYTES // 4 else size


def _peak() -> float:
    """The largest memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _resident() -> float:
    """The memory of this process now, in bytes; its largest so far where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * resource.getpagesize() if path.exists() else _peak()
