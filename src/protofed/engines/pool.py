"""Worker processes around another engine: groups of clients go to the next free worker.

Which clients are trained together is the inner engine's rule and does not depend on the workers, so that results are
identical to the last bit for any number of them. What clients keep stays in this process and travels with the work, so
that nothing is lost when a worker dies. Workers are forked, so that they share the data, and use one torch thread each.
Messages between the processes are flat tensors and JSON.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from protofed.core import Upload
from protofed.engines.engine import ORDINARY, Evaluation, Report, RoundPlan, Split, hold_in_memory, ignore_progress
from protofed.engines.pool_worker import Answer, Job, Tensors, answer_parcels, as_parcels, from_parcels
from protofed.engines.threads import ends_with
from protofed.errors import UserError
from protofed.messages import unflatten

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

    from protofed.engines.engine import GroupEngine
    from protofed.engines.scoring import Hits

_TRIES = 3
"""How often a job is tried if its worker dies."""
_CLIENTS_PER_JOB = 5
"""How many clients a worker evaluates before it takes the next job."""

T = TypeVar("T")


class Worker(NamedTuple):
    """A process and this end of the connection to it."""

    process: ForkProcess
    connection: Connection


class Pool:
    """Runs an engine's work in several processes. `sizes`: the number of examples of each client."""

    failures: Mapping[int, str] = {}  # if a client fails, so does the run

    def __init__(self, inner: GroupEngine, types: Mapping[str, Any], sizes: Sequence[int], workers: int) -> None:
        self.inner, self.types, self.sizes = inner, types, sizes
        self.workers: list[Worker] = []
        self.on_trained: Callable[[int], None] = ignore_progress
        self.hold: Callable[[Report], Report] = hold_in_memory
        try:
            for _ in range(workers):
                self.workers.append(self.start_worker())
        except BaseException:
            self.close()
            raise

    def start_worker(self) -> Worker:
        """Fork a new worker. Garbage of this process is never collected there: freeing an object that owns threads,
        such as an inference session, would wait forever for threads that a fork does not copy.
        """
        context = mp.get_context("fork")
        here, there = context.Pipe()
        others = [here, *(worker.connection for worker in self.workers)]
        process = context.Process(target=_serve, args=(self.inner, self.types, there, others, os.getpid()), daemon=True)
        collecting = gc.isenabled()
        gc.disable()
        process.start()
        if collecting:
            gc.enable()
        there.close()
        return Worker(process, here)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.connection.close()
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
        self.workers = []

    def state(self) -> Mapping[int, Any]:
        return self.inner.state()

    def restore(self, kept: MutableMapping[int, Any]) -> None:
        self.inner.restore(kept)

    def train(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[Report]:
        """Train the inner engine's groups of clients, those with the most examples first."""
        work = {str(client): amount for client, amount in plan.work.items()}
        groups = self.inner.groups(round, downs, plan)
        jobs = [Job("train", round, group, sorted(plan.examined), work) for group in groups]
        jobs.sort(key=lambda job: -sum(self.sizes[client] for client in job.clients))
        return [report for reports in self._do(jobs, downs, partial(self._reports, round)) for report in reports]

    def _reports(self, round: int, answer: Answer) -> list[Report]:
        """The reports in the answer to a job."""
        reports = []
        for entry in answer.clients:
            message = unflatten(self.types["up"], answer.uploads.get(str(entry["client"]), {}))
            upload = Upload(entry["client"], entry["num_examples"], entry["steps"], entry["work"], message, round)
            reports.append(self.hold(Report(upload, entry["terms"], entry["examples_seen"], entry["hits"])))
        return reports

    def evaluate(self, round: int, downs: Mapping[int, Any], on: Split = "test") -> list[Evaluation]:
        evaluations = [Evaluation(**entry) for entry in self._ask_all(on, round, downs)]
        return sorted(evaluations, key=lambda evaluation: evaluation.client)

    def examine(self, round: int, downs: Mapping[int, Any]) -> dict[int, Hits]:
        return {entry["client"]: entry["hits"] for entry in self._ask_all("examine", round, downs)}

    def _ask_all(self, kind: str, round: int, downs: Mapping[int, Any]) -> list[dict[str, Any]]:
        """The answers about all clients, a few clients per job."""
        clients, step = list(downs), _CLIENTS_PER_JOB
        jobs = [Job(kind, round, clients[first : first + step]) for first in range(0, len(clients), step)]
        return [entry for entries in self._do(jobs, downs, lambda answer: answer.clients) for entry in entries]

    def _do(self, jobs: Sequence[Job], downs: Mapping[int, Any], read: Callable[[Answer], T]) -> list[T]:
        """What `read` makes of the answers to all jobs, in their order. What clients keep goes to the inner engine."""
        waiting = deque((number, 1) for number in range(len(jobs)))
        busy: dict[Connection, tuple[int, int]] = {}
        answers: dict[int, T] = {}
        while waiting or busy:
            for position, worker in enumerate(self.workers):
                if waiting and worker.connection not in busy:
                    number, tries = waiting.popleft()
                    try:
                        _send(worker.connection, *self._packed(jobs[number], downs))
                        busy[worker.connection] = (number, tries)
                    except OSError:
                        self._replace_worker(position, jobs[number], tries)
                        waiting.appendleft((number, tries + 1))
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                number, tries = busy.pop(connection)
                try:
                    about, tensors = _receive(connection)
                except (EOFError, OSError):  # the worker died
                    position = next(i for i, worker in enumerate(self.workers) if worker.connection is connection)
                    self._replace_worker(position, jobs[number], tries)
                    waiting.appendleft((number, tries + 1))
                    continue
                answers[number] = read(self._accepted(jobs[number], about, tensors))
        return [answers[number] for number in range(len(jobs))]

    def _accepted(self, job: Job, about: Mapping[str, Any], tensors: Mapping[str, dict[str, Tensors]]) -> Answer:
        """The answer to a job. What clients keep goes to the inner engine."""
        if "problem" in about:
            self.close()  # other workers may still be about to answer
            raise UserError(about["problem"]) if about["user"] else RuntimeError(about["problem"])
        kept = tensors.get("kept", {})
        self.inner.update(
            {client: unflatten(self.types["kept"], kept.get(str(client), {})) for client in about["kept"]}
        )
        if job.kind == "train":
            self.on_trained(len(job.clients))
        return Answer(about["clients"], tensors.get("up", {}))

    def _replace_worker(self, position: int, job: Job, tries: int) -> None:
        """Start a new worker in place of one that died."""
        check_tries(job, tries)
        worker = self.workers.pop(position)
        worker.connection.close()
        worker.process.kill()
        worker.process.join()
        self.workers.insert(position, self.start_worker())

    def _packed(self, job: Job, downs: Mapping[int, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a worker needs: the job, each different message once, and what its clients keep."""
        different = list({id(downs[client]): downs[client] for client in job.clients}.values())
        numbers = {id(down): number for number, down in enumerate(different)}
        state = self.inner.state()
        kept = {str(client): state[client] for client in job.clients if client in state}
        about = {
            **job._asdict(),
            "downs": [numbers[id(downs[client])] for client in job.clients],
            "joined": sorted(map(int, kept)),
        }
        return about, {"down": {str(number): down for number, down in enumerate(different)}, "kept": kept}


def check_tries(job: Job, tries: int) -> None:
    """Raise an error if too many workers have died of a job."""
    if tries >= _TRIES:
        raise UserError(
            f"A worker process died {tries} times while it worked on clients {', '.join(map(str, job.clients))}. "
            "It may have run out of memory: use engine.workers=1, or smaller batches."
        )


def _send(connection: Connection, about: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Send JSON and tensors."""
    for parcel in as_parcels(about, tree):  # both are made before either is sent
        connection.send_bytes(parcel)


def _receive(connection: Connection) -> tuple[dict[str, Any], dict[str, dict[str, Tensors]]]:
    """What `_send` sent."""
    return from_parcels(connection.recv_bytes(), connection.recv_bytes())


def _serve(
    engine: GroupEngine, types: Mapping[str, Any], connection: Connection, others: Sequence[Connection], parent: int
) -> None:
    """The main loop of a worker: receive a job, do it, answer. It ends when the parent ends."""
    gc.freeze()  # what exists so far belongs to the parent
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    ends_with(parent)
    for other in others:
        other.close()
    torch.set_num_threads(1)
    while True:
        try:
            job = connection.recv_bytes(), connection.recv_bytes()
        except (EOFError, OSError):
            return
        for parcel in answer_parcels(engine, types, *job):
            connection.send_bytes(parcel)
