"""The engine of a run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofed.engines.choice import choose_workers, make_engine
from protofed.errors import UserError
from protofed.experiment.roster import clients_per_round

if TYPE_CHECKING:
    from protofed.engines.engine import Engine
    from protofed.experiment.config import Config
    from protofed.experiment.members import Members


def make_local_engine(config: Config, members: Members) -> Engine:
    """The engine that the experiment names, with its number of processes."""
    if config.engine.name == "flower":
        raise UserError(
            'engine.name: "flower" is the engine of federations on several machines, see docs/deploy.md. For a run on '
            'this machine, use "auto".'
        )
    workers = config.engine.workers or choose_workers(
        members.nets, members.train, config.train.epochs, clients_per_round(config, len(members))
    )
    return make_engine(config.engine.name, workers, members, config.method, config.train, config.run.seed)
