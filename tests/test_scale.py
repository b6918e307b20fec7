"""Many clients: samples of clients that are tested, sums of uploads on disk, and partitions without copies."""

from __future__ import annotations

import importlib
import json
import time
import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import protofed
from protofed.cli import app
from protofed.cli.plan import other_clients_line
from protofed.core import Upload, Weights, average
from protofed.data.partitions.base import Labels, assign_classes, check_holdings
from protofed.data.partitions.by_class import WithReplacement
from protofed.data.tables import memory_mapped
from protofed.engines.engine import Report
from protofed.engines.loop import Loop
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.experiment.config import Config, ConfigError
from protofed.experiment.folder import Folder
from protofed.experiment.forecast import Cost, Forecast
from protofed.experiment.forecast import _steps as steps_of
from protofed.experiment.held_uploads import HeldUploads, StoredUpload
from protofed.experiment.members import Members
from protofed.experiment.roster import clients_to_test, trained_per_round
from protofed.experiment.watchers import Watcher
from protofed.messages import flatten
from protofed.methods import METHODS
from toys import config, everything, federation, net, played, played_on, pool_of, runner_of

TOP = Path(__file__).parents[1]
TABLE = {
    "run": {"rounds": 2, "sample": 3},
    "data": {"clients": 12},
    "net": {"hidden": [4], "dim": 4},
    "eval": {"clients_sampled": 5},
}


def with_method(name: str, **sections):
    return {**TABLE, **sections, "method": {"name": name}}


# Tested clients


def test_the_tested_clients_are_the_same_for_all_methods_and_rounds_and_differ_between_seeds(tmp_path):
    drawn = {}
    for method in ("fedproto", "fedavg", "local"):
        result = protofed.run(with_method(method), tmp_path / method)
        drawn[method] = [row["client"] for row in result.clients]
        assert (result.summary["clients"], result.summary["tested"]) == (12, 5)
        assert sorted(map(int, result.unknown)) == drawn[method]
    assert drawn["fedproto"] == drawn["fedavg"] == drawn["local"]
    assert drawn["local"] == list(clients_to_test(Config.of(TABLE), 12))
    assert drawn["local"] != list(clients_to_test(Config.of({**TABLE, "run": {"seed": 1}}), 12))


def test_the_accuracies_are_those_of_the_tested_clients():
    every = protofed.run({**TABLE, "eval": {}})
    some = protofed.run(TABLE)
    accuracies = {row["client"]: row["accuracy_head"] for row in every.clients}
    mean = sum(accuracies[row["client"]] for row in some.clients) / 5
    assert some.summary["accuracy"]["head"]["mean"] == pytest.approx(mean)
    assert some.rounds[-1]["loss"] == every.rounds[-1]["loss"]  # training is the same


def test_a_fraction_of_the_clients_or_too_many():
    assert len(clients_to_test(Config.of({"eval": {"clients_sampled": 0.25}}), 12)) == 3
    assert len(clients_to_test(Config.of({"eval": {"clients_sampled": 0.001}}), 12)) == 1
    assert list(clients_to_test(Config.of({}), 12)) == list(range(12))
    with pytest.raises(ConfigError, match=r"eval.clients_sampled: got 13, but there are 12 clients. Use 12 or fewer."):
        Config.of({"eval": {"clients_sampled": 13}}).with_clients(12)


@pytest.mark.parametrize("clients", ["all", "round"])
def test_personal_models_are_those_of_tested_clients(clients, tmp_path):
    table = with_method("fedavg", eval={"clients_sampled": 5, "personal": True, "clients": clients})
    result = protofed.run({**table, "run": {"rounds": 3, "sample": 6}}, tmp_path / "run")
    tested = {row["client"] for row in result.clients}
    scored = {row["client"] for row in result.clients if row["personal_v"] is not None}
    last = set(result.rounds[-1]["clients"])
    assert scored == (tested if clients == "all" else tested & last)
    assert all(set(map(int, row["personal"])) <= tested for row in result.rounds)
    again = protofed.run({**table, "run": {"rounds": 3, "sample": 6}}, tmp_path / "run", resume=True)
    assert again.summary == result.summary


@pytest.mark.parametrize(
    ("clients", "sampled", "every"),
    [(1000, 1.0, 1), (1999, 1.0, 1), (2000, 1.0, 2), (50_000, 1.0, 50), (50_000, 500, 1)],
)
def test_large_federations_are_tested_less_often_by_default(clients, sampled, every):
    config = Config.of({"eval": {"clients_sampled": sampled}})
    assert config.with_clients(clients).run.eval_every == every
    assert Config.of({"run": {"eval_every": 7}}).with_clients(clients).run.eval_every == 7


def test_the_screen_says_that_tests_are_less_frequent(monkeypatch, tmp_path):
    monkeypatch.setattr("protofed.experiment.roster._TESTED_PER_ROUND", 4)
    said = []

    class Listening(Watcher):
        def started(self, config, members, rounds, notes):
            said.extend(notes)

        def round(self, row): ...

    protofed.run({**TABLE, "run": {"rounds": 3, "sample": 2}, "eval": {}}, tmp_path / "run", watchers=[Listening()])
    assert said[-1] == (
        "run.eval_every: 12 clients are tested every 3 rounds; set eval.clients_sampled to test fewer clients more often"
    )
    tested = [row["accuracy_head"] is not None for row in Folder(tmp_path / "run").rounds()]
    assert tested == [False, False, True]


def test_a_run_that_is_tested_every_round_has_the_digest_of_earlier_versions():
    """1 was the default for any number of clients, and values that are defaults are not part of a digest."""
    assert Config.of({"run": {"eval_every": 1}}).digest() == Config.of({}).digest()
    assert Config.of({}).with_clients(20).run.eval_every == 1
    assert Config.of({"run": {"eval_every": 2}}).digest() != Config.of({}).digest()


def test_clients_that_never_trained_are_not_stored_and_have_their_first_model(tmp_path):
    result = protofed.run(with_method("local", run={"rounds": 1, "sample": 2}, eval={}), tmp_path / "run")
    trained = set(result.rounds[0]["clients"])
    loaded = protofed.Result.load(tmp_path / "run")
    assert set(loaded.state.kept.trained) == trained
    other = next(client for client in range(12) if client not in trained)
    expected = result.state.kept[other].params
    found = loaded.state.kept[other].params
    assert all(bool((found[name] == expected[name]).all()) for name in expected)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["tested"] == 12


# Uploads


class Counted(Upload):
    """An upload that makes its message when it is looked at, and knows how many messages exist at the same time."""

    alive: ClassVar[set] = set()
    most: ClassVar[list] = [0]

    @property
    def message(self):
        made = Weights({name: value.clone() for name, value in self[4].params.items()})
        key = next(iter(made.params.values()))
        number = len(self.alive) + 1
        self.alive.add(id(key))
        weakref.finalize(key, self.alive.discard, id(key))
        self.most[0] = max(self.most[0], number)
        return made


@pytest.mark.parametrize("method", [name for name in sorted(METHODS) if METHODS[name].sums_uploads])
def test_methods_that_declare_it_need_one_upload_at_a_time(method):
    experiment, members = config(method), federation(nets=[net()] * 6)
    runner = runner_of(experiment, members)
    downs = {client: experiment.method.broadcast(runner.server, client) for client in range(6)}
    uploads = [report.upload for report in runner.engine.train(0, downs)]
    expected = experiment.method.aggregate(members.server(0, 0), runner.server, uploads)
    Counted.alive.clear()
    Counted.most[0] = 0
    counted = [Counted(*upload) for upload in uploads]
    found = experiment.method.aggregate(members.server(0, 0), runner.server, counted)
    torch.testing.assert_close(flatten(found), flatten(expected), rtol=0, atol=0)
    assert 1 <= Counted.most[0] <= 2


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fednh"])
@pytest.mark.parametrize("kind", [Loop, pool_of(Stacked, 2)])
def test_uploads_on_disk_change_no_bit(method, kind, monkeypatch):
    held = []
    make = HeldUploads.__init__
    monkeypatch.setattr(HeldUploads, "__init__", lambda self, *parts: held.append(self) or make(self, *parts))
    members = federation(nets=[net()] * 6)
    plain = played_on(kind, config(method), members)
    assert all(one.file is None for one in held)
    held.clear()
    frugal = played_on(kind, config(method, engine={"memory": 1e-9}), members)
    assert all(one.file is not None and one.in_memory == 0 for one in held)
    torch.testing.assert_close(everything(frugal), everything(plain), rtol=0, atol=0)
    assert [{**row, "seconds": 0} for row in frugal.rounds] == [{**row, "seconds": 0} for row in plain.rounds]


@pytest.mark.parametrize(
    "change",
    [{"attack": {"share": 0.5, "kind": "sign_flip"}}, {"privacy": {"secure_sum": True}}],
    ids=["attack", "secure sum"],
)
def test_uploads_on_disk_can_be_changed(change):
    plain, frugal = (
        played(config("fedavg", rounds=2, engine={"memory": memory}, **change), federation()) for memory in (1.0, 1e-9)
    )
    torch.testing.assert_close(everything(frugal), everything(plain), rtol=0, atol=0)


def test_an_upload_on_disk_still_says_its_round():
    upload = Upload(3, 10, 5, 1.0, Weights({"w": torch.ones(4)}), 7)
    report = HeldUploads(Weights, budget=0).hold(Report(upload, {}, 10, {}))
    assert isinstance(report.upload, StoredUpload)
    assert report.upload[:4] == upload[:4]
    assert report.upload.round == 7
    changed = report.upload._replace(client=4)
    assert (changed.client, changed.round, changed.message.params["w"].tolist()) == (4, 7, [1.0] * 4)
    assert changed._replace(message=Weights({})).message.params == {}


def test_an_average_of_models_one_after_the_other_is_the_sum_by_hand():
    models = [
        {"w": torch.tensor([1.0, 3.0]), "n": torch.tensor(2)},
        {"w": torch.tensor([5.0, 1.0]), "n": torch.tensor(5)},
    ]
    found = average((model for model in models), [1, 3])
    assert found["w"].tolist() == [4.0, 1.5]
    assert (found["n"].item(), found["n"].dtype) == (4, torch.int64)  # 4.25, rounded
    assert average(iter(models), [0, 0])["w"].tolist() == [3.0, 2.0]


# Data


def labels_of(classes: int, per_class: int, test: int) -> Labels:
    return Labels(np.repeat(np.arange(classes), per_class), np.repeat(np.arange(classes), test), classes)


def test_with_replacement_divides_any_number_of_clients():
    labels = labels_of(4, 10, 6)
    parts = WithReplacement(ways=2, shots=5, test=3).split(labels, 200, seed=0)
    assert len(parts) == 200  # there are 40 examples
    check_holdings(parts, labels, 200, "with_replacement")
    for part in parts:
        counts = np.bincount(labels.train[part.train], minlength=4)
        assert sorted(counts) == [0, 0, 5, 5]
        assert (np.bincount(labels.test[part.test], minlength=4) == np.where(counts, 3, 0)).all()
    used = np.concatenate([part.train for part in parts])
    assert len(np.unique(used)) == 40
    again = WithReplacement(ways=2, shots=5, test=3).split(labels, 200, seed=0)
    assert all((one.train == two.train).all() for one, two in zip(parts, again, strict=True))
    with pytest.raises(UserError, match=r"partition.shots: got 11, but class \d has 10 examples. Use 10 or fewer."):
        WithReplacement(ways=2, shots=11).split(labels, 5, seed=0)
    with pytest.raises(UserError, match=r"partition.test: got 7, but class \d has 6 examples."):
        WithReplacement(ways=2, shots=1, test=7).split(labels, 5, seed=0)
    with pytest.raises(UserError, match="with_replacement takes the clients' test examples from the test set, which"):
        WithReplacement(ways=2, shots=5).split(labels_of(4, 10, 0), 5, seed=0)


@pytest.mark.parametrize(("key", "value"), [("test", "own"), ("validation", 0.2)])
def test_no_client_holds_out_what_another_trains_on(key, value):
    table = {"data": {"clients": 30}, "partition": {"name": "with_replacement"}, "eval": {key: value}}
    with pytest.raises(UserError, match=f"eval.{key}: got .* gives some examples to several clients"):
        Members.of(Config.of(table))


def test_a_hundred_thousand_clients_are_divided_in_seconds():
    began = time.process_time()
    assert len(WithReplacement().split(labels_of(10, 6000, 1000), 100_000, seed=0)) == 100_000
    assert time.process_time() - began < 5


def test_the_time_to_assign_classes_is_proportional_to_the_clients():
    """It summed over all clients for each client."""
    began = time.process_time()
    assigned = assign_classes(2, 10, 20_000, np.random.RandomState(0))
    assert time.process_time() - began < 5
    assert set(assigned.sum(0)) == {2}
    assert np.ptp(assigned.sum(1)) <= 1


def test_clients_have_positions_in_one_memory_mapped_array(tmp_path):
    x, y = np.random.RandomState(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    table = {"data": {"name": "npz", "root": str(tmp_path), "clients": 30}, "partition": {"name": "with_replacement"}}
    table["partition"] |= {"shots": 4, "test": 2}
    members = Members.of(Config.of(table))
    addresses = {part.x.data_ptr() for part in (*members.train, *members.test)}
    assert len(addresses) == 1
    assert isinstance(memory_mapped(tmp_path)["x"], np.memmap)
    assert isinstance(members.train[0].x.numpy().base, np.memmap) or _is_mapped(addresses.pop())


def _is_mapped(address: int) -> bool:
    """Whether the address is in a file that is mapped into this process."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc")
    for line in maps.read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            return line.endswith("x.npy")
    return False


# What the page on performance says


def kept_json(name: str):
    return json.loads((TOP / "docs" / "results" / "data" / name).read_text(encoding="utf-8"))


def test_the_table_of_scale_is_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "benchmarks")
    scale = importlib.import_module("scale")
    measured = kept_json("scale.json")
    page = (TOP / "docs" / "performance.md").read_text(encoding="utf-8")
    assert "\n".join(scale.rows_of_table(measured)) in page
    by_size = {(run["method"], run["clients"]): run for run in measured if run["rounds"] == scale.ROUNDS}
    for method in scale.METHODS:
        small, large = by_size[method, 1_000], by_size[method, 100_000]
        assert large["round_cpu_seconds"] < 1.3 * small["round_cpu_seconds"]
        assert large["peak_mb"] < 3000
        assert by_size[method, 10_000]["written_mb_per_round"] < 1.3 * small["written_mb_per_round"]
    long = [run for run in measured if run["rounds"] == 50]
    assert sorted(run["method"] for run in long) == ["fedavg", "fedproto"]
    assert all(run["peak_mb"] < 1500 and run["tested"] == 500 and run["clients"] == 10_000 for run in long)


def test_plans_are_within_a_quarter_of_the_three_runs():
    page = (TOP / "docs" / "performance.md").read_text(encoding="utf-8")
    compared = kept_json("plan.json")
    assert len(compared) == 3
    for name, run in compared.items():
        planned, measured = run["planned"], run["measured"]
        assert all(
            planned[key] / measured[key] == pytest.approx(1, abs=0.25) for key in ("cpu", "wall", "memory", "disk")
        )
        cells = [
            f"{number / size:.{digits}f}" for key, size, digits in COLUMNS for number in (planned[key], measured[key])
        ]
        assert f"| {name} | {' | '.join(cells)} |" in page


COLUMNS = (("cpu", 1, 1), ("memory", 1e6, 0), ("disk", 1e6, 1))


# protofed plan


def test_a_plan_counts_what_the_run_does(capsys):
    words = [
        "--set",
        "data.clients=12",
        "--set",
        "run.rounds=30",
        "--set",
        "run.sample=3",
        "--set",
        "run.eval_every=10",
    ]
    words += ["--set", "net.hidden=[4]", "--set", "net.dim=4", "--set", "engine.workers=1"]
    app(["plan", *words, "--json"], standalone_mode=False)
    plan = json.loads(capsys.readouterr().out)
    assert (plan["clients"], plan["rounds"], plan["per_round"], plan["tests"], plan["tested"]) == (12, 30, 3, 3, 12)
    assert plan["trained"] == 12  # all but 12 * 0.75 ** 30
    weights = 64 * 4 + 4 + 4 * 4 + 4 + 10 * 4 + 10
    assert 4 * weights <= plan["state_bytes"] <= 4 * weights + 1500  # with the names
    parts = [plan[key][1] for key in ("start", "first_rounds", "end")] + [22 * plan["round"][1], 3 * plan["test"][1]]
    assert plan["total"]["cpu"] == pytest.approx(sum(parts))
    app(["plan", *words, "--clients", "1000000"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("30 rounds of 3 of 12 clients, 3 tests of 12 clients: about ")
    assert lines[-1].startswith("With 1,000,000 clients, of which 3 train per round and 1,000,000 are tested: about ")
    assert lines[-1].endswith("The memory of a client cannot be measured with 12: plan 1,000 clients or more for it.")
    plan.pop("total")
    costs = {name: Cost(*value) for name, value in plan.items() if isinstance(value, list)}
    assert " of memory, " in other_clients_line(Forecast(**{**plan, **costs, "clients": 2000}), 4000, Config.of({}))


@pytest.mark.parametrize(("late", "slow", "trained"), [("keep", 0.5, 8), ("drop", 0.5, 4), ("drop", 1.0, 0)])
def test_a_plan_does_not_count_clients_that_are_dropped(late, slow, trained, capsys):
    words = ["data.clients=12", "run.sample=8", "run.rounds=4", f"system.slow={slow}", f"system.late={late}"]
    experiment = Config.load(None, words)
    assert trained_per_round(experiment, 12) == trained
    app(["plan", *(part for word in words for part in ("--set", word)), "--json"], standalone_mode=False)
    plan = json.loads(capsys.readouterr().out)
    assert plan["per_round"] == trained
    steps = steps_of(experiment.train, Members.of(experiment), range(12)) / 12
    assert plan["steps_per_round"] == pytest.approx(trained * steps)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [(["train.steps=30"], 6 * 30), (["train.batch=1000", "train.drop_last=true", "train.epochs=2"], 6 * 2)],
)
def test_a_plan_counts_the_steps_that_clients_take(changes, steps):
    experiment = Config.load(None, ["data.clients=6", *changes])
    assert steps_of(experiment.train, Members.of(experiment), range(6)) == pytest.approx(steps)
