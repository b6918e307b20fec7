"""Worker processes, one torch thread each, around another engine: stacks of clients go to whoever is free.

Which clients are trained together is the inner engine's rule and does not know of workers, so that results are the same
to the last bit for any number of them. What clients keep stays with this process, and travels with the work: a worker
that dies takes nothing with it. Workers are forked, so that they share the data; messages are flat tensors and JSON.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing as mp
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import load

from protofed.core import Upload
from protofed.engines.engine import ORDINARY, Evaluation, Report, RoundPlan, Split
from protofed.errors import UserError
from protofed.messages import group_by_first_name, to_bytes, unflatten

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

    from torch import Tensor

    from protofed.engines.loop import Loop
    from protofed.engines.scoring import Hits

TRIES = 3
"""How often a piece of work is begun anew when its worker dies."""
CLIENTS_PER_JOB = 5
"""How many clients a worker tests before it takes more."""


class Job(NamedTuple):
    """Something to do for a few clients."""

    kind: str  # "train", "examine", "test" or "validation"
    round: int
    clients: list[int]
    examined: list[int] = []
    epochs: dict[str, int] = {}


class Worker(NamedTuple):
    process: ForkProcess
    connection: Connection


class Pool:
    """The clients' work on several processes."""

    def __init__(self, inner: Loop, workers: int) -> None:
        self.inner, self.types = inner, inner.method.types()
        self.workers: list[Worker] = []
        for _ in range(workers):
            self.workers.append(self.hire())

    def hire(self) -> Worker:
        """A new worker."""
        context = mp.get_context("fork")
        here, there = context.Pipe()
        others = [worker.connection for worker in self.workers]
        process = context.Process(target=serve, args=(self.inner, there, [here, *others], os.getpid()), daemon=True)
        process.start()
        there.close()
        return Worker(process, here)

    def close(self) -> None:
        """Send everybody home."""
        for worker in self.workers:
            worker.connection.close()
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
        self.workers = []

    def state(self) -> dict[int, Any]:
        return self.inner.state()

    def restore(self, state: dict[int, Any]) -> None:
        self.inner.restore(state)

    def train(self, round: int, downs: Mapping[int, Any], asked: RoundPlan = ORDINARY) -> list[Report]:
        epochs = {str(client): number for client, number in asked.epochs.items()}
        jobs = [
            Job("train", round, chunk, sorted(asked.examined), epochs)
            for chunk in self.inner.chunks(round, downs, asked)
        ]
        jobs.sort(key=lambda job: -sum(len(self.inner.members.train[client]) for client in job.clients))
        reports = []
        for told, tensors in self.done(jobs, downs):
            ups = group_by_first_name(tensors.get("up", {}))
            for told_one in told:
                client = told_one["client"]
                message = unflatten(self.types["up"], ups.get(str(client), {}))
                upload = Upload(client, told_one["examples"], told_one["steps"], told_one["work"], message)
                reports.append(Report(upload, told_one["terms"], told_one["seen"], told_one["hits"]))
        return reports

    def evaluate(self, round: int, downs: Mapping[int, Any], on: Split = "test") -> list[Evaluation]:
        scores = [Evaluation(**one) for one in self.asked(on, round, downs)]
        return sorted(scores, key=lambda score: score.client)

    def examine(self, round: int, downs: Mapping[int, Any]) -> dict[int, Hits]:
        return {one["client"]: one["hits"] for one in self.asked("examine", round, downs)}

    def asked(self, kind: str, round: int, downs: Mapping[int, Any]) -> list[dict[str, Any]]:
        """What is told about every client, a few of them at a time."""
        clients = list(downs)
        jobs = [
            Job(kind, round, clients[first : first + CLIENTS_PER_JOB])
            for first in range(0, len(clients), CLIENTS_PER_JOB)
        ]
        return [one for told, _ in self.done(jobs, downs) for one in told]

    def done(
        self, jobs: Sequence[Job], downs: Mapping[int, Any]
    ) -> list[tuple[list[dict[str, Any]], dict[str, dict[str, Tensor]]]]:
        """The answers to all jobs, in their order; what clients keep is taken in."""
        waiting = deque((number, 1) for number in range(len(jobs)))
        busy: dict[Connection, tuple[int, int]] = {}
        answers: dict[int, Any] = {}
        while waiting or busy:
            for place, worker in enumerate(self.workers):
                if waiting and worker.connection not in busy:
                    number, tries = waiting.popleft()
                    try:
                        send(worker.connection, *self.packed(jobs[number], downs))
                        busy[worker.connection] = (number, tries)
                    except OSError:
                        self.replace(place, jobs[number], tries)
                        waiting.appendleft((number, tries + 1))
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                number, tries = busy.pop(connection)
                try:
                    told, tensors = receive(connection)
                except (EOFError, OSError):  # it died
                    place = next(i for i, worker in enumerate(self.workers) if worker.connection is connection)
                    self.replace(place, jobs[number], tries)
                    waiting.appendleft((number, tries + 1))
                    continue
                if "problem" in told:
                    self.close()  # others may still be about to answer
                    raise UserError(told["problem"]) if told["user"] else RuntimeError(told["problem"])
                parts = {name: group_by_first_name(part) for name, part in group_by_first_name(tensors).items()}
                for client in told["kept"]:
                    state = parts.get("kept", {}).get(str(client), {})
                    self.inner.kept[client] = unflatten(self.types["kept"], state)
                answers[number] = (told["told"], group_by_first_name(tensors))
        return [answers[number] for number in range(len(jobs))]

    def replace(self, place: int, job: Job, tries: int) -> None:
        """Hire somebody in the place of a worker that died."""
        if tries >= TRIES:
            raise UserError(
                f"A worker process died {tries} times while it had clients {', '.join(map(str, job.clients))}; out of "
                "memory? Use engine.workers=1, or smaller batches."
            )
        worker = self.workers.pop(place)
        worker.connection.close()
        worker.process.kill()
        worker.process.join()
        self.workers.insert(place, self.hire())

    def packed(self, job: Job, downs: Mapping[int, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a worker needs: the job, each different message once, and what its clients keep."""
        different = list({id(downs[client]): downs[client] for client in job.clients}.values())
        places = {id(down): place for place, down in enumerate(different)}
        kept = {str(client): self.inner.kept[client] for client in job.clients if client in self.inner.kept}
        told = {
            **job._asdict(),
            "downs": [places[id(downs[client])] for client in job.clients],
            "joined": sorted(map(int, kept)),
        }
        return told, {"down": {str(place): down for place, down in enumerate(different)}, "kept": kept}


def send(connection: Connection, told: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    about, tensors = json.dumps(told).encode(), to_bytes(dict(tree))  # both are made before either goes
    connection.send_bytes(about)
    connection.send_bytes(tensors)


def receive(connection: Connection) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads(connection.recv_bytes()), load(connection.recv_bytes())


def ends_with(parent: int) -> None:
    """From now on this process does not outlive its parent, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def serve(inner: Loop, connection: Connection, others: Sequence[Connection], parent: int) -> None:
    """A worker's life: take a job, do it, answer; it ends with the parent, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    ends_with(parent)
    for other in others:
        other.close()
    torch.set_num_threads(1)
    types = inner.method.types()
    while True:
        try:
            job, tensors = receive(connection)
        except (EOFError, OSError):
            return
        try:
            send(
                connection,
                *worked(
                    inner,
                    types,
                    job,
                    {name: group_by_first_name(part) for name, part in group_by_first_name(tensors).items()},
                ),
            )
        except UserError as problem:
            send(connection, {"problem": str(problem), "user": True}, {})
        except Exception:  # told where somebody sees it
            send(connection, {"problem": f"in a worker process:\n{traceback.format_exc()}", "user": False}, {})


def worked(
    inner: Loop, types: Mapping[str, Any], job: Mapping[str, Any], parts: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to a job."""
    clients, stored = job["clients"], parts.get("kept", {})
    messages = [
        unflatten(types["down"], parts.get("down", {}).get(str(place), {})) for place in range(1 + max(job["downs"]))
    ]
    downs = {client: messages[place] for client, place in zip(clients, job["downs"], strict=True)}
    inner.kept = {client: unflatten(types["kept"], stored.get(str(client), {})) for client in job["joined"]}
    if job["kind"] == "train":
        asked = RoundPlan(job["examined"], {int(client): number for client, number in job["epochs"].items()})
        reports = inner.train_chunk(job["round"], downs, asked)
        told = [
            {
                **{key: getattr(report.upload, key) for key in ("client", "examples", "steps", "work")},
                "terms": report.terms,
                "seen": report.seen,
                "hits": report.hits,
            }
            for report in reports
        ]
        ups = {str(report.upload.client): report.upload.message for report in reports}
        back = clients
    else:
        told = (
            [{"client": client, "hits": hits} for client, hits in inner.examine(job["round"], downs).items()]
            if job["kind"] == "examine"
            else [score._asdict() for score in inner.evaluate(job["round"], downs, job["kind"])]
        )
        ups, back = {}, [client for client in clients if client not in job["joined"]]
    return {"told": told, "kept": back}, {"up": ups, "kept": {str(client): inner.kept[client] for client in back}}
