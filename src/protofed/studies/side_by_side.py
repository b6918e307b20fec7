"""Several calls at a time, in processes of this machine or on a cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children
from typing import Any

from protofed.engines.threads import ends_with
from protofed.errors import UserError
from protofed.studies.ray_runs import Cluster, RayExecutor, ray_executor

AT_A_TIME = 2
"""How many runs are made at a time on this machine unless the user says otherwise."""
_TICK = 0.5
"""Seconds between two looks at the runs that are going on."""


def runs_at_a_time(jobs: int | None, ray: str) -> int:
    """How many runs are made at a time if the user asks for `jobs`; 0: as many as the cluster has cores."""
    return jobs or (0 if ray else AT_A_TIME)


def call_all(
    task: Callable[[Any, Any], Any],
    arguments: Sequence[tuple[Any, Any]],
    names: Sequence[str],
    at_a_time: int = AT_A_TIME,
    report: Callable[[int, Any], None] = lambda position, result: None,
    tick: Callable[[], None] = lambda: None,
    cluster: Cluster | None = None,
) -> None:
    """Call the task with each pair of arguments, several at a time, and `report` with the position and result of each.

    `at_a_time`: 0 is one per core of the cluster. An error is raised with the name of its call. It stops the
    other calls, like Ctrl-C.
    """
    with ray_executor(cluster) if cluster else _processes(at_a_time) as executor:
        waiting, pending = deque(range(len(arguments))), dict[Future[Any], int]()
        while waiting or pending:
            while waiting and len(pending) < (at_a_time or _cores_of(executor)):
                number = waiting.popleft()
                pending[_outcome(partial(executor.submit, task, *arguments[number]), names[number])] = number
            done, _ = wait(pending, _TICK, FIRST_COMPLETED)
            tick()
            for future in done:
                number = pending.pop(future)
                report(number, _outcome(future.result, names[number]))


@contextmanager
def _processes(number: int) -> Iterator[Executor]:
    """An executor with this number of processes. An error inside the block ends them."""
    unrelated = set(active_children())
    with ProcessPoolExecutor(number, initializer=ends_with, initargs=(os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            for process in set(active_children()) - unrelated:
                process.kill()
            raise


def _cores_of(executor: Executor) -> int:
    """How many cores the cluster has now. Not more calls are handed out, so that those of others get their turn."""
    assert isinstance(executor, RayExecutor)
    return executor.cores()


def _outcome(get: Callable[[], Any], name: str) -> Any:
    """The result of a call. Its error is raised with its name."""
    try:
        return get()
    except UserError as problem:
        raise UserError(f"{name}: {problem}" if name.strip(", ") else str(problem)) from problem
    except BrokenProcessPool:
        raise UserError(
            f"{name}, or another run at the same time: its process was killed, perhaps because memory ran out. Run the "
            "same command again with --jobs 1, which continues."
        ) from None
    except Exception as problem:
        problem.add_note(f"This happened in {name}.")
        raise
