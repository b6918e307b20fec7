"""A pool whose workers are actors of Ray, on this machine or on a cluster of them.

Jobs, answers and the rule which clients are trained together are those of `Pool`, so that results are identical to the
last bit on equal processors. What clients keep stays in this process and travels with the work: an actor that is lost
is replaced, and its job done again. Actors make their own copy of the data when they start.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from protofed.engines.engine import hold_in_memory, ignore_progress
from protofed.engines.pool import Pool, T, check_tries
from protofed.engines.pool_worker import Answer, Job, answer_parcels, as_parcels, from_parcels
from protofed.engines.ray_connection import connected_ray
from protofed.errors import UserError

if TYPE_CHECKING:
    from protofed.engines.engine import GroupEngine, Report


class RayWorker:
    """What an actor does. `make` builds the inner engine, with the data, on the machine of the actor."""

    def __init__(self, make: Callable[[], GroupEngine], types: Mapping[str, Any]) -> None:
        torch.set_num_threads(1)
        self.engine, self.types = make(), types

    def ready(self) -> int:
        """The number of the actor's process."""
        return os.getpid()

    def work(self, text: bytes, content: bytes) -> tuple[bytes, bytes]:
        """The answer to a job."""
        return answer_parcels(self.engine, self.types, text, content)


class RayPool(Pool):
    """Runs an engine's work in actors of Ray."""

    def __init__(
        self,
        inner: GroupEngine,
        types: Mapping[str, Any],
        sizes: Sequence[int],
        workers: int,
        make: Callable[[], GroupEngine],
        address: str,
    ) -> None:
        self.inner, self.types, self.sizes, self.make = inner, types, sizes, make
        self.on_trained: Callable[[int], None] = ignore_progress
        self.hold: Callable[[Report], Report] = hold_in_memory
        self.ray, self.started_here = connected_ray(address, workers)
        self.actors = [self._new_actor() for _ in range(workers or int(self.ray.cluster_resources().get("CPU", 1)))]
        try:
            self.pids = self.ray.get([actor.ready.remote() for actor in self.actors])
        except self.ray.exceptions.RayError as problem:
            self.close()
            raise UserError(
                f"engine.name: a worker of Ray could not start: {str(problem).strip().splitlines()[-1]} "
                "Every machine of the cluster needs protofed and the data."
            ) from problem

    def _new_actor(self) -> Any:
        return self.ray.remote(num_cpus=1)(RayWorker).remote(self.make, self.types)

    def close(self) -> None:
        """End all actors, and Ray if it was started here."""
        for actor in self.actors:
            self.ray.kill(actor)
        self.actors = []
        if self.started_here:
            self.ray.shutdown()
            self.started_here = False

    def _do(self, jobs: Sequence[Job], downs: Mapping[int, Any], read: Callable[[Answer], T]) -> list[T]:
        waiting = deque((number, 1) for number in range(len(jobs)))
        busy: dict[Any, tuple[int, int, int]] = {}
        free = list(range(len(self.actors)))
        answers: dict[int, T] = {}
        while waiting or busy:
            while waiting and free:
                number, tries = waiting.popleft()
                position = free.pop(0)
                parcels = as_parcels(*self._packed(jobs[number], downs))
                busy[self.actors[position].work.remote(*parcels)] = (number, tries, position)
            (done,), _ = self.ray.wait(list(busy), num_returns=1)
            number, tries, position = busy.pop(done)
            free.append(position)
            try:
                about, tensors = from_parcels(*self.ray.get(done))
            except self.ray.exceptions.RayError:  # the actor or its machine is lost
                check_tries(jobs[number], tries)
                self.actors[position] = self._new_actor()
                waiting.appendleft((number, tries + 1))
                continue
            answers[number] = read(self._accepted(jobs[number], about, tensors))
        return [answers[number] for number in range(len(jobs))]
