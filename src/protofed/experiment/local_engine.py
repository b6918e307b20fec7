"""The engine of a run on this machine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protofed.engines.choice import ENGINES, choose_engine, choose_workers, make_engine, with_workers
from protofed.errors import UserError
from protofed.experiment.members import Members
from protofed.experiment.roster import clients_per_round
from protofed.experiment.safeguards import members_with_attackers
from protofed.experiment.stored import GIVEN
from protofed.trust.privacy.private_loop import PrivateLoop
from protofed.trust.privacy.rules import epsilon_after

if TYPE_CHECKING:
    from protofed.engines.engine import Engine, GroupEngine
    from protofed.experiment.config import Config


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
    if config.engine.name == "ray":
        return _ray_engine(config, members)
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


def _ray_engine(config: Config, members: Members) -> Engine:
    """Workers of Ray around the engine that `auto` chooses. They read the data on their own machines."""
    from protofed.engines.ray_pool import RayPool

    if GIVEN in (config.data.name, *(net.name for net in config.nets)):
        raise UserError(
            'engine.name: "ray" needs data and nets that are named in the experiment, because every machine of the '
            'cluster reads them; here they were given in Python. Use "auto".'
        )
    inner = _inner_engine(config, members)
    sizes = [len(examples) for examples in members.train]
    make = partial(_inner_engine_with_data, config)
    return RayPool(inner, config.method.types(), sizes, config.engine.workers, make, config.engine.address)


def _inner_engine(config: Config, members: Members) -> GroupEngine:
    per_round = clients_per_round(config, len(members))
    name, _ = choose_engine(members.nets, members.train, config.train.batch, per_round)
    return ENGINES[name](members, config.method, config.train, config.run.seed)


def _inner_engine_with_data(config: Config) -> GroupEngine:
    return _inner_engine(config, members_with_attackers(config, Members.of(config)))
