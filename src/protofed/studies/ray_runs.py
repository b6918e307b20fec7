"""Whole runs as tasks of a Ray cluster: the same calls as in processes of this machine, with another executor.

A run writes its own folder, so that every machine of the cluster must see the folder of the runs. A run of which the
worker or the machine is lost is given to another one, which continues it from its last checkpoint.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from protofed import __version__
from protofed.engines.ray_connection import connected_ray
from protofed.engines.threads import cores
from protofed.errors import UserError
from protofed.trust.known_code import is_trusting, trusting

_RETRIES = 2
"""How often a call is repeated if its worker is lost."""


class Cluster(NamedTuple):
    """Where runs are made: the address of a Ray cluster, and the folder of the runs, which all its machines see."""

    address: str
    folder: Path


class Caller(NamedTuple):
    """What a worker needs to know about the process that calls it."""

    version: str
    marker: Path  # a file in the folder of the runs
    folder: Path  # the working folder
    data: str | None  # PROTOFED_DATA
    trusting: bool


class RayExecutor(Executor):
    """Makes calls in tasks of Ray. Each takes a core of the cluster, and waits until one is free."""

    def __init__(self, ray: Any, caller: Caller) -> None:
        self.ray, self.caller = ray, caller
        self.remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(call_as_caller)
        self.calls: list[Any] = []

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        call = self.remote.remote(self.caller, [self.ray.put((task, arguments))])
        self.calls.append(call)
        call.future().add_done_callback(partial(self._hand_on, future))
        return future

    def _hand_on(self, future: Future[Any], answer: Future[Any]) -> None:
        """Give the result or the error of a task to the future of its call."""
        try:
            future.set_result(answer.result())
        except self.ray.exceptions.RayTaskError as problem:  # raised by the call itself
            problem.cause.__cause__ = problem  # which has the traceback of the worker
            future.set_exception(problem.cause)
        except self.ray.exceptions.RayError as problem:
            lost = UserError(
                f"its worker of Ray was lost {_RETRIES + 1} times, perhaps because memory ran out. Run the same "
                "command again, which continues; --jobs sets the number of runs at a time."
            )
            lost.__cause__ = problem
            future.set_exception(lost)
        except BaseException as problem:
            future.set_exception(problem)

    def cores(self) -> int:
        """How many cores the machines of the cluster have together."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def cancel(self) -> None:
        """End all calls that are not finished."""
        for call in self.calls:
            self.ray.cancel(call, force=True)


@contextmanager
def ray_executor(cluster: Cluster) -> Iterator[RayExecutor]:
    """An executor on the cluster. An error inside the block ends all of its calls."""
    ray, connected_here = connected_ray(cluster.address, cores(), "--ray")
    cluster.folder.mkdir(parents=True, exist_ok=True)
    marker = cluster.folder.absolute() / f".shared-{secrets.token_hex(8)}"
    data = os.environ.get("PROTOFED_DATA")
    executor = RayExecutor(ray, Caller(__version__, marker, Path.cwd(), data, is_trusting()))
    try:
        marker.touch()
        yield executor
    except BaseException:
        executor.cancel()
        raise
    finally:
        marker.unlink(missing_ok=True)
        if connected_here:
            ray.shutdown()


def call_as_caller(caller: Caller, call: list[Any]) -> Any:
    """Make a call in a worker, in the working folder and with the data folder of the caller.

    `call`: one reference of Ray. It is fetched only when the folder is right, because an experiment with code of its
    own loads it then.
    """
    machine = socket.gethostname()
    if caller.version != __version__:
        raise UserError(
            f"--ray: the machine {machine} has protofed {__version__}, but this command is of protofed "
            f"{caller.version}. Install the same version on all machines of the cluster."
        )
    if not caller.marker.is_file():
        raise UserError(
            f"--ray: the machine {machine} does not see the folder {caller.marker.parent}, in which its runs are to be "
            "written. Give an --out on a disk that all machines of the cluster share at the same path."
        )
    if caller.folder.is_dir():
        os.chdir(caller.folder)
    if caller.data is not None:
        os.environ["PROTOFED_DATA"] = caller.data
    with trusting(caller.trusting):
        task, arguments = fetched(call)
        return task(*arguments)


def fetched(call: list[Any]) -> Any:
    """What the reference in the list stands for."""
    import ray

    return ray.get(call[0])
