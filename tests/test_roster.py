"""Who takes part in a round, and for how long: sampling, slow clients, late ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from protofed.core import Phase
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked
from protofed.experiment.roster import draw_clients, draw_roster
from protofed.methods.fedproto import FedProto
from toys import LABELS, config, everything, federation, net, played, played_on, pool_of


def test_a_round_is_a_function_of_the_seed_and_its_number():
    members = federation()
    first, again = (config(run={"sample": 3, "seed": 5}, system={"slow": 0.5}) for _ in range(2))
    assert [draw_roster(first, members, n) for n in range(9)] == [draw_roster(again, members, n) for n in range(9)]
    assert len({tuple(draw_clients(first, members, n)) for n in range(9)}) > 1


def test_by_size_large_clients_come_more_often_and_empty_ones_never():
    members = federation()  # 12, 6, 1, 0, 5 and 4 examples
    experiment = config(run={"sample": 1, "sampling": "by_size"})
    seen = Counter(client for n in range(2000) for client in draw_clients(experiment, members, n))
    for client, labels in enumerate(LABELS):
        assert seen[client] / 2000 == pytest.approx(len(labels) / 28, abs=0.03)
    everybody = config(run={"sample": 1.0, "sampling": "by_size"})
    assert draw_clients(everybody, members, 0) == [0, 1, 2, 4, 5]
    assert draw_clients(everybody, federation([[], []]), 0) == [0, 1]  # nobody has anything: all alike


@pytest.mark.parametrize(("slow", "count"), [(0.0, 0), (0.5, 3), (0.8, 5), (1.0, 6)])
def test_a_share_of_a_rounds_clients_is_slow(slow, count):
    members = federation()
    drawn = draw_roster(config(train={"epochs": 4}, system={"slow": slow}), members, 0)
    assert drawn.clients == drawn.sampled == list(range(6))
    assert len(drawn.slow) == count
    late = draw_roster(config(train={"epochs": 4}, system={"slow": slow, "late": "drop"}), members, 0)
    assert set(late.sampled) - set(late.clients) == set(drawn.slow)
    assert not late.slow


def test_slow_clients_do_any_number_of_epochs():
    experiment = config(train={"epochs": 3}, system={"slow": 1.0})
    done = Counter(epochs for n in range(300) for epochs in draw_roster(experiment, federation(), n).slow.values())
    assert set(done) == {0, 1, 2, 3}
    assert all(count / 1800 == pytest.approx(0.25, abs=0.04) for count in done.values())


@dataclass(frozen=True)
class Two(FedProto):
    """Phases of different lengths: another order of clients in each."""

    def phases(self, epochs):
        return (Phase(3 - epochs, ("head.",)), Phase(epochs, ("body.",)))


@dataclass(frozen=True)
class Some(FedProto):
    """Phases that depend on the epochs."""

    def phases(self, epochs):
        return (Phase(epochs, ("head.",)), Phase(1, ("body.",))) if epochs > 1 else (Phase(1, ("body.",)),)


OTHERS = ("fedavg", "fednh", "protomargin", "fedrep")


@pytest.mark.parametrize(
    "method", ["fedproto", Two(), *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS), Some()]
)
@pytest.mark.parametrize("engine", [Stacked, pool_of(Loop, 2), pool_of(Stacked, 2)])
def test_partial_work_is_the_same_on_every_engine(method, engine):
    experiment = config(method, rounds=4, run={"sample": 0.7}, train={"epochs": 3}, system={"slow": 0.8})
    members = federation(nets=[net(dropout=0.3)] * 6)
    expected, got = (everything(played_on(kind, experiment, members)) for kind in (Loop, engine))
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-4)


def test_what_was_done_is_told():
    runner = played(config("fedavg", rounds=3, train={"epochs": 4}, system={"slow": 0.5}), federation())
    for number, row in enumerate(runner.rounds):
        drawn = draw_roster(runner.config, runner.members, number)
        assert row["slow"] == {str(client): epochs for client, epochs in drawn.slow.items()}
        assert row["late"] == []
    dropped = played(config("fedavg", system={"slow": 0.5, "late": "drop"}), federation()).rounds[0]
    assert len(dropped["late"]) == 3
    assert sorted(dropped["late"] + dropped["clients"]) == list(range(6))
    full = played(config("fedavg"), federation()).rounds[0]
    assert "slow" not in full
    assert dropped["down_params"] == full["down_params"]  # they were sent it all the same
    assert dropped["up_params"] == full["up_params"] / 2


def test_an_upload_says_how_much_was_done():
    seen = []
    members = federation([[0, 1, 2] * 4] * 4)
    experiment = config("fedavg", rounds=1, train={"epochs": 4}, system={"slow": 1.0})

    class Watching(Loop):
        def train(self, round, downs, *asked):
            reports = super().train(round, downs, *asked)
            seen.extend(report.upload for report in reports)
            return reports

    played_on(Watching, experiment, members)
    slow = draw_roster(experiment, members, 0).slow
    assert {upload.client: upload.work for upload in seen} == {client: epochs / 4 for client, epochs in slow.items()}
    assert {upload.client: upload.steps for upload in seen} == {client: 3 * epochs for client, epochs in slow.items()}


def test_when_everybody_is_late_nothing_changes():
    runner = played(config("fedavg", rounds=2, system={"slow": 1.0, "late": "drop"}), federation())
    start = runner.method.start(runner.members.server(0, 0))
    assert all(torch.equal(start.params[name], value) for name, value in runner.server.params.items())
    assert runner.rounds[-1]["loss"] == {}


def test_no_work_leaves_the_model_as_it_came():
    members = federation([[0, 1, 2] * 4] * 3)
    experiment = config("fedavg", rounds=1, train={"epochs": 0})
    runner = played(experiment, members)
    start = runner.method.start(members.server(0, 0))
    assert all(torch.equal(start.params[name], value) for name, value in runner.server.params.items())
