"""How long clients train: a number of steps, or parts of epochs, in every engine."""

from __future__ import annotations

import pytest
import torch

import protofed
from protofed.core import Phase, Site
from protofed.engines.engine import RoundPlan
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.experiment.roster import draw_roster
from protofed.testing.method_check import TOLERANCE, replayed_engine, require_same_run, resumed_runner, unequal_members
from protofed.training import TrainSection, batch_schedule
from toys import config, federation, net, played_on, pool_of


def schedule(epochs: float, count: int = 10, **options: object) -> list[list[int]]:
    """Per epoch the sizes of its batches."""
    (found,) = batch_schedule(Site(net(), 0, 0, 0, 3), count, [Phase(epochs)], TrainSection(batch=4, **options))
    return [[len(batch) for batch in batches] for batches in found]


def test_part_of_an_epoch_is_rounded_up_to_batches():
    assert schedule(0) == []
    assert schedule(0.1) == [[4]]
    assert schedule(1 / 3) == [[4]]
    assert schedule(0.5) == [[4, 4]]
    assert schedule(0.9) == schedule(1) == [[4, 4, 2]]
    assert schedule(1.34) == [[4, 4, 2, 4, 4]]  # 1.02 batches after the first epoch
    assert schedule(2.5) == [[4, 4, 2], [4, 4, 2, 4, 4]]
    assert schedule(1.9) == schedule(2) == [[4, 4, 2], [4, 4, 2]]
    assert schedule(0.5, drop_last=True) == [[4]]
    assert schedule(0.5, 0) == schedule(1, 0)[:0] == []


def test_part_of_an_epoch_begins_like_a_complete_one():
    def order(epochs: float) -> list[int]:
        (found,) = batch_schedule(Site(net(), 0, 0, 0, 3), 10, [Phase(epochs)], TrainSection(batch=4))
        return torch.cat([batch for batches in found for batch in batches]).tolist()

    assert order(1.5) == order(2)[: 10 + 8]
    assert order(0.4) == order(1)[:8]


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 12, 1000])
@pytest.mark.parametrize("count", [1, 3, 4, 10, 11, 4 * 37])
@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_are_counted_exactly(steps, count, drop_last):
    training = TrainSection(batch=4, steps=steps, drop_last=drop_last)
    epochs = training.local_epochs(count, False)
    (found,) = batch_schedule(Site(net(), 0, 0, 0, 3), count, [Phase(epochs)], training)
    assert sum(map(len, found)) == steps


def test_a_client_without_examples_takes_no_step():
    assert TrainSection(steps=5).local_epochs(0, False) == 0
    assert TrainSection(steps=5, batch=4).local_epochs(1, True) == 0  # batch norm skips a batch of one example


def test_every_client_takes_the_steps_and_uploads_them():
    experiment = config("fedavg", rounds=1, train={"steps": 5})
    members = federation()
    reports = Loop(members, experiment.method, experiment.train, 0).train(0, _messages(experiment, members))
    assert [report.upload.steps for report in reports] == [5, 5, 5, 0, 5, 5]  # the fourth client has no examples
    assert {report.upload.work for report in reports} == {1.0}


def _messages(experiment, members):
    server = experiment.method.start(members.server(0, 0))
    return {client: experiment.method.broadcast(server, client) for client in range(len(members))}


WORK = [{"steps": 5}, {"epochs": 0.5}, {"epochs": 1.7}]


@pytest.mark.parametrize(
    "train", [WORK[0], *(pytest.param(other, marks=pytest.mark.slow) for other in WORK[1:])], ids=str
)
@pytest.mark.parametrize(
    "method", ["fedproto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedrep", "fedrod"))]
)
def test_every_engine_does_the_same_work(method, train):
    experiment = config(method, train=train, run={"sample": 0.9}, system={"slow": 0.4})
    members = unequal_members(experiment.method)
    loop, stacked, replayed, pooled = (
        played_on(engine, experiment, members) for engine in (Loop, Stacked, replayed_engine, pool_of(Stacked))
    )
    require_same_run(stacked, loop, "stacked", "the loop", TOLERANCE)
    require_same_run(replayed, stacked, "replayed", "stacked")
    require_same_run(pooled, stacked, "two workers", "stacked")


@pytest.mark.parametrize("train", WORK, ids=str)
def test_a_resumed_run_does_the_same_work(train):
    experiment = config("fedproto", rounds=3, train=train)
    members = federation()
    resumed = resumed_runner(experiment, members)
    reference = played_on(Loop, experiment, members)
    require_same_run(resumed, reference, "resumed", "an uninterrupted run")


def test_slow_clients_do_a_part_of_the_steps_or_epochs():
    members = federation()
    amounts = [
        draw_roster(config(train={"steps": 7}, system={"slow": 1.0}), members, number).slow for number in range(30)
    ]
    assert {amount for slow in amounts for amount in slow.values()} == set(range(8))
    amounts = [
        draw_roster(config(train={"epochs": 1.5}, system={"slow": 1.0}), members, number).slow for number in range(30)
    ]
    assert {amount for slow in amounts for amount in slow.values()} == {0, 1, 1.5}


def test_a_slow_clients_share_of_the_work():
    experiment = config("fedavg", rounds=1, train={"steps": 8})
    members = federation()
    loop = Loop(members, experiment.method, experiment.train, 0)
    reports = loop.train(0, _messages(experiment, members), RoundPlan(work={0: 2, 1: 0}))
    assert [(report.upload.steps, report.upload.work) for report in reports[:3]] == [(2, 0.25), (0, 0.0), (8, 1.0)]


def test_steps_and_epochs_together_are_an_error():
    with pytest.raises(UserError, match=r"train.epochs: got 2, but train.steps = 5"):
        protofed.run({"train": {"epochs": 2, "steps": 5}})
    with pytest.raises(UserError, match="epochs"):
        protofed.run({"train": {"epochs": -0.5}})


def test_old_numbers_of_epochs_are_unchanged():
    """A whole number is an int in config.toml and in digests, as before."""
    experiment = config(train={"epochs": 3})
    assert repr(experiment.train.epochs) == "3"
    assert repr(config(train={"epochs": 0.5}).train.epochs) == "0.5"


@pytest.mark.parametrize("method", ["fedproto", "fpl"])
@pytest.mark.parametrize("train", WORK, ids=str)
def test_prototypes_that_are_gathered_in_parts_of_epochs_count_every_example_once(method, train):
    experiment = config(method, rounds=2, train=train)
    members = federation()
    runner = played_on(Loop, experiment, members)
    assert [row["rejected"] for row in runner.rounds] == [{}, {}]
    reports = runner.engine.train(2, _messages(experiment, members))
    held = [examples.class_counts(3).float() for examples in members.train]
    for report, counts in zip(reports, held, strict=True):
        support = report.upload.message.prototypes.support[:, 0]
        assert torch.equal(support, counts) if train.get("epochs") != 0.5 else (support <= counts).all()
