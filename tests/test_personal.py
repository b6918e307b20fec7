"""FedNH's protocol: personal models on the balanced test set, weighted two ways, over all clients or the round's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from protofed import Config, Federation, run
from protofed.engines.scoring import class_hits
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.experiment.personal import accuracies_by_client, mean_and_std, personal_accuracies
from protofed.experiment.roster import draw_clients
from protofed.experiment.watchers import Watcher
from protofed.methods.fedavg import FedAvg
from protofed.training import take_part
from toys import LABELS, config, examples, federation, figures, played, played_on, pool_of, runner_of

PERSONAL = {"eval": {"personal": True}}


def test_both_accuracies_by_hand():
    # 10 test images a class; the client has 3 of class 0, 1 of class 1, none of class 2.
    found = personal_accuracies([8, 2, 4], [10, 10, 10], train_counts=[3, 1, 0])
    assert found["v"] == (8 + 2) / 20
    assert found["l"] == pytest.approx((0.75 * 8 + 0.25 * 2) / (0.75 * 10 + 0.25 * 10))
    assert found["all"] == pytest.approx(14 / 30)


def test_a_test_set_with_unequal_classes_by_hand():
    found = personal_accuracies([4, 1], [4, 2], train_counts=[1, 1])
    assert found["v"] == 5 / 6
    assert found["l"] == 5 / 6
    assert personal_accuracies([4, 1], [4, 2], train_counts=[1, 2])["l"] == (4 + 2) / (4 + 4)


def test_v_is_plain_accuracy_where_a_client_has_every_class():
    found = personal_accuracies([3, 0, 2], [5, 5, 5], train_counts=[9, 1, 4])
    assert found["v"] == found["all"] == pytest.approx(5 / 15)


def test_a_client_without_examples_does_not_count():
    assert personal_accuracies([1, 1], [2, 2], train_counts=[0, 0]) == {"v": None, "l": None, "all": None}
    rows = [personal_accuracies([1, 1], [2, 2], held) for held in ([0, 0], [1, 0])]
    assert mean_and_std(rows)["v"] == 0.5
    assert mean_and_std([]) == dict.fromkeys(["v", "v_std", "l", "l_std", "all", "all_std"])


def test_fairness_is_the_spread_over_clients():
    rows = [{"v": value, "l": value, "all": value} for value in (0.2, 0.6)]
    assert mean_and_std(rows)["l"] == pytest.approx(0.4)
    assert mean_and_std(rows)["l_std"] == pytest.approx(0.2)


def test_hits_by_class():
    part = examples([0, 1, 2, 2])
    hits = class_hits(lambda x: {"head": torch.tensor([[0.0, 1.0, 2.0]] * len(x))}, [part, part], 3)
    assert hits == {"head": [0, 0, 4]}
    found = accuracies_by_client({0: hits}, [examples([2, 2, 1])], [part, part], 3)
    assert found["head"][0] == {"v": 4 / 6, "l": 2 * 4 / (2 * 4 + 1 * 2), "all": 4 / 8}


def latest_by_hand(method: str, rounds: int) -> dict[int, dict[str, list[int]]]:
    """Play the rounds one by one and remember every client's model after its latest training."""
    members = federation()
    runner = runner_of(config(method, rounds=rounds, run={"sample": 1}), members)
    hits = {}
    for number in range(rounds):
        for client in draw_clients(runner.config, runner.members, number):
            site, down = members.client(0, number, client), runner.method.broadcast(runner.server, client)
            kept = runner.engine.client(client, number)[1]
            trained, _ = take_part(runner.method, site, kept, down, runner.config.train)
            mine = runner.method.keep(trained)

            def answer(x, trained=trained, down=down, mine=mine):
                return runner.method.predict(trained.net, trained.params, x, down, mine)

            hits[client] = class_hits(answer, members.balanced, 3)
        runner.one_round(number)
    return hits


@pytest.mark.parametrize("method", ["fedavg", "fednh", "fedproto", "local"])
def test_it_is_the_model_of_a_clients_latest_training(method):
    rounds = 4
    by_hand = latest_by_hand(method, rounds)
    runner = played(config(method, rounds=rounds, run={"sample": 1}, engine={"name": "loop"}, **PERSONAL), federation())
    recorded = {int(client): hits for row in runner.rounds for client, hits in row["personal"].items()}
    assert recorded == by_hand
    assert sum(len(row["personal"]) for row in runner.rounds) == len(by_hand)  # each is scored once
    assert len(by_hand) < len(LABELS), "somebody is never sampled, in this test"
    never = next(client for client in range(len(LABELS)) if client not in by_hand and LABELS[client])
    fresh = runner.engine.examine(rounds - 1, {never: runner.method.broadcast(runner.server, never)})
    expected = accuracies_by_client(fresh, runner.members.train, runner.members.balanced, 3)["head"][never]
    assert runner.personal()["head"][never] == expected


def test_over_the_clients_of_the_last_round():
    runner = played(
        config("fedavg", rounds=4, run={"sample": 2}, eval={"personal": True, "clients": "round"}), federation()
    )
    assert [len(row["personal"]) for row in runner.rounds] == [0, 0, 0, 2]
    assert set(runner.personal()["head"]) == set(draw_clients(runner.config, runner.members, 3))
    assert figures(runner)["personal"]["clients"] == "round"


def test_it_costs_nothing_unless_asked_for():
    runner = played(config("fedavg"), federation())
    assert "personal" not in runner.rounds[-1]
    assert figures(runner)["personal"] == dict.fromkeys(["v", "v_std", "l", "l_std", "all", "all_std", "clients"])


@dataclass(frozen=True)
class Tuned(FedAvg):
    def tune(self, epochs):
        return self.phases(epochs)


def test_tuned_models_are_scored_at_the_end():
    runner = played(config(Tuned(), rounds=2, **PERSONAL), federation())
    assert not any(row["personal"] for row in runner.rounds)
    downs = dict.fromkeys(range(len(LABELS)), runner.server)
    expected = accuracies_by_client(runner.engine.examine(1, downs), runner.members.train, runner.members.balanced, 3)
    assert runner.personal() == expected


def test_workers_change_nothing():
    experiment = config("fednh", rounds=3, run={"sample": 0.5}, **PERSONAL)
    alone = figures(played_on(Stacked, experiment, federation()))
    shared = figures(played_on(pool_of(Stacked, 2), experiment, federation()))
    assert alone["personal"] == shared["personal"]
    assert alone["personal"]["v"] is not None


def test_a_run_that_goes_on_is_as_if_it_had_never_stopped(tmp_path):
    table = {
        "run": {"rounds": 4, "sample": 0.2},
        "data": {"clients": 8},
        "method": {"name": "fedavg"},
        **PERSONAL,
    }
    whole = run(table, tmp_path / "whole")
    short = {**table, "run": {"rounds": 2, "sample": 0.2}}
    run(short, tmp_path / "short")
    longer = run(Config.of(table), tmp_path / "short", resume=True)
    assert longer.summary["personal"] == whole.summary["personal"]
    assert longer.clients == whole.clients
    dropped = [
        [{key: row[key] for key in row if key != "seconds"} for row in result.rounds] for result in (whole, longer)
    ]
    assert dropped[0] == dropped[1]
    assert {"personal_v", "personal_l", "personal_all"} <= set(whole.clients[0])


def test_prototypes_are_scored_beside_the_head():
    found = figures(played(config("fedproto", **PERSONAL), federation()))["personal"]
    assert found["v"] is not None
    assert found["prototype"]["v"] is not None


def test_it_is_part_of_the_experiment():
    first = Config.of({})
    assert replace(first, eval=replace(first.eval, personal=True)).digest() != first.digest()


def test_a_client_is_asked_about_inputs_that_its_net_can_take():
    draw = np.random.RandomState(0)
    data = [(draw.normal(size=(30, wide)), np.arange(30) % 3) for wide in (4, 6)]
    result = run({"run": {"rounds": 2}, **PERSONAL}, federation=Federation(data=data))
    assert result.summary["personal"]["v"] is not None
    assert all(row["personal_all"] is not None for row in result.clients)


def test_where_there_are_no_prototypes_yet_nobody_is_right():
    nothing = class_hits(lambda x: {"prototype": torch.full((len(x), 3), -torch.inf)}, [examples([0, 1, 2])], 3)
    assert nothing == {"prototype": [0, 0, 0]}


@pytest.mark.parametrize("sample", [0.2, 1.0])
def test_fewer_rounds_are_refused_if_a_model_was_not_scored_in_what_becomes_its_last_round(sample, tmp_path):
    table = {"data": {"clients": 8}, "method": {"name": "fedavg"}, **PERSONAL}

    def rounds(number: int) -> dict:
        return {**table, "run": {"rounds": number, "sample": sample}}

    class Stop(Watcher):
        def round(self, row):
            if row["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(rounds(6), tmp_path / "short", watchers=[Stop()])
    with pytest.raises(UserError, match=r"run.rounds: got 2, but eval.personal .* Use 6 or more"):
        run(rounds(2), tmp_path / "short", resume=True)
    whole, longer = run(rounds(7), tmp_path / "whole"), run(rounds(7), tmp_path / "short", resume=True)
    assert longer.clients == whole.clients
