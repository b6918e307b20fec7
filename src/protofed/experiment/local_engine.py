"""The engine of a run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofed.engines.choice import choose_workers, make_engine, with_workers
from protofed.errors import UserError
from protofed.experiment.roster import clients_per_round
from protofed.trust.privacy.private_loop import PrivateLoop
from protofed.trust.privacy.rules import epsilon_after

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
    if config.privacy.is_on and config.engine.name != "loop":
        raise UserError(
            f'engine.name: got "{config.engine.name}", but with [privacy] clients are trained one after the other. '
            'Use "auto" or "loop".'
        )
    training, examples = config.train, sum(map(len, members.train))
    epochs = training.steps * training.batch * len(members) / max(1, examples) if training.steps else training.epochs
    workers = config.engine.workers or choose_workers(
        members.nets, members.train, epochs, clients_per_round(config, len(members))
    )
    if config.privacy.is_on:
        epsilon_after(config.method, config.privacy, config.train, config.run.rounds)  # now, not after the last round
        engine = PrivateLoop(members, config.method, config.train, config.run.seed, config.privacy)
        return with_workers(engine, workers)
    return make_engine(config.engine.name, workers, members, config.method, config.train, config.run.seed)
