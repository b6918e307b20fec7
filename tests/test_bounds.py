"""The papers' bounds on runs: estimated constants by hand, no bit of the run changes, and what is said about it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import protofed
from protofed.core import Batch, Loss, Method, Nothing
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.experiment.bounds.monitor import BoundsMonitor, bounds_of, read_bounds
from protofed.experiment.bounds.of_fedproto import STEEPEST
from protofed.experiment.bounds.paper import holds
from protofed.experiment.bounds.premises import common_premises
from protofed.experiment.bounds.probe import Moment, probe_client, probe_round
from protofed.experiment.watchers import Watcher
from protofed.measures.on_demand import measure
from protofed.methods.fedavg import FedAvg
from protofed.methods.fednh import FedNH
from protofed.methods.fedproto import FedProto
from protofed.methods.mpfedcl import MpFedCL
from protofed.methods.parts.distances import distance
from protofed.theory import mpfedcl_bounds
from protofed.training import TrainSection
from test_cli import protofed as command  # noqa: F401
from toys import config, everything, federation, net, played, pool_of, runner_of

FULL = [[0, 1, 2] * 4, [0, 1] * 3, [0, 1, 2, 2]]


@dataclass(frozen=True)
class Quadratic(Method[Nothing, Nothing, Nothing, Nothing]):
    """2 ||b - x||² for the bias b of the head, averaged over the examples: L1 = 4."""

    def receive(self, kept, down):
        return net().init(torch.Generator().manual_seed(0))

    def loss(self, net, params, batch, down, kept):
        return Loss(gap=2 * (params["head.bias"] - batch.x[:, :3]).square().sum(-1).mean())


def test_constants_of_a_quadratic_client_by_hand():
    members = federation(FULL)
    client = members.client(0, 0, 0)
    training = TrainSection(batch=4, lr=0.1, momentum=0.0)
    moment = Moment((), {0: ()})
    probe = probe_client(Quadratic(), client, moment, moment, training)
    assert probe is not None
    assert (probe.client, probe.steps, probe.lr, probe.num_examples) == (0, 3, 0.1, 12)
    assert probe.smoothness == pytest.approx(4, rel=1e-5)  # single precision
    x = client.data.take(torch.arange(12))[0][:, :3].double()
    b = probe.start["head.bias"].double()
    assert probe.squares[0] == pytest.approx(float((4 * (b - x.mean(0))).square().sum()), rel=1e-5)
    assert probe.objective.value(probe.start) == pytest.approx(float(2 * (b - x).square().sum(-1).mean()), rel=1e-5)
    assert probe.lipschitz == 0  # the body does not move
    first = probe.objective.gradient(probe.start)
    assert torch.equal(first, probe.first_gradient)
    by_batch = []
    for positions in torch.randperm(12, generator=client.generator("monitor")).split(4):
        by_batch.append((4 * (b - x[positions].mean(0))).norm().item())
    # the first batches of the purpose "monitor" are these, and the start has the largest gradients
    assert probe.mean_norm == pytest.approx(sum(by_batch) / 3, rel=1e-5)
    assert probe.mean_square == pytest.approx(sum(norm**2 for norm in by_batch) / 3, rel=1e-5)
    spread = sum((4 * (x[p].mean(0) - x.mean(0))).square().sum().item() for p in
                 torch.randperm(12, generator=client.generator("monitor")).split(4)) / 3  # fmt: skip
    assert probe.variance == pytest.approx(spread, rel=1e-4)  # it is the same everywhere


def test_a_client_without_a_step_has_no_probe():
    client = federation().client(0, 0, 3)  # it has no examples
    assert probe_client(Quadratic(), client, Moment((), {3: ()}), Moment((), {3: ()}), TrainSection()) is None


def test_the_repeated_round_is_the_one_of_the_run():
    """On the loop engine to the last bit; the losses are those of the method's own loss."""
    runner = runner_of(config(FedProto(distance="l2", prototypes="fresh"), engine={"name": "loop"}), federation(FULL))
    for number in range(2):
        before = Moment(runner.server, dict(runner.engine.state()))
        runner.rounds.append(runner.one_round(number))
    after = Moment(runner.server, dict(runner.engine.state()))
    client, method = runner.members.client(0, 1, 0), runner.method
    probe = probe_client(method, client, before, after, runner.config.train)
    assert probe is not None
    assert all(torch.equal(probe.end[name], value) for name, value in after.kept[0].params.items())
    assert probe.next is after.kept[0].params
    row = next(row for row in bounds_of(method).rows(method, [probe]) if row["client"] == 0)
    everything_of_it = Batch.of(*client.data.take(torch.arange(len(client.data))))
    losses = [
        float(method.loss(client.net, kept.params, everything_of_it, bank, kept).total)
        for kept, bank in ((before.kept[0], before.server), (after.kept[0], after.server))
    ]
    assert row["change"] == losses[1] - losses[0]
    assert row["training_change"] + row["server_change"] == pytest.approx(row["change"], abs=1e-6)


def test_the_first_prototypes_are_no_case_of_lemma_2():
    experiment = config("fedproto", rounds=2, method={"distance": "l2"})
    runner = runner_of(experiment, federation(FULL))
    monitor = BoundsMonitor(runner, 1)
    runner.watchers.append(monitor)
    runner.go()
    first, second = ([row for row in monitor.rows if row["round"] == number] for number in (1, 2))
    assert {row["bound"] for row in first} == {None}
    assert all(row["holds"] is None and row["training_holds"] for row in first)
    assert all(row["printed"] <= row["bound"] and row["holds"] for row in second)  # the norm is smoothed below 0.1


@pytest.mark.parametrize("kind", [Loop, Stacked, pool_of(Loop)], ids=["loop", "stacked", "pool"])
@pytest.mark.parametrize("method", ["fedproto", "fednh", "mpfedcl"])
def test_the_monitor_changes_no_bit(method, kind):
    members, experiment = federation(), config(method, rounds=3, run={"sample": 0.7}, system={"slow": 0.3})
    plain, watched = (runner_of(experiment, members) for _ in range(2))
    monitor = BoundsMonitor(watched, 1)
    watched.watchers.append(monitor)
    for runner in (plain, watched):
        runner.engine = kind(members, runner.method, experiment.train, 0)
        try:
            runner.go()
            runner.ended = everything(runner)
        finally:
            runner.engine.close()
    assert plain.ended.keys() == watched.ended.keys()
    assert all(torch.equal(value, watched.ended[name]) for name, value in plain.ended.items())
    assert [{**row, "seconds": 0} for row in plain.rounds] == [{**row, "seconds": 0} for row in watched.rounds]
    assert monitor.rows


def test_the_round_of_an_attacker_is_repeated_with_the_data_that_it_trains_on(monkeypatch):
    probes = []

    def probe(*arguments):
        probes.extend(found := probe_round(*arguments))
        return found

    monkeypatch.setattr("protofed.experiment.bounds.monitor.probe_round", probe)
    experiment = config("fedproto", rounds=1, attack={"share": 0.5, "kind": "label_flip"}, engine={"name": "loop"})
    runner = runner_of(experiment, federation(FULL))
    runner.watchers.append(BoundsMonitor(runner, 1))
    runner.go()
    assert runner.safeguards.attackers
    for found in probes:
        kept = runner.engine.state()[found.client].params
        torch.testing.assert_close(found.end, kept)


def test_engines_agree_on_the_bounds():
    members, experiment = federation(FULL), config("fedproto", rounds=2, train={"momentum": 0.0})
    found = []
    for kind in (Loop, Stacked):
        runner = runner_of(experiment, members)
        runner.engine = kind(members, runner.method, experiment.train, 0)
        monitor = BoundsMonitor(runner, 2)
        runner.watchers.append(monitor)
        runner.go()
        found.append(monitor.rows)
    for ours, theirs in zip(*found, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


TABLE = {"run": {"rounds": 4, "monitor": 2}, "data": {"clients": 3}, "train": {"momentum": 0.0}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    torch.set_num_threads(1)
    where = tmp_path_factory.mktemp("runs")
    method = {"name": "fedproto", "distance": "l2", "prototypes": "fresh"}
    return {
        "monitored": protofed.run({**TABLE, "method": method}, where / "monitored"),
        "plain": protofed.run({**TABLE, "run": {"rounds": 4}, "method": method}, where / "plain"),
    }


def test_the_run_folder_has_a_line_per_client_and_monitored_round(runs):
    rows = read_bounds(runs["monitored"].folder)
    assert [(row["round"], row["client"]) for row in rows] == [(r, c) for r in (2, 4) for c in range(3)]
    files = [(run.folder / "rounds.jsonl").read_text().splitlines() for run in runs.values()]
    for ours, theirs in zip(*files, strict=True):
        assert {**json.loads(ours), "seconds": 0} == {**json.loads(theirs), "seconds": 0}
    assert read_bounds(runs["plain"].folder) == []


def test_a_run_without_a_monitor_is_repeated(runs):
    recorded = measure(runs["monitored"], ["bounds"])["bounds"]
    repeated = measure(runs["plain"], ["bounds"], every=2)["bounds"]
    assert recorded.rows == json.loads(json.dumps(repeated.rows))
    assert (
        repeated.about
        == f"{recorded.about} The run was repeated up to round 4; its losses are those recorded, to the last bit."
    )
    assert list(measure(runs["plain"], ["bounds"])["bounds"].rows) == [f"round {number}" for number in (1, 2, 3, 4)]
    assert list(recorded.rows) == ["round 2", "round 4"]


def test_a_repetition_with_other_losses_is_said(runs):
    other = replace(runs["plain"], rounds=[{**row, "loss": {"supervised": 1.0}} for row in runs["plain"].rounds])
    assert "differ from those recorded" in measure(other, ["bounds"], every=4)["bounds"].about


def test_rows_are_means_counts_and_tightest_limits(runs):
    rows = [row for row in read_bounds(runs["monitored"].folder) if row["round"] == 4]
    found = measure(runs["monitored"], ["bounds"])["bounds"].rows["round 4"]
    assert found["clients"] == 3
    assert found["change"] == pytest.approx(sum(row["change"] for row in rows) / 3)
    assert found["holds"] == f"{sum(row['holds'] for row in rows)} of 3"
    assert found["largest_pull"] == min(row["largest_pull"] for row in rows)
    single = measure(runs["monitored"], ["bounds"], client=1)["bounds"].rows["round 4"]
    assert {key: single[key] for key in ("change", "bound", "L1")} == {
        key: rows[1][key] for key in ("change", "bound", "L1")
    }


def test_the_command_says_the_verdict_and_the_broken_premises(runs, command):  # noqa: F811
    folder = str(runs["monitored"].folder)
    code, out, err = command("measure", folder, "--what", "bounds")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "FedProto's Theorem 1, Eq. (15), held in 6 of 6 rounds of clients that it applies to." in text
    assert "the run used 1." in text
    assert "Broken premise: ReLU or max-pooling" in text
    assert "momentum" not in text
    as_json = json.loads(command("measure", folder, "--what", "bounds", "--json")[1])["bounds"]
    assert as_json["rows"]["round 4"]["holds"] == "3 of 3"
    assert any("without replacement" in note for note in as_json["notes"])


def test_what_cannot_be_measured_is_said(runs, tmp_path):
    with pytest.raises(
        UserError, match=r"no paper proves a bound for fedavg\. Methods with one: fednh, fedproto, mpfedcl"
    ):
        measure(played_result("fedavg"), ["bounds"])
    with pytest.raises(UserError, match=r"--every 2: only bounds repeats rounds"):
        measure(runs["plain"], ["cost"], every=2)
    with pytest.raises(UserError, match=r"--every 9: the run has only 4 rounds\. Use 4 or fewer"):
        measure(runs["plain"], ["bounds"], every=9)

    with pytest.raises(UserError, match=r"--client 7: it trained in no monitored round\. Clients that did: 0, 1, 2\."):
        measure(runs["monitored"], ["bounds"], client=7)
    with pytest.raises(UserError, match=r"--client 1: MP-FedCL's Theorem 1, .* is about all clients together"):
        measure(played_result("mpfedcl"), ["bounds"], client=1)


class Notes(Watcher):
    def started(self, config, members, rounds, notes):
        self.notes = notes


def test_a_run_that_cannot_be_monitored_is_said(tmp_path):
    watcher = Notes()
    protofed.run({**TABLE, "method": {"name": "fedavg"}}, tmp_path / "run", watchers=[watcher])
    assert watcher.notes == ("run.monitor: no paper proves a bound for fedavg, so nothing is monitored",)
    assert not (tmp_path / "run" / "bounds.jsonl").exists()
    private = {"encoder": "frozen", "noise": 1.0}
    protofed.run({**TABLE, "privacy": private}, tmp_path / "private", watchers=[watcher])
    why = "no bound holds for training with privacy.encoder = frozen"
    assert watcher.notes == (f"run.monitor: {why}, so nothing is monitored",)
    protofed.run({**TABLE, "run": {"rounds": 1, "monitor": 1}}, watchers=[watcher])
    assert watcher.notes == ("run.monitor: without a run folder (out) there is no bounds.jsonl to write",)


@pytest.mark.filterwarnings("ignore:Round 2")
def test_a_run_that_diverges_can_be_measured(tmp_path):
    """Losses that are not finite are null in bounds.jsonl, and are no sign of another machine in a repetition."""
    result = protofed.run({**TABLE, "method": {"pull": 1e12}}, tmp_path / "run")
    recorded = measure(result, ["bounds"])["bounds"].about
    assert "the loss is not finite: the run has diverged." in recorded
    repeated = measure(protofed.Result.load(tmp_path / "run"), ["bounds"], every=2)["bounds"].about
    assert repeated == f"{recorded} The run was repeated up to round 4; its losses are those recorded, to the last bit."


def played_result(method: str) -> protofed.Result:
    return protofed.run({"run": {"rounds": 1}, "data": {"clients": 2}, "method": {"name": method}})


class Stop(Watcher):
    def round(self, row):
        if row["round"] == 3:
            raise KeyboardInterrupt


def test_a_resumed_run_has_the_same_bounds(runs, tmp_path):
    table = {**TABLE, "method": {"name": "fedproto", "distance": "l2", "prototypes": "fresh"}}
    with pytest.raises(KeyboardInterrupt):
        protofed.run(table, tmp_path / "run", watchers=[Stop()])
    lines = (tmp_path / "run" / "bounds.jsonl").read_text()
    assert [json.loads(line)["round"] for line in lines.splitlines()] == [2, 2, 2]
    protofed.run(table, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "bounds.jsonl").read_text() == (runs["monitored"].folder / "bounds.jsonl").read_text()


def test_broken_premises():
    members = federation(FULL, [net(dropout=0.5)] * 3)
    clean = config("fedproto", train={"momentum": 0.0, "batch": 12})
    assert common_premises(clean, federation(FULL)) == []
    smaller = config("fedproto", train={"momentum": 0.0, "batch": 6})  # 2, 1 and 1 steps
    assert "different numbers of examples" in common_premises(smaller, federation(FULL))[0]
    messy = config(
        "fedproto",
        train={
            "momentum": 0.5,
            "decay": 0.9,
            "weight_decay": 0.1,
            "clip": 1.0,
            "schedule_by": "step",
            "batch": 4,
            "augment": ("flip",),
        },
        run={"sample": 2},
        system={"slow": 0.5},
    )
    said = " ".join(common_premises(messy, members))
    for word in ("momentum = 0.5", 'schedule = "exponential"', "weight_decay = 0.1", "clip = 1", 'schedule_by = "step"', "augment", "run.sample = 2",
                 "system.slow = 0.5", "dropout", "without replacement"):  # fmt: skip
        assert word in said
    assert "batch norm" in " ".join(common_premises(clean, federation(FULL, [net(norm=True)] * 3)))
    assert "adam" in " ".join(common_premises(config("fedproto", train={"optimiser": "adam"}), members))
    assert bounds_of(FedAvg()) is None

    def of(method, steps=1):
        return " ".join(bounds_of(method).premises(method, steps))

    assert all(word in of(FedProto()) for word in ('"mse"', "gathered"))
    assert of(FedProto(distance="l2", prototypes="fresh")).startswith(
        'method.distance = "l2": below 0.1 the norm is smoothed'
    )
    assert all(word in of(FedProto(pooling="written", between="means")) for word in ("written", "biased"))
    assert all(
        word in of(MpFedCL(cap=3, contrast=0.5), 4) for word in ("4 local steps", "unit", "cap", "kmeans", "contrast")
    )
    assert of(MpFedCL(clustering="mean", unit=False)).startswith("Assumption 1")
    assert "learn_scale" in of(FedNH())
    assert "line 8" not in of(FedNH(rho=1.0, learn_scale=False))
    assert "count" in of(FedNH(weights="count", unit_means=True))


def test_a_smoothed_norm_is_at_most_four_thirds_as_steep():
    d = torch.linspace(0, 0.2, 2001, dtype=torch.double)
    values = distance(d.unsqueeze(-1), torch.zeros(1, dtype=torch.double), "l2")
    slopes = values.diff() / d.diff()
    assert STEEPEST * 0.9999 < float(slopes.max()) <= STEEPEST
    assert float(slopes[1001:].max()) == pytest.approx(1)


def test_a_bound_holds_up_to_rounding():
    assert holds(1.0, 1.0 - 1e-7, 1.0)
    assert not holds(1.0, 0.9, 1.0)
    assert holds(1.0, None, 1.0) is None
    assert holds(float("nan"), 1.0, 1.0) is None
    assert holds(1.0, float("inf"), 1.0) is None


@pytest.mark.parametrize("kind", ["l2", "squared", "mse", "l1", "relu_l2", "emd", "cross_entropy"])
def test_fedproto_lemma_2_for_every_distance(kind):
    """With momentum 0, fresh prototypes and all clients, the server's step keeps its bound in every round."""
    method = FedProto(distance=kind, prototypes="fresh")
    runner = runner_of(config(method, rounds=4, train={"momentum": 0.0}), federation(FULL))
    monitor = BoundsMonitor(runner, 1)
    runner.watchers.append(monitor)
    runner.go()
    rows = [row for row in monitor.rows if row["round"] > 1]
    assert len(rows) == 9
    if kind in ("emd", "cross_entropy"):
        assert all(row["bound"] is None for row in rows)
    else:
        assert all(row["server_change"] <= row["server_bound"] + 1e-6 for row in rows)


def test_mpfedcl_with_one_full_step_keeps_the_corrected_theorem():
    method = MpFedCL(clustering="mean", unit=False, temperature=5.0)
    runner = runner_of(config(method, rounds=4, train={"momentum": 0.0, "batch": 12, "lr": 0.05}), federation(FULL))
    monitor = BoundsMonitor(runner, 1)
    runner.watchers.append(monitor)
    runner.go()
    later = [row for row in monitor.rows if row["round"] > 1]
    assert len(later) == 3
    assert all(row["client"] is None and row["steps"] == 1 and row["delta2"] >= 1 for row in later)
    assert all(row["holds"] and row["training_holds"] for row in later)


def test_the_limit_of_mpfedcl_is_where_its_bound_changes_sign_with_several_steps():
    """The bound as a function of the learning rate, with the constants of a round of three steps."""
    method = MpFedCL(clustering="mean", unit=False, temperature=1e4)
    training = {"momentum": 0.0, "batch": 4, "lr": 0.01}
    runner = runner_of(config(method, rounds=2, train=training), federation(FULL))
    monitor = BoundsMonitor(runner, 2)
    runner.watchers.append(monitor)
    runner.go()
    (row,) = monitor.rows
    assert (row["steps"], row["client"]) == (3, None)
    shared = {"L2": row["L2"], "G": row["G"], "tau": 1e4, "v": row["v"]}
    step = {"L1": row["L1"], "delta2": row["delta2"], "square": row["S"]}
    assert row["largest_lr"] > 0
    assert row["largest_lr_printed"] > 0

    def corrected(lr):
        return mpfedcl_bounds.mpfedcl_lemma1(eta=3 * lr, **step) + mpfedcl_bounds.mpfedcl_lemma2(eta=lr, E=3, **shared)

    def printed(lr):
        return mpfedcl_bounds.mpfedcl_theorem1_printed(eta=3 * lr, classes=3, **step, **shared)

    assert (row["bound"], row["printed"]) == pytest.approx((corrected(0.01), printed(0.01)))
    assert corrected(0.999 * row["largest_lr"]) < 0 < corrected(1.001 * row["largest_lr"])
    assert printed(0.999 * row["largest_lr_printed"]) < 0 < printed(1.001 * row["largest_lr_printed"])


def test_fednh_shows_the_terms_of_eq_9():
    method = FedNH(learn_scale=False)
    runner = runner_of(config(method, rounds=2, train={"momentum": 0.0}), federation(FULL))
    monitor = BoundsMonitor(runner, 2)
    runner.watchers.append(monitor)
    before = played(config(method, rounds=1, train={"momentum": 0.0}), federation(FULL))
    runner.go()
    head = runner.members.nets[0].linear_head
    moved = float((runner.server.params[head] - before.server.params[head]).double().norm())
    for row in monitor.rows:
        assert row["W_step"] == pytest.approx(moved)
        assert row["W_step"] <= row["W_step_bound"]
        assert row["theta_step"] <= row["theta_step_bound"]
        assert row["theta_change"] + row["W_change"] == pytest.approx(row["server_change"], abs=1e-6)
        assert row["highest_square"] <= row["lemma1"] * (1 + 1e-6)  # equal for some client, in single precision
        assert row["smallest_epsilon"] > 2 * row["lemma1"]


@pytest.mark.parametrize("method", [FedProto(distance="l2", prototypes="fresh"), FedNH(learn_scale=False)])
def test_a_client_with_few_steps_feels_the_steps_of_the_others(method):
    """What the server sends depends on all clients, so that its part of the bound has the largest number of steps."""
    unequal = [[0, 1, 2] * 40, [0, 1, 2] * 40, [0, 1, 2]]
    training = {"momentum": 0.0, "batch": 4, "lr": 0.1}
    runner = runner_of(config(method, rounds=3, train=training), federation(unequal))
    monitor = BoundsMonitor(runner, 1)
    runner.watchers.append(monitor)
    runner.go()
    rows = [row for row in monitor.rows if row["round"] > 1]
    assert [row["steps"] for row in rows] == [30, 30, 1] * 2
    for row in rows:
        assert row["server_change"] <= row["server_bound"] + 1e-6
        if isinstance(method, FedNH):
            assert (
                row["theta_step"]
                <= row["theta_step_bound"]
                == 2 * 0.1 * 30 * max(other["G"] for other in rows if other["round"] == row["round"])
            )
        else:
            of_round = [other for other in rows if other["round"] == row["round"]]
            l2, g = (max(other[key] for other in of_round) for key in ("L2", "G"))
            assert 0.1 * 30 * l2 * g * 0.999 <= row["server_bound"] <= 0.1 * 30 * l2 * g * STEEPEST * 1.001
            assert row["largest_pull"] <= row["S"] / (30 * l2 * g) * 1.001


def test_the_docs_name_the_file():
    text = (Path(__file__).parents[1] / "docs" / "run-folder.md").read_text(encoding="utf-8")
    assert "`bounds.jsonl`" in text
