"""Every registered method through every engine, and through a wire that flattens every message and state, is the loop's.

A new method or engine is in by being registered. The planted bugs at the end show that the comparison can fail.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from protofed.core import AnyMethod, Batch
from protofed.draws import DerivedDropout, derive, generator
from protofed.engines import ENGINES
from protofed.engines.loop import Loop
from protofed.messages import flatten, unflatten
from protofed.methods import METHODS
from protofed.runner import Runner
from toys import config, everything, federation, net, played

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def wired(method: AnyMethod) -> AnyMethod:
    """The same method, but all that it sends or stores goes through safetensors bytes and back."""
    kinds = type(method).types()

    def through(kind: str, tree: Any) -> Any:
        return unflatten(kinds[kind], load(save(flatten(tree))))

    class Wired(type(method)):  # type: ignore[misc]
        def start(self, site):
            return through("server", super().start(site))

        def broadcast(self, server, client):
            return through("down", super().broadcast(server, client))

        def join(self, client):
            return through("kept", super().join(client))

        def keep(self, trained):
            return through("kept", super().keep(trained))

        def upload(self, trained):
            return through("up", super().upload(trained))

        def aggregate(self, site, server, uploads):
            return through("server", super().aggregate(site, server, uploads))

    return Wired(**{f.name: getattr(method, f.name) for f in fields(method)})


def members(method: str):
    """Unequal clients with dropout; mixed nets where the method allows them."""
    small, large = net(dropout=0.3), net(dropout=0.3, hidden=8)
    mixed = METHODS[method].needs != "equal nets"
    return federation(nets=[small, large if mixed else small, small] * 2)


def final(method: str, engine: type = Loop, wire: bool = False) -> tuple[dict[str, torch.Tensor], Runner]:
    experiment = config(method, rounds=4, run={"sample": 0.7}, train={"epochs": 2, "clip": 1.0})
    if wire:
        experiment = replace(experiment, method=wired(experiment.method))
    ENGINES["under test"] = engine
    try:
        runner = played(replace(experiment, engine=replace(experiment.engine, name="under test")), members(method))
    finally:
        del ENGINES["under test"]
    return everything(runner), runner


def agree(method: str, engine: type, wire: bool, **tolerance: float) -> None:
    (expected, spec), (got, runner) = final(method), final(method, engine, wire)
    torch.testing.assert_close(got, expected, **tolerance)
    for row, reference in zip(runner.rounds, spec.rounds, strict=True):
        assert row["clients"] == reference["clients"]
        assert row["up_params"] == reference["up_params"]
        assert row["loss"] == pytest.approx(reference["loss"], rel=1e-4, abs=1e-4)
        assert row["accuracy_head"] == pytest.approx(reference["accuracy_head"], abs=0.03)


@pytest.mark.parametrize("wire", [False, True], ids=["direct", "wire"])
@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_through_every_engine(method, engine, wire):
    agree(method, ENGINES[engine], wire, **TOLERANCE)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_wire_changes_no_bit(method):
    agree(method, Loop, True, rtol=0, atol=0)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_loss_can_be_mapped_over_clients(method):
    made, toy, group = METHODS[method](), net(dropout=0.3), federation()
    server = made.start(group.server(0, 0))
    down, kept = made.broadcast(server, 0), made.join(group.client(0, 0, 0))
    starts = [toy.init(generator("map", client)) for client in (0, 1)]
    batches = [
        Batch(
            torch.randn(5, 4, generator=generator("x", c)),
            torch.tensor([0, 1, 2, 0, c]),
            torch.tensor([1.0, 1, 1, 1, c]),
        )
        for c in (0, 1)
    ]
    keys = torch.tensor([derive("key", client) for client in (0, 1)])

    def gradient(params, batch, key):
        def total(params):
            with DerivedDropout(key):
                return made.loss(toy, params, batch, down, kept).total

        return torch.func.grad(total)(params)

    toy.train(True)
    stacked = torch.vmap(gradient)(
        stack(starts), Batch(*(torch.stack(parts) for parts in zip(*batches, strict=True))), keys
    )
    torch.testing.assert_close(stacked, stack([gradient(*one) for one in zip(starts, batches, keys, strict=True)]))
    assert any(value.abs().sum() > 0 for value in stacked.values())


def stack(params: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([part[name] for part in params]) for name in params[0]}


class SwappedClients(Loop):
    """Planted bug: two clients' messages change places."""

    def train(self, round, downs):
        reports = super().train(round, downs)
        if 0 in self.kept and 2 in self.kept:  # both have the small net
            self.kept[0], self.kept[2] = self.kept[2], self.kept[0]
        first, second = reports[:2]
        reports[0] = first._replace(upload=first.upload._replace(message=second.upload.message))
        return reports


class DroppedMask(Loop):
    """Planted bug: dropout is forgotten."""

    def __init__(self, federation, *rest):
        plain = {id(one): net(hidden=one.shapes["body.0.bias"][0]) for one in federation.nets}
        super().__init__(replace(federation, nets=tuple(plain[id(one)] for one in federation.nets)), *rest)


@pytest.mark.parametrize("bug", [SwappedClients, DroppedMask])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_planted_bugs_are_found(method, bug):
    with pytest.raises(AssertionError):
        agree(method, bug, False, **TOLERANCE)
