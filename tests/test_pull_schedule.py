"""FedProto's λ over rounds: values by hand, and a constant λ keeps nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import protofed
from protofed.core import Batch
from protofed.experiment.bounds.monitor import BoundsMonitor
from protofed.methods.fedproto import FedProto
from protofed.methods.parts.pull_schedule import corollary_limit, first_pull
from protofed.training import take_part
from toys import config, everything, federation, played, runner_of

FULL = [[0, 1, 2] * 4, [0, 1] * 3, [0, 1, 2, 2]]


def pulls(method: FedProto, rounds: int) -> list[float]:
    """λ of client 0 in each round, as its monitor sees it."""
    runner = runner_of(config(method, rounds=rounds), federation(FULL))
    monitor = BoundsMonitor(runner, 1)
    runner.watchers.append(monitor)
    runner.go()
    return [row["pull"] for row in monitor.rows if row["client"] == 0]


def test_a_constant_pull_keeps_nothing():
    runner = played(config("fedproto"), federation())
    assert all(kept.pull == {} for kept in runner.engine.state().values())
    assert pulls(FedProto(pull=0.3), 2) == [0.3, 0.3]


def test_a_linear_pull_rises_by_a_tenth_per_round():
    assert pulls(FedProto(pull=2.0, pull_schedule="linear"), 12) == pytest.approx(
        [0.2 * number for number in range(11)] + [2.0]
    )


def test_a_client_that_is_not_sampled_does_not_rise():
    runner = played(config(FedProto(pull_schedule="linear"), rounds=4, run={"sample": 1}), federation(FULL))
    taken = [sum(client in row["clients"] for row in runner.rounds) for client in range(3)]
    assert sum(taken) == 4
    state = runner.engine.state()
    assert [float(state[client].pull["pull"]) for client in range(3)] == pytest.approx([0.1 * n for n in taken])


def test_a_round_without_steps_leaves_the_pull_of_the_corollary_as_it_is():
    method = FedProto(pull=5.0, distance="l2", pull_schedule="corollary")
    runner = played(config(method, rounds=2), federation(FULL))
    client, kept, down = runner.members.client(0, 2, 0), runner.engine.state()[0], runner.server
    training = replace(runner.config.train, epochs=0)
    trained, _ = take_part(method, client, kept, down, training)
    assert trained.steps == 0
    assert method.keep(trained).pull["pull"] == kept.pull["pull"] < 5


def test_the_corollary_by_hand():
    method = FedProto(pull=5.0, distance="l2", pull_schedule="corollary")
    runner = played(config(method, rounds=2), federation(FULL))
    client, kept, down = runner.members.client(0, 2, 0), runner.engine.state()[0], runner.server
    trained, _ = take_part(method, client, kept, down, runner.config.train)
    batch = Batch.of(*client.data.take(torch.arange(12)))

    def square(params):
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        method.loss(client.net, leaves, batch, down, kept).total.backward()
        return sum(float(leaf.grad.double().square().sum()) for leaf in leaves.values())

    change = sum(
        float((trained.params[name] - trained.start[name]).double().square().sum())
        for name in trained.params
        if name.startswith("body.")
    )
    with torch.no_grad():
        z = [client.net.embed(params, batch.x).double() for params in (trained.start, trained.params)]
    l2 = float((z[1] - z[0]).norm(dim=-1).max()) / change**0.5
    last = square(trained.params)
    limit = last / (l2 * trained.steps * max(last, square(trained.start)) ** 0.5)
    assert corollary_limit(trained, method.loss) == pytest.approx(limit, rel=1e-4)
    assert limit < 5
    assert float(method.keep(trained).pull["pull"]) == pytest.approx(limit / 2, rel=1e-4)
    assert float(replace(method, pull=limit / 4).keep(trained).pull["pull"]) == pytest.approx(limit / 4, rel=1e-4)


def test_a_client_without_data_has_no_pull():
    runner = played(config(FedProto(pull_schedule="corollary"), rounds=2), federation())
    assert float(runner.engine.state()[3].pull["pull"]) == 0


def test_with_the_corollary_the_pull_is_small_where_gradients_are_small():
    values = pulls(FedProto(pull=100.0, distance="l2", pull_schedule="corollary"), 4)
    assert values[0] == 0
    assert all(0 < value < 100 for value in values[1:])


def test_the_state_survives_a_checkpoint(tmp_path):
    import protofed

    table = {"run": {"rounds": 3}, "data": {"clients": 3}, "method": {"name": "fedproto", "pull_schedule": "linear"}}
    protofed.run(table, tmp_path / "run")
    loaded = protofed.Result.load(tmp_path / "run")
    assert [float(kept.pull["pull"]) for kept in loaded.state.kept.values()] == pytest.approx([0.3] * 3)


def test_the_first_pull_is_0_in_round_0_and_complete_for_a_client_that_joins_later():
    assert first_pull("constant", 2.0, 0) == first_pull("constant", 2.0, 3) == {}
    for schedule in ("linear", "corollary"):
        assert float(first_pull(schedule, 2.0, 0)["pull"]) == 0
        assert float(first_pull(schedule, 2.0, 3)["pull"]) == 2


@pytest.mark.parametrize("schedule", ["linear", "corollary"])
def test_a_client_that_joins_a_finished_run_has_the_complete_pull(schedule):
    x, y = np.random.RandomState(0).normal(size=(40, 4)), np.arange(40) % 2
    joined = {}
    for name in ("constant", schedule):
        method = {"name": "fedproto", "pull": 2.0, "pull_schedule": name}
        result = protofed.run(
            {"run": {"rounds": 2}, "method": method}, federation=protofed.Federation([(x, y), (x, y)])
        )
        joined[name] = protofed.join(result, (x, y), epochs=2)
        assert joined[name].downloaded == 2 * 50
    names = joined["constant"].model.params
    # the prototypes differ, because a run with a schedule has another λ; the newcomer's pull must not be 0
    alone = protofed.join(
        protofed.run(
            {"run": {"rounds": 2}, "method": {"name": "fedproto", "pull": 0.0}},
            federation=protofed.Federation([(x, y), (x, y)]),
        ),
        (x, y),
        epochs=2,
    )
    assert any(not torch.equal(joined[schedule].model.params[name], alone.model.params[name]) for name in names)


def test_a_schedule_changes_the_run():
    ended = [
        everything(played(config(FedProto(pull_schedule=name), rounds=3), federation(FULL)))
        for name in ("constant", "linear")
    ]
    assert any(not torch.equal(value, ended[1][name]) for name, value in ended[0].items() if "params" in name)
