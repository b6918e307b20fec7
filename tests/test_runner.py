"""Whole runs: the same seed gives the same result, a resumed run is the uninterrupted one, a run is a folder."""

from __future__ import annotations

import csv
import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import protofed
from damage import flip_newest
from protofed.core import Phase
from protofed.errors import StoppedRunError, UserError
from protofed.experiment import checkpoint
from protofed.experiment.config import Config
from protofed.experiment.folder import Folder
from protofed.experiment.roster import draw_clients
from protofed.experiment.run import run
from protofed.experiment.store import STORE_FILE
from protofed.experiment.watchers import Watcher
from protofed.methods.fedproto import FedProto
from protofed.methods.local import Local
from toys import config, everything, federation, figures, methods_by_speed, played, runner_of

SMALL = {"run": {"rounds": 3}, "data": {"clients": 5}, "train": {"clip": 1.0}}
QUICK = {"creff": {"head_epochs": 5}}  # its default is 300, which takes seconds per round


def without_seconds(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.mark.parametrize("method", methods_by_speed())
def test_same_seed_same_rounds(method, tmp_path):
    table = {**SMALL, "method": {"name": method, **QUICK.get(method, {})}}
    for name in ("a", "b"):
        run(table, tmp_path / name)
    run({**table, "run": {"rounds": 3, "seed": 1}}, tmp_path / "c")
    assert without_seconds(tmp_path / "a") == without_seconds(tmp_path / "b") != without_seconds(tmp_path / "c")


def test_a_run_is_a_folder(tmp_path):
    result = run(SMALL, tmp_path / "run")
    where = tmp_path / "run"
    assert {path.name for path in where.iterdir() if path.name != ".lock"} == {
        "config.toml",
        "partition.json",
        "rounds.jsonl",
        "clients.csv",
        "unknown.json",
        "result.json",
        "checkpoint",
    }
    written = Config.of(tomllib.loads((where / "config.toml").read_text()))
    assert written.engine.name == "stacked"
    assert written.run.eval_every == 1  # what 0 stands for in a small federation
    asked = Config.of(SMALL)
    assert replace(written, engine=asked.engine, run=asked.run) == asked
    stored = json.loads((where / "result.json").read_text())
    assert stored == result.summary
    for key in ("method", "dataset", "seed", "rounds", "engine", "versions", "miou", "personal"):
        assert key in stored
    assert set(stored["accuracy"]["head"]) == set(stored["accuracy"]["prototype"]) == {"mean", "std"}
    assert set(stored["cost"]) == {"up_params", "down_params", "up_counts", "up_bytes", "down_bytes"}
    rows = list(csv.DictReader((where / "clients.csv").read_text().splitlines()))
    assert [int(row["client"]) for row in rows] == list(range(5))
    mean = sum(float(row["accuracy_head"]) for row in rows) / 5
    assert stored["accuracy"]["head"]["mean"] == pytest.approx(mean)
    partition = json.loads((where / "partition.json").read_text())
    assert [len(part["train"]) for part in partition["clients"]] == [int(row["train"]) for row in rows]


def test_costs_are_prototypes_times_dim(tmp_path):
    result = run({**SMALL, "net": {"dim": 50}})
    held = sum(len(row["classes"].split()) for row in result.clients)
    assert result.summary["cost"]["up_params"] == held * 50
    assert result.summary["cost"]["up_counts"] == held


def test_the_same_costs_for_weights():
    result = run({**SMALL, "method": {"name": "fedavg"}, "net": {"hidden": [64], "dim": 50}})
    assert result.summary["cost"]["up_params"] == 5 * (64 * 64 + 64 + 64 * 50 + 50 + 50 * 10 + 10)
    assert result.summary["cost"]["up_counts"] == 0


@pytest.mark.parametrize("method", methods_by_speed())
@pytest.mark.parametrize(("done", "every"), [(1, 1), (2, 1), (3, 2)])
def test_resumed_run_is_the_uninterrupted_one(method, done, every, tmp_path):
    sections = {
        "run": {"sample": 0.6, "eval_every": every},
        "train": {"clip": 1.0},
        "method": QUICK.get(method, {}),
    }
    experiment, members = config(method, rounds=4, **sections), federation()
    whole = runner_of(experiment, members, opened(tmp_path / "whole"))
    whole.start()
    whole.go()
    stopped = runner_of(config(method, rounds=done, **sections), members, opened(tmp_path / "parts"))
    stopped.start()
    stopped.go()
    resumed = runner_of(experiment, members, Folder(tmp_path / "parts"))
    resumed.resume()
    resumed.go()
    torch.testing.assert_close(everything(resumed), everything(whole), rtol=0, atol=0)
    assert without_seconds(tmp_path / "parts") == without_seconds(tmp_path / "whole")


def opened(path: Path) -> Folder:
    path.mkdir()
    return Folder(path)


def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    run(SMALL, tmp_path / "run")
    where = tmp_path / "run" / "checkpoint"
    assert checkpoint.checkpoint_names(where) == ["000003", "000002"]
    flip_newest(tmp_path / "run")
    before = without_seconds(tmp_path / "run")
    run(SMALL, tmp_path / "run", resume=True)
    assert without_seconds(tmp_path / "run") == before
    (where / STORE_FILE).write_bytes(b"damaged")
    with pytest.raises(UserError, match="None of the checkpoints"):
        run(SMALL, tmp_path / "run", resume=True)


def test_finished_run_can_be_resumed_and_gives_its_result_again(tmp_path):
    first = run(SMALL, tmp_path / "run")
    again = run(SMALL, tmp_path / "run", resume=True)
    assert again.summary == first.summary


def test_resume_to_fewer_rounds_is_refused(tmp_path):
    run(SMALL, tmp_path / "run")
    with pytest.raises(UserError, match=r"run.rounds: got 2, but .* has 3. Use 3 or more"):
        run({**SMALL, "run": {"rounds": 2}}, tmp_path / "run", resume=True)


def test_half_a_line_is_forgotten(tmp_path):
    run(SMALL, tmp_path / "run")
    rows = (tmp_path / "run" / "rounds.jsonl").read_text()
    (tmp_path / "run" / "rounds.jsonl").write_text(rows + '{"round": 4, "lo')
    run({**SMALL, "run": {"rounds": 4}}, tmp_path / "run", resume=True)
    assert [row["round"] for row in without_seconds(tmp_path / "run")] == [1, 2, 3, 4]


def test_existing_folder_is_not_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="already exists and is not empty"):
        run(SMALL, tmp_path)


def test_resume_refuses_other_data(tmp_path):
    run(SMALL, tmp_path / "run")
    path = tmp_path / "run" / "partition.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sha256": "another"}))
    with pytest.raises(UserError, match="was made with other data"):
        run(SMALL, tmp_path / "run", resume=True)
    path.unlink()  # stopped before it was written
    run(SMALL, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"method": {"name": "local"}}, "method."),
        ({"train": {"lr": 0.5}}, "train.lr, train.clip"),
        ({"net": [{}, {}]}, "net."),
    ],
)
def test_resume_refuses_another_experiment(change, named, tmp_path):
    run(SMALL, tmp_path / "run")
    with pytest.raises(UserError, match=f"can change only run.rounds, .*, not {named}"):
        run({**SMALL, **change}, tmp_path / "run", resume=True)


def test_a_number_of_clients_is_not_a_share(tmp_path):
    run(SMALL, tmp_path / "run")
    with pytest.raises(UserError, match=r"not run.sample"):
        run({**SMALL, "run": {"rounds": 4, "sample": 1}}, tmp_path / "run", resume=True)


def test_resume_refuses_an_edited_config_and_leaves_the_folder_alone(tmp_path):
    run(SMALL, tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("pull = 1.0", "pull = 2.0"))
    with pytest.raises(UserError, match=r"does not match config\.toml: the file was changed"):
        run({**SMALL, "run": {"rounds": 5}, "method": {"pull": 2.0}}, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "result.json").exists()


def test_resume_refuses_rounds_without_a_checkpoint(tmp_path):
    run(SMALL, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(UserError, match="checkpoint is empty, but"):
        run({**SMALL, "run": {"rounds": 5}}, tmp_path / "run", resume=True)
    assert len(without_seconds(tmp_path / "run")) == 3
    with pytest.raises(UserError, match="Give the folder"):
        run(SMALL, resume=True)


def test_resume_without_a_checkpoint_and_without_rounds_starts_again_and_forgets_the_result(tmp_path):
    class Stop(Watcher):
        def round(self, row):
            raise KeyboardInterrupt

    run(SMALL, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    (tmp_path / "run" / "rounds.jsonl").unlink()
    with pytest.raises(KeyboardInterrupt):
        run(SMALL, tmp_path / "run", resume=True, watchers=[Stop()])
    assert not (tmp_path / "run" / "result.json").exists()
    run(SMALL, tmp_path / "run", resume=True)
    run(SMALL, tmp_path / "other")
    assert without_seconds(tmp_path / "run") == without_seconds(tmp_path / "other")


def test_every_watcher_is_closed_even_if_one_fails_and_others_are_refused():
    closed = []

    class Closing(Watcher):
        def closed(self):
            closed.append(self)
            if len(closed) == 1:
                raise RuntimeError("the first one fails")

    watchers = [Closing(), Closing()]
    with pytest.raises(RuntimeError, match="the first one fails"):
        run({**SMALL, "run": {"rounds": 1}}, watchers=watchers)
    assert closed == watchers
    with pytest.raises(UserError, match=r"watchers: got a object; must be of a subclass of protofed\.Watcher"):
        run(SMALL, watchers=[object()])


def test_the_hash_knows_the_data():
    first, second = federation(), federation()
    assert first.describe()["sha256"] == second.describe()["sha256"]
    second.train[0].x[0, 0] += 1
    assert first.describe()["sha256"] != second.describe()["sha256"]


def test_final_figures_go_when_a_run_goes_on(tmp_path):
    class Stop(Watcher):
        def round(self, row):
            raise KeyboardInterrupt

    run(SMALL, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run({**SMALL, "run": {"rounds": 9}}, tmp_path / "run", resume=True, watchers=[Stop()])
    assert not (tmp_path / "run" / "result.json").exists()


def test_methods_are_compared_on_the_same_draws():
    first, second = (played(config(name, run={"sample": 2}), federation()) for name in ("fedavg", "local"))
    assert [row["clients"] for row in first.rounds] == [row["clients"] for row in second.rounds]
    assert all(len(row["clients"]) == 2 for row in first.rounds)


@pytest.mark.parametrize(("wanted", "count"), [(1.0, 6), (0.5, 3), (0.01, 1), (1, 1), (4, 4)])
def test_sample_is_a_share_or_a_number(wanted, count):
    runner = runner_of(config(run={"sample": wanted}), federation())
    assert [len(draw_clients(runner.config, runner.members, number)) for number in range(3)] == [count] * 3


def test_evaluation_every_few_rounds_and_always_at_the_end():
    runner = played(config(rounds=5, run={"eval_every": 2}), federation())
    assert [row["accuracy_head"] is not None for row in runner.rounds] == [False, True, False, True, True]


def test_evaluation_in_each_of_the_last_rounds():
    runner = played(config(rounds=6, run={"eval_every": 4, "eval_last": 2}), federation())
    assert [row["accuracy_head"] is not None for row in runner.rounds] == [False, False, False, True, True, True]


def test_nan_upload_is_rejected_and_the_rest_goes_on():
    class Broken(FedProto):
        def upload(self, trained):
            sent = super().upload(trained)
            if trained.client == 1:
                sent.prototypes.mean.fill_(torch.nan)
            return sent

    runner = played(config(Broken()), federation())
    assert [row["rejected"] for row in runner.rounds] == [{"1": "prototypes/mean is not finite"}] * 3
    honest = played(config("fedproto", rounds=3), federation())
    assert [row["up_params"] for row in runner.rounds] == [row["up_params"] for row in honest.rounds]  # it was sent
    assert torch.isfinite(runner.server.prototypes.mean).all()


def test_a_round_without_a_usable_upload_stops_the_run_and_keeps_its_state(tmp_path):
    class Hopeless(FedProto):
        def upload(self, trained):
            sent = super().upload(trained)
            sent.prototypes.support.fill_(-1)
            return sent

    with pytest.raises(StoppedRunError) as stopped:
        played(config(Hopeless()), federation())
    assert str(stopped.value) == (
        "Round 1: all 6 uploads were rejected, so the run stops (clients by reason: prototypes has a negative support: "
        "0, 1, 2, 3, 4, 5)."
    )


def test_tuning_before_evaluation_is_forgotten():
    class Tuned(Local):
        def tune(self, epochs):
            return (Phase(20),)

    plain, tuned = (played(config(method, rounds=1), federation()) for method in (Local(), Tuned()))
    torch.testing.assert_close(everything(plain), everything(tuned), rtol=0, atol=0)
    assert tuned.rounds[-1]["accuracy_head"] > plain.rounds[-1]["accuracy_head"]


def test_federation_of_empty_clients_runs():
    runner = played(config("fedproto"), federation([[], []]))
    assert figures(runner)["accuracy"] == {"head": None, "prototype": None}
    assert runner.rounds[0]["loss"] == {}


def test_diverged_loss_is_null_in_the_files(tmp_path):
    run({**SMALL, "method": {"name": "local"}, "train": {"lr": 1e30}}, tmp_path / "run")
    assert without_seconds(tmp_path / "run")[-1]["loss"]["supervised"] is None


def test_clients_start_from_weights_of_their_own_by_the_seed():
    members = federation()
    starts = [
        members.client(seed, 0, client).fresh_params()["head.weight"]
        for seed, client in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert torch.equal(starts[0], starts[3])
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_running_reporting_is_the_authors_reading():
    true, running = (played(config("local", eval={"reporting": how}), federation()) for how in ("clients", "running"))
    assert figures(running)["accuracy"]["head"]["std"] < figures(true)["accuracy"]["head"]["std"]


def test_parameters_of_another_net_are_not_trained():
    class Mixed(Local):
        def receive(self, kept, down):
            return {**kept.params, "head.bias": torch.zeros(9)}

    with pytest.raises(UserError, match=r"These parameters are not toy's: head.bias"):
        played(config(Mixed()), federation())


def test_a_run_uses_one_thread_and_gives_the_others_back():
    seen = []

    class Watching(Watcher):
        def round(self, row):
            seen.append(torch.get_num_threads())

    torch.set_num_threads(2)
    run(SMALL, watchers=[Watching()])
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


def test_run_from_python():
    result = protofed.run({"run": {"rounds": 1}, "data": {"clients": 2}})
    assert result.folder is None
    assert [row["round"] for row in result.rounds] == [1]
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = protofed.walk


def test_a_message_that_all_clients_get_is_one_object_for_the_engine():
    """Engines send and stack it once; `broadcast` itself makes a new tuple per client."""
    runner = runner_of(config("creff"), federation())
    sent = []
    runner.engine.evaluate = lambda number, downs, on: sent.append(downs) or []
    runner._evaluate(0)
    assert len(sent[0]) == 6
    assert len({id(message) for message in sent[0].values()}) == 1
