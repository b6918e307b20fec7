"""The command `protofed plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Optional

from protofed.cli.arguments import AsJson, ExperimentFile, Sets, TrustCode, option
from protofed.experiment.wording import duration, quantity

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.forecast import Forecast

_ENOUGH_CLIENTS = 1000
"""Clients from which on the memory of the data and libraries is small next to theirs."""


def plan_command(
    file: ExperimentFile = None,
    sets: Sets = None,
    clients: Annotated[
        Optional[int], option("--clients", min=1, help="Also say what the run would take with this number of clients.")
    ] = None,
    as_json: AsJson = False,
    trust_code: TrustCode = False,
) -> None:
    """Say how long an experiment takes, and how much memory and disk it needs, before it is run.

    It does up to eight rounds in a temporary folder, measures them, and computes the rest. Seconds are those of this
    machine, as busy as it is now.
    """
    from protofed.engines.memory import keep_freed_memory
    from protofed.engines.threads import one_thread
    from protofed.experiment.config import Config
    from protofed.experiment.forecast import forecast

    keep_freed_memory()
    config = Config.load(file, sets or ())
    with one_thread():
        found = forecast(config)
    if as_json:
        print(json.dumps({**asdict(found), "total": found.total._asdict()}, indent=2))
        return
    print("\n".join(plan_lines(found)))
    if clients:
        print(other_clients_line(found, clients, config))


def plan_lines(found: Forecast) -> list[str]:
    """What the command prints about the experiment."""
    rounds = f"{quantity(found.rounds, 'round')} of {found.per_round:,} of {found.clients:,} clients"
    return [
        f"{rounds}, {quantity(found.tests, 'test')} of {quantity(found.tested, 'client')}: {_needs(found)}.",
        f"  start {found.start.wall:.1f} s, first {found.measured} rounds {found.first_rounds.wall:.1f} s, "
        f"then {found.round.wall:.2f} s per round, {found.test.wall:.1f} s per test, {found.end.wall:.1f} s at the end",
        f"  {found.steps_per_second:,.0f} steps of clients per second, {found.steps_per_round:,.0f} per round",
        f"  a client keeps {_bytes(found.state_bytes)} and uploads {_bytes(found.upload_bytes)}; "
        f"the server keeps {_bytes(found.server_bytes)}; a checkpoint writes {_bytes(found.written_per_round)}",
    ]


def other_clients_line(found: Forecast, clients: int, config: Config) -> str:
    """What the run would take with another number of clients. The memory of one client needs many to be measured."""
    from protofed.experiment.roster import clients_per_round, clients_to_test, trained_per_round

    per_round, tested = trained_per_round(config, clients), len(clients_to_test(config, clients))
    if clients < max(clients_per_round(config, clients), tested):
        return f"With {clients:,} clients: not computed, because run.sample or eval.clients_sampled asks for more."
    other = found.with_clients(clients, per_round, tested)
    text = f"With {clients:,} clients, of which {other.per_round:,} train per round and {other.tested:,} are tested: "
    if found.clients >= _ENOUGH_CLIENTS:
        return f"{text}{_needs(other)}."
    return (
        f"{text}{_needs(other, with_memory=False)}. The memory of a client cannot be measured with {found.clients:,}: "
        f"plan {_ENOUGH_CLIENTS:,} clients or more for it."
    )


def _needs(found: Forecast, with_memory: bool = True) -> str:
    seconds = found.total.wall
    length = duration(seconds)
    memory = f"{_bytes(found.memory)} of memory, " if with_memory else ""
    return (
        f"about {length} ({found.total.cpu:,.0f} CPU seconds of the main process), {memory}{_bytes(found.disk)} on disk"
    )


def _bytes(number: float) -> str:
    """A number of bytes in words.

    >>> _bytes(87_360), _bytes(2.2e9)
    ('87.4 kB', '2.2 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} bytes"
