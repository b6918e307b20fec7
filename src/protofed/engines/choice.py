"""Which engine a run gets: a rule of the net, the clients and the batch size, never of timing."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from protofed.devices import CPU
from protofed.engines.loop import Loop
from protofed.engines.pool import Pool
from protofed.engines.stacked import Stacked
from protofed.engines.threads import cores
from protofed.errors import UserError

if TYPE_CHECKING:
    import torch

    from protofed.core import AnyMethod, Net
    from protofed.engines.engine import Clients, Engine
    from protofed.examples import Examples
    from protofed.training import TrainSection

_STACKABLE_STEP = 50e6
"""Multiplications per step below which calling torch costs as much as computing, so that stacking pays off."""
_STACKABLE_WEIGHTS = 150_000
"""Weights of a net above which a stack of ten, its gradients and momentum leave the processor's cache at every step."""
_STACKABLE_ROUND = 2
"""A round's examples per example of the largest client below which a stack would mostly consist of that client."""
ENGINES = {"loop": Loop, "stacked": Stacked}
"""The engines by name. `experiment.sections.EngineSection` and `choose_engine` list the names for type checks."""
_MOST_PER_CORE = 8
"""Processes per core above which a number of processes must be a mistake."""
_WORTH_WORKERS = 1e9
"""Multiplications per round above which worker processes pay off."""


def choose_engine(
    nets: Sequence[Net], train: Sequence[Examples], batch: int, clients_per_round: int
) -> tuple[Literal["loop", "stacked"], str]:
    """The engine for `engine.name = "auto"`, and the reason."""
    step = max(net.cost for net in nets) * batch
    if any(net.trains_alone for net in nets):
        return "loop", "a net that cannot be stacked, for example one with batch norm or one that branches on values"
    if clients_per_round < 2:
        return "loop", "one client per round"
    if step > _STACKABLE_STEP:
        size = f"{step / 1e6:,.0f} million multiplications per step"
        return "loop", f"the nets are large ({size}), so training them together is not faster"
    weights = max(sum(map(math.prod, net.shapes.values())) for net in nets)
    if weights > _STACKABLE_WEIGHTS:
        return "loop", f"the nets have many weights ({weights:,}), so training them together is not faster"
    sizes = [len(examples) for examples in train]
    if sum(sizes) / len(sizes) * clients_per_round < _STACKABLE_ROUND * max(sizes):
        share = max(sizes) / sum(sizes)
        return "loop", f"one client has {share:.0%} of all examples, so most of its steps would be in a stack of one"
    size = f"{step / 1e6:,.1f} million multiplications per step"
    return "stacked", f"the nets are small ({size}), so training them together is faster"


def choose_workers(nets: Sequence[Net], train: Sequence[Examples], epochs: float, clients_per_round: int) -> int:
    """The number of processes for `engine.workers = 0`. It changes the time that a run takes and nothing else."""
    work = sum(net.cost * len(examples) for net, examples in zip(nets, train, strict=True))
    per_round = work * clients_per_round / len(nets) * epochs
    on_gpu = any(examples.for_steps.device != CPU for examples in train)
    if not hasattr(os, "fork") or on_gpu or per_round < _WORTH_WORKERS:
        return 1
    return min(cores(), len(nets))


def check_workers(workers: int, device: torch.device = CPU) -> None:
    """Raise an error if there are so many processes that they would block this machine, or more than one for a GPU."""
    if workers > 1 and device != CPU:
        raise UserError(
            f"engine.workers: got {workers:,}, but forked processes cannot share a GPU (engine.device = "
            f'"{device}"). Use 1, or 0 to let protofed choose.'
        )
    if workers > _MOST_PER_CORE * cores():
        raise UserError(
            f"engine.workers: got {workers:,}, but this machine has {cores()} cores. "
            f"Use {cores()}, or 0 for one per core."
        )


def make_engine(
    name: str, workers: int, clients: Clients, method: AnyMethod, training: TrainSection, seed: int
) -> Engine:
    """The engine with this name, around it a pool of worker processes if there are several, at most one per client."""
    return with_workers(ENGINES[name](clients, method, training, seed), workers)


def with_workers(engine: Loop, workers: int) -> Engine:
    """The engine, around it a pool of worker processes if there are several, at most one per client."""
    sizes = [len(examples) for examples in engine.clients.train]
    workers = min(workers, len(sizes))
    return Pool(engine, engine.method.types(), sizes, workers) if workers > 1 else engine
