"""Every registered method through every engine, and through a wire that flattens every message and state, is the loop's.

A new method or engine is in by being registered. The planted bugs at the end show that the comparison can fail.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from protofed.core import AnyMethod, Batch
from protofed.draws import DerivedDropout, derive, generator
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.experiment.runner import Runner
from protofed.methods import METHODS
from protofed.testing.method_check import TOLERANCE, replayed_engine, require_same_run, unequal_members, wired_method
from toys import config, federation, methods_by_speed, net, played, played_on, pool_of

# FedTGP's default, 10, makes more of rounding than steps do. CReFF's retraining, at the server, has 3,000 steps per round.
GENTLE: dict[str, Any] = {"fedtgp": {"pull": 1.0}, "creff": {"each": 10, "match_steps": 10, "head_epochs": 5}}
ENGINES: dict[str, Any] = {
    "loop": Loop,
    "stacked": Stacked,
    "loop, 2 workers": pool_of(Loop, 2),
    "stacked, 2 workers": pool_of(Stacked, 2),
}


def final(
    method: str, engine: Any = Loop, wire: bool = False, options: dict[str, Any] | None = None, rounds: int = 4
) -> Runner:
    experiment = config(
        method,
        rounds=rounds,
        run={"sample": 0.7},
        train={"epochs": 2, "clip": 1.0},
        method={**GENTLE.get(method, {}), **(options or {})},
    )
    members = unequal_members(experiment.method)
    if wire:
        experiment = replace(experiment, method=wired_method(experiment.method))
    return played_on(engine, experiment, members)


def agree(
    method: str, engine: type, wire: bool, options: dict[str, Any] | None = None, tolerance: float = TOLERANCE
) -> None:
    runner, reference = final(method, engine, wire, options), final(method, options=options)
    require_same_run(runner, reference, method, "the loop", tolerance)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_through_the_stacked_engine(method):
    agree(method, ENGINES["stacked"], wire=False)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("method", methods_by_speed())
def test_every_method_through_every_engine(method, engine):
    agree(method, ENGINES[engine], wire=False)


@pytest.mark.parametrize("engine", [name for name in sorted(ENGINES) if "workers" not in name])
@pytest.mark.parametrize("method", methods_by_speed())
def test_every_method_survives_the_wire(method, engine):
    """Workers need no second test: their messages travel as bytes anyway."""
    agree(method, ENGINES[engine], wire=True)


OPTIONS = [
    ("mpfedcl", {"cap": 3}),
    ("mpfedcl", {"clustering": "dbscan"}),
    ("mpfedcl", {"clustering": "dbscan", "k": 5, "padding": "slot", "neighbours": 1, "eps": 0.2}),
    ("fedrod", {"hyper": 4}),
    ("fpl", {"clusters": "first"}),
    ("fedrod", {"personal": "after"}),
    ("fedbabu", {"tune_from": "client"}),
    ("fesem", {"centres": 2}),
    ("fesem", {"assign": "classes"}),
    ("fedprox", {"term": "constant"}),
    ("fedproto", {"send": "own", "outputs": "own"}),
    ("creff", {"head_batch": 0, "head_start": "averaged"}),
    ("fedatt", {"norm": "frobenius"}),
]


@pytest.mark.parametrize(("method", "options"), OPTIONS, ids=str)
def test_options_through_stacks(method, options):
    agree(method, ENGINES["stacked"], False, options)


@pytest.mark.parametrize("inner", ["loop", "stacked"])
@pytest.mark.parametrize("method", methods_by_speed())
def test_workers_change_no_bit(method, inner):
    agree_exactly(final(method, ENGINES[f"{inner}, 2 workers"]), final(method, ENGINES[inner]))


def agree_exactly(runner: Runner, reference: Runner) -> None:
    require_same_run(runner, reference, "the run", "the other run")


LOSSES = [*((name, {}) for name in sorted(METHODS)), ("fedrod", {"hyper": 4}), ("fedrod", {"personal": "after"})]


RECORDED = [
    pytest.param(name, options, marks=[] if name in ("fedproto", "mpfedcl", "fedrep") else pytest.mark.slow)
    for name, options in LOSSES
]
"""Recording takes a second per method; three with different losses and phases are among the fast tests."""


@pytest.mark.parametrize(("method", "options"), RECORDED)
def test_replay_changes_no_bit(method, options):
    reference, runner = (final(method, kind, False, options, 2) for kind in (Stacked, replayed_engine))
    kinds = [step for step in runner.engine.steps.values() if step.recorded]
    assert kinds, "no step was recorded"
    agree_exactly(runner, reference)


@pytest.mark.parametrize(("method", "options"), RECORDED)
def test_replay_of_single_clients_changes_no_bit(method, options):
    reference, runner = (final(method, partial(Loop, patience=n), False, options, 2) for n in (None, 0))
    assert any(step.recorded for step in runner.engine.steps.values()), "no step was recorded"
    assert not reference.engine.steps
    agree_exactly(runner, reference)


@pytest.mark.parametrize("method", methods_by_speed())
def test_the_wire_changes_no_bit(method):
    agree(method, Loop, True, tolerance=0)


def variants() -> list[AnyMethod]:
    """Every method with its defaults, and with each value of each option that is a choice."""
    made = []
    for name, method in METHODS.items():
        hints = get_type_hints(method)
        choices = [
            (f.name, value)
            for f in fields(method)
            for value in get_args(hints[f.name])
            if get_origin(hints[f.name]) is Literal
        ]
        options = GENTLE.get(name, {})
        made.append(method(**options))
        made += [method(**options, **{key: value}) for key, value in choices if value != getattr(method(), key)]
    return [one for one in made if getattr(one, "shared", "body") == "body"]  # the toys have no convolutions


@pytest.mark.parametrize("method", variants(), ids=repr)
def test_loss_can_be_mapped_over_clients(method):
    """As a stacked engine does it: parameters, batches, messages and what is kept, all of them per client.

    In double precision: mapped and single use different kernels, with sums in another order, and this order depends on
    the processor. A contrast divides cosines by a temperature as small as 0.02, which multiplies their rounding by 50
    before it enters an exponential. In single precision no fixed tolerance is both safe and sharp; in double precision
    it stays far below the 1e-9 that is asked (1e-13 at most has been seen).
    """
    runner, toy = played(config(method), federation()), net(dropout=0.3)
    clients = (0, 1)
    downs = [method.broadcast(runner.server, client) for client in clients]
    kept = [runner.engine.state()[client] for client in clients]
    received = [method.receive(*both) for both in zip(kept, downs, strict=True)]
    fresh = [toy.init(generator("map", client)) for client in clients]  # clients differ
    starts = [{**mine, **drawn} for mine, drawn in zip(received, fresh, strict=True)]
    xs = [torch.randn(5, 4, generator=generator("x", client)) for client in clients]
    batches = [Batch(x, torch.tensor([0, 1, 2, 0, c]), torch.tensor([1.0, 1, 1, 1, c])) for c, x in enumerate(xs)]
    keys = torch.tensor([derive("key", client) for client in clients])

    def gradient(params, batch, prepared, kept, key):
        def total(params):
            with DerivedDropout(key):
                loss = method.loss(toy, params, batch, prepared, kept)
            return loss.total, loss.observed

        return torch.func.grad(total, has_aux=True)(params)

    toy.train(True)
    starts, batches, downs, kept = double([starts, batches, downs, kept])
    prepared = [method.prepare(down) for down in downs]  # a plain hook, which no engine maps
    single = [gradient(*one) for one in zip(starts, batches, prepared, kept, keys, strict=True)]
    stacked = torch.vmap(gradient)(stack(starts), stack(batches), stack(prepared), stack(kept), keys)
    assert {leaf.dtype for leaf in tree_leaves(stacked)} == {torch.float64}
    torch.testing.assert_close(stacked, stack(single), rtol=1e-9, atol=1e-9)
    assert any(value.abs().sum() > 0 for value in stacked[0].values())


def double(trees: Any) -> Any:
    return tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, trees)


def stack(trees: list[Any]) -> Any:
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)


class SwappedClients(Loop):
    """Planted bug: two clients' messages change places."""

    def train(self, round, downs, *asked):
        reports = super().train(round, downs, *asked)
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


class BlindEvaluation(Loop):
    """Planted bug: the last way to predict is never right."""

    def evaluate(self, round, downs, on="test"):
        scores = super().evaluate(round, downs, on)
        return [
            score._replace(
                correct={way: 0 if way == list(score.correct)[-1] else hits for way, hits in score.correct.items()}
            )
            for score in scores
        ]


@pytest.mark.parametrize("bug", [SwappedClients, DroppedMask, BlindEvaluation])
@pytest.mark.parametrize("method", methods_by_speed())
def test_planted_bugs_are_found(method, bug):
    with pytest.raises(UserError, match="differs from the loop"):
        agree(method, bug, False)
