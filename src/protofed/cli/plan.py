"""The command `protofed plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Optional

from protofed.cli.arguments import AsJson, ExperimentFile, Sets, TrustCode, option

if TYPE_CHECKING:
    from protofed.experiment.forecast import Forecast


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
    with one_thread():
        found = forecast(Config.load(file, sets or ()))
    if as_json:
        print(json.dumps({**asdict(found), "total": found.total._asdict()}, indent=2))
        return
    print("\n".join(plan_lines(found)))
    if clients:
        print(f"With {clients:,} clients, {found.per_round:,} per round: {_needs(found.with_clients(clients))}.")


def plan_lines(found: Forecast) -> list[str]:
    """What the command prints about the experiment."""
    rounds = f"{found.rounds:,} rounds of {found.per_round:,} of {found.clients:,} clients"
    return [
        f"{rounds}, {found.tests:,} tests of {found.tested:,} clients: {_needs(found)}.",
        f"  start {found.start.wall:.1f} s, first {found.measured} rounds {found.first_rounds.wall:.1f} s, "
        f"then {found.round.wall:.2f} s per round, {found.test.wall:.1f} s per test, {found.end.wall:.1f} s at the end",
        f"  {found.steps_per_second:,.0f} steps of clients per second, {found.steps_per_round:,.0f} per round",
        f"  a client keeps {_bytes(found.state_bytes)} and uploads {_bytes(found.upload_bytes)}; "
        f"the server keeps {_bytes(found.server_bytes)}; a checkpoint writes {_bytes(found.written_per_round)}",
    ]


def _needs(found: Forecast) -> str:
    seconds = found.total.wall
    length = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return (
        f"about {length} ({found.total.cpu:,.0f} CPU seconds of the main process), "
        f"{_bytes(found.memory)} of memory, {_bytes(found.disk)} on disk"
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
