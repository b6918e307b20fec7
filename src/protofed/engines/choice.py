"""Which engine a run gets: a rule of the net, the clients and the batch, never of timing."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from protofed.engines.engine import Engine
from protofed.engines.loop import Loop
from protofed.engines.pool import Pool
from protofed.engines.stacked import Stacked
from protofed.engines.threads import cores
from protofed.experiment.roster import clients_per_round

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.members import Members

STACKABLE_STEP = 50e6
"""Multiplications of a step below which calling torch costs as much as computing, so that stacking pays."""
WORTH_WORKERS = 1e9
"""Multiplications of a round above which worker processes pay."""


def resolved(config: Config, members: Members) -> Config:
    """The experiment with its engine chosen; what was chosen by hand stays."""
    if config.engine.name != "auto":
        return config
    step = max(net.cost for net in members.nets) * config.train.batch
    count = clients_per_round(config, len(members))
    alone = any(net.alone for net in members.nets)
    name: Literal["loop", "stacked"]
    if alone:
        name, why = "loop", "a net that does not stack, as one with batch norm, or one that branches on values"
    elif count < 2:
        name, why = "loop", "one client a round"
    elif step > STACKABLE_STEP:
        name, why = "loop", f"a step has {step / 1e6:,.0f} million multiplications: torch is busy without stacking"
    else:
        name, why = "stacked", f"a step has {step / 1e6:,.1f} million multiplications: stacking saves calls"
    return replace(config, engine=replace(config.engine, name=name, reason=f"auto: {why}"))


def engine(config: Config, members: Members) -> Engine:
    """The engine of a run."""
    about = (members, config.method, config.train, config.run.seed)
    inner = Stacked(*about, compilable(config)) if config.engine.name == "stacked" else Loop(*about)
    workers = workers_for(config, members)
    return Pool(inner, workers) if workers > 1 else inner


def compilable(config: Config) -> bool:
    """Is a step to be compiled, and can it be here?"""
    return config.engine.compile and has_compiler()


def has_compiler() -> bool:
    """Is there a C++ compiler, which torch.compile needs?"""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++", "c++"))


def workers_for(config: Config, members: Members) -> int:
    """How many processes; it changes the time a run takes and nothing else."""
    if config.engine.workers:
        return config.engine.workers
    work = sum(net.cost * len(train) for net, train in zip(members.nets, members.train, strict=True))
    share = clients_per_round(config, len(members)) / len(members)
    if not hasattr(os, "fork") or work * share * config.train.epochs < WORTH_WORKERS:
        return 1
    return min(cores(), len(members))
