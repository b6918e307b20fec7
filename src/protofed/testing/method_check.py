"""`check_method`: a method gives the same result by every engine, through a wire, and when it is resumed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load, save

from protofed.contract import checked, explaining_errors, is_ours, line_of
from protofed.core import AnyMethod, Method
from protofed.engines.loop import Loop
from protofed.engines.loss_check import check_loss
from protofed.engines.stacked import Stacked
from protofed.errors import ConfigError, UserError
from protofed.experiment.folder import Folder
from protofed.experiment.options import check
from protofed.messages import flatten, unflatten
from protofed.methods import METHODS
from protofed.plugins import label
from protofed.testing.toy_federation import (
    complete_state,
    finished_runner,
    pool_of,
    toy_config,
    toy_members,
    toy_net,
    toy_runner,
)

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.experiment.config import Config
    from protofed.experiment.members import Members
    from protofed.experiment.runner import Runner

TOLERANCE = 1e-4
"""The difference that rounding may make after a few rounds, relative and absolute."""
_TRAIN = {"epochs": 2, "clip": 1.0}


def check_method(
    method: type[AnyMethod] | AnyMethod | str, options: Mapping[str, Any] | None = None, *, rounds: int = 3
) -> list[str]:
    """Check a method on a small federation; raise a `UserError` with the file and line of what is wrong.

    `method`: the class, a name such as "./mine.py:ProtoAvg", or an object with its options. The clients are unequal:
    one has a single example, one has none, and their nets differ where the method allows it.
    """
    made = method if isinstance(method, Method) else _with_options(method, options or {})
    with explaining_errors(made):
        return _checked_method(made, rounds)


def _with_options(method: Any, options: Mapping[str, Any]) -> AnyMethod:
    """The method of a class or a name, with options that are checked like those of an experiment file."""
    name, kind = METHODS.find(method, "method")
    problems: list[str] = []
    made = check("method", kind, options, problems, label(name))
    if made is None:
        raise ConfigError(problems)
    return made


def _checked_method(method: AnyMethod, rounds: int) -> list[str]:
    """What was found to be true of a method."""
    owner, members = type(method).__name__, unequal_members(method)
    config = toy_config(method, rounds=rounds, run={"sample": 0.7}, train=_TRAIN)
    found = [f"{owner} is a method: its hooks have the names and parameters that they need."]
    loop = finished_runner(Loop, config, members)
    _require_accepted_uploads(loop, method)
    found.append("loop: it trains, evaluates, and sends messages of the same names and shapes.")
    try_loss(method, config, members)
    found.append("loss: it is pure, and padding does not change it.")
    stacked = finished_runner(Stacked, config, members)
    require_same_run(stacked, loop, f"{owner} by the stacked engine", "one client after the other", TOLERANCE)
    found.append("stacked: training several clients at once gives what the loop gives, up to rounding.")
    replayed = finished_runner(replayed_engine, config, members)
    require_same_run(replayed, stacked, f"{owner} with recorded steps", "steps that call the loss")
    found.append("replayed: recorded steps change no bit, from the first step on.")
    wired = finished_runner(Loop, replace(config, method=wired_method(method)), members)
    require_same_run(wired, loop, f"{owner} through bytes", "messages that are passed on as they are")
    found.append("wire: messages and states that are written to bytes and read back change no bit.")
    resumed = resumed_runner(config, members)
    require_same_run(resumed, loop, f"{owner}, stopped and resumed,", "a run without interruption")
    found.append("resumed: a run that is stopped after a round and resumed changes no bit.")
    if hasattr(os, "fork"):
        pooled = finished_runner(pool_of(Loop), config, members)
        require_same_run(pooled, loop, f"{owner} in two processes", "one process")
        found.append("workers: two processes change no bit.")
    return found


def unequal_members(method: AnyMethod) -> Members:
    """Unequal clients with dropout; mixed nets where the method allows them."""
    small, large = toy_net(dropout=0.3), toy_net(dropout=0.3, hidden=8)
    return toy_members(nets=[small, large if method.needs != "equal nets" else small, small] * 2)


def replayed_engine(clients: Any, method: AnyMethod, training: Any, seed: int) -> Stacked:
    """The stacked engine, which records every kind of step at once and replays it from the second on."""
    return Stacked(clients, method, training, seed, patience=0)


def wired_method(method: AnyMethod) -> AnyMethod:
    """The same method, but all that it sends or stores goes through safetensors bytes and back."""
    kinds, base = type(method).types(), type(method)

    def through(hook: str, kind: str, *arguments: Any) -> Any:
        tree = checked(method, hook, getattr(base, hook)(*arguments))
        try:
            return unflatten(kinds[kind], load(save(flatten(tree))))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            declared = getattr(kinds[kind], "__name__", kinds[kind])
            raise UserError(
                f"{line_of(base, hook)}: what {base.__name__}.{hook} returned cannot be read back as {declared}, the "
                f"type that the class declares: {problem}. Correct the types in Method[Server, Down, Up, Kept]."
            ) from problem

    class Wired(base):  # type: ignore[misc, valid-type]
        def start(self, site: Any) -> Any:
            return through("start", "server", self, site)

        def broadcast(self, server: Any, client: int) -> Any:
            return through("broadcast", "down", self, server, client)

        def join(self, client: Any) -> Any:
            return through("join", "kept", self, client)

        def keep(self, trained: Any) -> Any:
            return through("keep", "kept", self, trained)

        def upload(self, trained: Any) -> Any:
            return through("upload", "up", self, trained)

        def aggregate(self, site: Any, server: Any, uploads: Any) -> Any:
            return through("aggregate", "server", self, site, server, uploads)

    Wired.__module__ = base.__module__ if is_ours(method) else Wired.__module__
    wired: AnyMethod = Wired(**{field.name: getattr(method, field.name) for field in fields(method)})
    return wired


def try_loss(method: AnyMethod, config: Config, members: Members) -> None:
    """Raise an error if the loss is impure or counts padding, also for a method of the package."""
    client = members.client(config.run.seed, 0, 0)
    server = method.start(members.server(config.run.seed, 0))
    down, kept = method.broadcast(server, 0), method.join(client)
    check_loss(method, client, method.receive(kept, down), method.prepare(down), kept)


def _require_accepted_uploads(runner: Runner, method: AnyMethod) -> None:
    """Raise an error if the guard rejected an upload."""
    for row in runner.rounds:
        for client, reason in row["rejected"].items():
            raise UserError(
                f"{line_of(type(method), 'upload')}: {type(method).__name__}.upload of client {client} was rejected in "
                f"round {row['round']}: {reason}."
            )


def resumed_runner(config: Config, members: Members) -> Runner:
    """A run that was stopped after its first round and resumed."""
    with TemporaryDirectory() as path:
        folder = Folder(Path(path))
        loop = replace(config, engine=replace(config.engine, name="loop", workers=1))
        begun = toy_runner(loop.with_rounds(1), members, folder)
        begun.start()
        begun.go()
        runner = toy_runner(loop, members, folder)
        runner.resume()
        runner.go()
        return runner


def require_same_run(runner: Runner, reference: Runner, what: str, other: str, tolerance: float = 0.0) -> None:
    """Raise an error if two runs differ by more than the tolerance, in their states, rounds or evaluations."""
    got, expected = complete_state(runner), complete_state(reference)
    if got.keys() != expected.keys():
        name = min(got.keys() ^ expected.keys())
        raise UserError(f"{what} differs from {other}: only one of them has {name}.")
    for name, value in expected.items():
        if (gap := _largest_difference(got[name], value, tolerance)) is not None:
            raise UserError(f"{what} differs from {other}: {name} by up to {gap:.3g} ({_allowed(tolerance)}).")
    for row, before in zip(runner.rounds, reference.rounds, strict=True):
        for key in row.keys() | before.keys():
            if key != "seconds" and not _close(row.get(key), before.get(key), tolerance):
                raise UserError(
                    f"{what} differs from {other}: {key} of round {before['round']} is {row.get(key)} instead of "
                    f"{before.get(key)} ({_allowed(tolerance)})."
                )
    scores = [[score._asdict() for score in one.evaluations] for one in (runner, reference)]
    for score, before in zip(*scores, strict=True):
        if score != before:
            raise UserError(f"{what} differs from {other}: client {score['client']} is tested with another result.")


def _allowed(tolerance: float) -> str:
    return f"allowed: {tolerance:g}" if tolerance else "no difference is allowed"


def _largest_difference(got: Tensor, expected: Tensor, tolerance: float) -> float | None:
    """The largest difference of two tensors; None if it is within the tolerance."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return math.inf
    close = partial(torch.allclose, rtol=tolerance, atol=tolerance, equal_nan=True)
    if close(got, expected):
        return None
    return float((got.double() - expected.double()).abs().max())


def _close(got: Any, expected: Any, tolerance: float) -> bool:
    """Whether two entries of a row are equal, numbers up to the tolerance."""
    if isinstance(expected, dict) and isinstance(got, dict):
        return got.keys() == expected.keys() and all(_close(got[key], expected[key], tolerance) for key in got)
    if isinstance(expected, list) and isinstance(got, list):
        return len(got) == len(expected) and all(_close(*both, tolerance) for both in zip(got, expected, strict=True))
    if isinstance(expected, float) and isinstance(got, float):
        return math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance) or (
            got != got and expected != expected
        )
    return bool(got == expected)
