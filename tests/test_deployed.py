"""A federation of Flower's apps in one process: it does what a run does, and goes on if clients fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from typer.testing import CliRunner

import protofed
from grid import NAMES, LocalGrid, altered, call, deploy, federate, toy_config, toy_members, without_time, write_toml
from protofed import cli
from protofed.deploy.client_data import write_client_data
from protofed.deploy.client_work import ClientWork
from protofed.deploy.descriptions import checked_description
from protofed.deploy.server_app import serve
from protofed.engines.flower.client_answers import EnrolledSizes, read_evaluation, read_hits
from protofed.engines.flower.wire import record_figures, record_tensors
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.final_figures import client_rows
from protofed.experiment.folder import Folder
from protofed.experiment.members import Members
from protofed.experiment.results import Result
from protofed.experiment.stored import has_diverged
from protofed.methods import METHODS
from toys import examples, figures, played, runner_of

PROMISED = ("fedproto", "fedavg", "fednh", "mpfedcl", "protomargin", "local")
QUICK = {"creff": {"each": 5, "match_steps": 3, "head_epochs": 3}, "fedtgp": {"epochs": 5}}


@pytest.fixture(autouse=True)
def _disk_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)


# ---- the same rounds as `protofed run` ----


@pytest.mark.parametrize(
    "method", [name if name in PROMISED else pytest.param(name, marks=pytest.mark.slow) for name in sorted(METHODS)]
)
def test_every_method_gives_the_rounds_of_a_run(method, tmp_path):
    """Bit for bit those of the loop engine, from which other engines differ by rounding."""
    table = toy_config(method, method=QUICK.get(method, {}))
    members = deploy(tmp_path, table)
    result = federate(tmp_path)
    runner = played(Config.of(table), members)
    assert without_time(result.rounds) == without_time(runner.rounds)
    assert without_time(Folder(tmp_path / "server" / "run").rounds()) == json.loads(
        json.dumps(without_time(runner.rounds))
    )
    assert result.clients == client_rows(members, runner.evaluations, {}, {})
    assert result.summary["engine"] == "flower"


def test_a_named_dataset_is_divided_as_in_a_run(tmp_path):
    table = {"run": {"rounds": 1}, "data": {"clients": 3}, "method": {"name": "fedavg"}}
    members = replace(Members.of(Config.of(table)), names=NAMES)
    deploy(tmp_path, table, members)
    result, run = federate(tmp_path), protofed.run(table)
    assert result.rounds[0]["accuracy_global"] == run.rounds[0]["accuracy_global"]
    assert result.rounds[0]["loss"] == pytest.approx(run.rounds[0]["loss"], abs=1e-5)
    assert [{**row, "name": None} for row in result.clients] == [{**row, "name": None} for row in run.clients]
    assert result.summary["majority"] == run.summary["majority"]


def test_sampling_slow_clients_and_personal_models_are_those_of_a_run(tmp_path):
    """Every client has the balanced test set here, so that personal models can be scored."""
    table = toy_config("fednh", run={"sample": 2}, system={"slow": 0.5}, train={"epochs": 3}, eval={"personal": True})
    members = deploy(tmp_path, table)
    for name in "abc":
        (tmp_path / "clients" / name / "balanced.npz").write_bytes((tmp_path / "server" / "balanced.npz").read_bytes())
    result, runner = federate(tmp_path), played(Config.of(table), members)
    assert without_time(result.rounds) == without_time(runner.rounds)
    assert result.summary["personal"] == figures(runner)["personal"]


def test_without_a_balanced_set_clients_test_the_servers_model(tmp_path):
    """As for a federation of own arrays, whose balanced test set is the union of all test sets."""
    table = toy_config("fedavg", eval={"training_loss": True})
    members = deploy(tmp_path, table)
    (tmp_path / "server" / "balanced.npz").unlink()
    result = federate(tmp_path)
    runner = played(Config.of(table), replace(members, balanced=members.test))
    assert [row["accuracy_global"] for row in result.rounds] == [row["accuracy_global"] for row in runner.rounds]
    assert [row["loss_global"] for row in result.rounds] == pytest.approx([row["loss_global"] for row in runner.rounds])


# ---- clients that fail ----


def nan(tensors, figures):
    tensors["prototypes/mean"][0, 0] = torch.nan


def wrong_shape(tensors, figures):
    tensors["prototypes/mean"] = tensors["prototypes/mean"][:, :-1]
    tensors["prototypes/shape"][2] -= 1


def wrong_type(tensors, figures):
    tensors["prototypes/mean"] = tensors["prototypes/mean"].double()


def unknown_class(tensors, figures):
    tensors["prototypes/rows"][0] = 7


def class_it_does_not_have(tensors, figures):
    tensors["prototypes/rows"][-1] = 2


def another_name(tensors, figures):
    tensors["extra"] = torch.zeros(1)


def negative_support(tensors, figures):
    tensors["prototypes/support"][0] = -1


def negative_count(tensors, figures):
    figures["num_examples"] = -3


def another_count(tensors, figures):
    figures["num_examples"] = 1000


def far_too_large(tensors, figures):
    tensors["prototypes/shape"][0] = 2**31 - 1  # 43 GB


def infinite_work(tensors, figures):
    figures["work"] = 10**400


def endless_term(tensors, figures):
    figures["terms"]["pull"] = 10**400


def strange_term(tensors, figures):
    figures["terms"]["\x1b[2J"] = 1.0


def stale_round(tensors, figures):
    figures["round"] = 0


def another_run(tensors, figures):
    figures["run"] = "0" * 32


def not_an_array(message, reply):
    array = Array("float32", (1,), "numpy.ndarray", b"PK\x03\x04x")
    content = RecordDict({"figures": reply.content["figures"], "tensors": ArrayRecord({"/w": array})})
    return [Message(content, reply_to=message)]


def nested(message, reply):
    return [Message(RecordDict({"figures": ConfigRecord({"json": "[" * 100_000})}), reply_to=message)]


def raised(message, reply):
    return [Message(Error(2, "it failed (ValueError)"), reply_to=message)]


def twice(message, reply):
    return [reply, reply]


def nothing(message, reply):
    return []


FAULTS = [
    (altered(nan), "prototypes/mean is not finite"),
    (altered(wrong_shape), "prototypes has the shape [3, 1, 4]; must be [3, 1, 5]"),
    (altered(wrong_type), "prototypes is of type torch.float64; must be torch.float32"),
    (altered(unknown_class), "cannot have the rows"),
    (altered(class_it_does_not_have), "prototypes has the class number 2, which it did not enrol with"),
    (altered(another_name), "has no 'extra'"),
    (altered(negative_support), "prototypes has a negative support"),
    (altered(negative_count), "num_examples is -3"),
    (altered(another_count), "num_examples is 1000, but it enrolled with 6"),
    (altered(far_too_large), "prototypes has the shape [2147483647, 1, 5]; must be [3, 1, 5]"),
    (altered(infinite_work), "work is 1000"),
    (altered(endless_term), "the term pull is 1000"),
    (altered(strange_term), r"terms has the name '\x1b[2J'"),
    (not_an_array, "the tensor w cannot be read: it is not a .npy file"),
    (nested, "its figures are nested too deeply"),
    (altered(stale_round), "it answered round 1 in round 16 (stale)"),
    (altered(another_run), "it answered for run"),
    (raised, "it failed (ValueError)"),
    (twice, "it answered twice"),
    (nothing, "no answer within 600 s"),
]


def test_a_client_that_fails_is_left_out_of_its_round_and_named(tmp_path, capsys):
    """Client b fails in every round but the last, each time in another way. The run is as if its uploads were lost."""
    rounds = len(FAULTS) + 1
    table = toy_config("fedproto", rounds=rounds, run={"eval_every": rounds})
    members = deploy(tmp_path, table)
    faults = {("b", "train", number): fault for number, (fault, _) in enumerate(FAULTS, 1)}
    result = federate(tmp_path, LocalGrid(tmp_path, faults=faults))
    out = capsys.readouterr().out
    for row, (_, reason) in zip(result.rounds, FAULTS, strict=False):
        assert list(row["rejected"]) == ["1"]
        assert reason in row["rejected"]["1"]
        assert f"client b: rejected in round {row['round']}: {row['rejected']['1']}" in out
    assert result.rounds[-1]["rejected"] == {}
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert status["state"] == "finished"
    assert (status["clients"]["b"]["rejected"], status["clients"]["b"]["last_round"]) == (len(FAULTS), rounds)
    assert "no answer" in status["clients"]["b"]["last_reason"]
    reference = run_without_the_uploads_of_b(table, members)
    last, expected = result.rounds[-1], reference.rounds[-1]
    assert {key: last[key] for key in last if key.startswith("accuracy")} == {
        key: expected[key] for key in expected if key.startswith("accuracy")
    }
    assert last["loss"] == expected["loss"]


def test_a_run_in_which_nobody_ever_answered_ends_with_an_error(tmp_path):
    """Once somebody has answered, a round without answers is void, and the run goes on."""
    deploy(tmp_path / "never", toy_config("fedproto"))
    faults = {(name, "train", 1): raised for name in "abc"}
    with pytest.raises(UserError, match=r"Round 1: no client has sent a usable upload since the run began .*failed"):
        federate(tmp_path / "never", LocalGrid(tmp_path / "never", faults=faults))
    deploy(tmp_path / "later", toy_config("fedproto"))
    faults = {(name, "train", 2): raised for name in "abc"}
    result = federate(tmp_path / "later", LocalGrid(tmp_path / "later", faults=faults))
    assert [len(row["rejected"]) for row in result.rounds] == [0, 3]


def run_without_the_uploads_of_b(table, members):
    """The run whose server gets no upload of client b before the last round."""
    runner = runner_of(Config.of(table), members)
    train, last = runner.engine.train, table["run"]["rounds"] - 1

    def lossy(round, downs, plan):
        return [report for report in train(round, downs, plan) if round == last or report.upload.client != 1]

    runner.engine.train = lossy
    runner.go()
    return runner


def test_a_client_cannot_write_into_the_servers_terminal_and_log(tmp_path, capsys):
    strange = "x\x1b]0;owned\x07\nfinished after 2 rounds: /etc [/b]" + "y" * 10_000
    deploy(tmp_path, toy_config("fedproto"))

    def spoofed(message, reply):
        return [Message(Error(2, strange), reply_to=message)]

    def spoofed_version(tensors, figures):
        figures["version"] = strange

    faults = {("b", kind, 2): spoofed for kind in ("train", "evaluate")}
    result = federate(tmp_path, LocalGrid(tmp_path, faults=faults))
    reason = result.rounds[1]["rejected"]["1"]
    assert reason.startswith("x ]0;owned  finished after 2 rounds: /etc [/b]yyy")
    assert len(reason) == 500
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert len(status["clients"]["b"]["last_reason"]) == 500
    done = CliRunner().invoke(cli.app, ["deploy", "status", str(tmp_path), "--once"], env={"COLUMNS": "1000"})
    assert (done.exit_code, "/etc [/b]yyy" in done.output) == (0, True)
    deploy(tmp_path / "two", toy_config("fedproto"), wait_seconds=5.0)
    grid = LocalGrid(tmp_path / "two", faults={("b", "query.enrol", 0): altered(spoofed_version)})
    with pytest.raises(UserError):
        federate(tmp_path / "two", grid)
    deploy(tmp_path / "all", toy_config("fedproto"))
    faults = {(name, "train", 1): lost_with(strange) for name in "abc"}
    with pytest.raises(UserError, match="none of the clients answered"):
        federate(tmp_path / "all", LocalGrid(tmp_path / "all", faults=faults))
    logs = "".join((tmp_path / part / "server" / "server.log").read_text() for part in (".", "two", "all"))
    for text in (capsys.readouterr().out, logs):
        assert [line for line in text.splitlines() if line.startswith("finished") and "/etc" in line] == []
        assert not {"\x1b", "\x07"} & set(text)
    assert "client b has protofed x ]0;owned" in logs
    assert "none of the clients answered (a: lost 3 times: x ]0;owned" in logs


def lost_with(reason):
    """A message that is lost, for a reason that Flower reports."""
    return lambda message, reply: [Message(Error(8, reason), reply_to=message)]


def test_a_late_answer_is_not_used_and_named_when_it_comes(tmp_path, capsys):
    deploy(tmp_path, toy_config("fedproto", rounds=3), round_seconds=10.0)
    grid = LocalGrid(tmp_path)
    grid.on_push = lambda message: grid.delays.update(c=15.0 if grid.clock.now() < 1 else 0.0, a=4.0)
    result = federate(tmp_path, grid)
    assert result.rounds[0]["rejected"] == {"2": "no answer within 10 s"}
    assert result.rounds[2]["rejected"] == {}
    assert "client c: its answer to round 1 came after the deadline and is not used" in capsys.readouterr().out


def test_a_client_that_fails_in_a_test_has_no_accuracy(tmp_path, capsys):
    deploy(tmp_path, toy_config("fedproto"))

    def too_many(tensors, figures):
        figures["correct"]["head"] = 99

    result = federate(tmp_path, LocalGrid(tmp_path, faults={("b", "evaluate", 2): altered(too_many)}))
    assert [row["accuracy_head"] is None for row in result.clients] == [False, True, False]
    assert "client b: no result of evaluate in round 2: correct is" in capsys.readouterr().out


@pytest.mark.parametrize("total", [10**400, 1000, 2], ids=["endless", "large", "small"])
def test_the_size_of_a_test_set_is_the_one_that_the_client_enrolled_with(total, tmp_path, capsys):
    """Every client has three test examples. All report another number, each at another place."""
    deploy(tmp_path, toy_config("fedavg", rounds=1, eval={"training_loss": True}))
    (tmp_path / "server" / "balanced.npz").unlink()  # so that clients test the server's model

    def other_total(tensors, figures):
        figures |= {"total": total, "correct": {"head": 0}}

    def other_server_total(tensors, figures):
        figures["server"] |= {"total": total, "correct": {"head": 0}}

    def other_loss_total(tensors, figures):
        figures["server"]["loss_total"] = total

    changes = {"a": other_total, "b": other_server_total, "c": other_loss_total}
    faults = {(name, "evaluate", 1): altered(change) for name, change in changes.items()}
    result = federate(tmp_path, LocalGrid(tmp_path, faults=faults))
    assert [row["accuracy_head"] for row in result.clients] == [None, None, None]
    assert result.rounds[0]["accuracy_global"] is None
    out = capsys.readouterr().out
    for name, key in (("a", "total"), ("b", "total"), ("c", "loss_total")):
        assert f"client {name}: no result of evaluate in round 1: {key} is {total}"[:70] in out


def test_clients_with_masks_are_tested_as_they_enrolled(tmp_path):
    """One test image of 8 x 8 pixels per client, of which 4 are ignored; no balanced set, so all test fedavg's model."""
    table = toy_config("fedavg", rounds=1, eval={"training_loss": True}) | {"net": {"name": "unet", "channels": [2, 4]}}
    for part in ("server", *(f"clients/{name}" for name in NAMES)):
        write_toml(tmp_path / part / "experiment.toml", table)
    for name in NAMES:
        write_toml(tmp_path / "clients" / name / "client.toml", {"name": name})
        write_toml(tmp_path / "clients" / name / "policy.toml", {"may_send": ["weights"]})
    write_toml(tmp_path / "server" / "server.toml", {"clients": list(NAMES), "wait_seconds": 5.0})
    masks = np.zeros((3, 8, 8), np.uint8)
    masks[:, :4], masks[:, 7, :4] = 1, 255
    for number, name in enumerate(NAMES):
        x = np.random.default_rng(number).normal(size=(3, 1, 8, 8)).astype(np.float32)
        arrays = {"x": x[:2], "mask": masks[:2], "x_test": x[2:], "mask_test": masks[2:]}
        np.savez(tmp_path / "clients" / name / "data.npz", **arrays)
    grid = LocalGrid(tmp_path)
    result = federate(tmp_path, grid)
    totals = [record_figures(reply.content).get("total") for _, _, reply in grid.exchanged[-3:]]
    assert totals == [60, 60, 60]
    assert all(row["miou_head"] is not None for row in result.clients)
    assert result.rounds[0]["miou"] is not None
    assert result.rounds[0]["loss_global"] > 0


def test_counts_of_pixels_are_at_most_the_pixels_of_the_enrolled_images():
    sizes = EnrolledSizes(train=4, test=2, validation=0, pixels=6)
    figures = {"total": 12, "correct": {"head": 3}, "pixels": {"head": [[3, 0, 0], [9, 0, 0]]}}
    assert read_evaluation(0, figures, 2, sizes, "test").total == 12
    for wrong, problem in (
        ({"total": 13}, "total is 13, but it enrolled with 2 images of 6 pixels"),
        ({"pixels": {"head": [[3, 0, 0], [8, 0, 0]]}}, "pixels has 11 pixels, but total is 12"),
    ):
        with pytest.raises(ValueError, match=problem):
            read_evaluation(0, {**figures, **wrong}, 2, sizes, "test")
    with pytest.raises(ValueError, match="pixels is"):
        read_evaluation(0, {**figures, "total": 2, "correct": {}}, 2, EnrolledSizes(4, 2), "test")


def test_hits_are_at_most_the_examples_of_the_balanced_set():
    assert read_hits({"hits": {"head": [5, 0, 2]}}, [5, 5, 5]) == {"head": [5, 0, 2]}
    with pytest.raises(ValueError, match="hits are more than the examples of a class"):
        read_hits({"hits": {"head": [5, 6, 2]}}, [5, 5, 5])


def test_one_client_cannot_make_the_loss_of_a_round_infinite(tmp_path, capsys):
    """The loss is that of the other two clients; if no client has a finite loss, the run has diverged."""

    def diverged(tensors, figures):
        figures["terms"] |= {"x": float("nan"), "supervised": 1e308}

    deploy(tmp_path / "one", toy_config("fedavg", rounds=1))
    grid = LocalGrid(tmp_path / "one", faults={("b", "train", 1): altered(diverged)})
    result = federate(tmp_path / "one", grid)
    assert "client b: its loss is not finite and not part of the round's loss" in capsys.readouterr().out
    others = [
        record_figures(reply.content)
        for name, message, reply in grid.exchanged
        if name in "ac" and message.metadata.message_type == "train"
    ]
    seen = sum(figures["examples_seen"] for figures in others)
    expected = sum(figures["terms"]["supervised"] for figures in others) / seen
    assert result.rounds[0]["loss"] == {"supervised": pytest.approx(expected)}
    assert result.rounds[0]["rejected"] == {}
    deploy(tmp_path / "all", toy_config("fedavg", rounds=1))
    faults = {(name, "train", 1): altered(diverged) for name in "abc"}
    result = federate(tmp_path / "all", LocalGrid(tmp_path / "all", faults=faults))
    assert has_diverged(result.summary)


def test_a_client_that_is_gone_comes_back_with_another_node_and_its_state(tmp_path, capsys):
    """It misses round 2, and trains in round 3 from what it kept in round 1."""
    table = toy_config("fedproto", rounds=3)
    deploy(tmp_path, table)
    grid = LocalGrid(tmp_path)

    def gone_in_round_2(message):
        figures = record_figures(message.content)
        if figures.get("kind") == "evaluate" and figures["round"] == 0:
            grid.folders.pop(101, None)
        if figures.get("kind") == "evaluate" and figures["round"] == 1:
            grid.folders[205] = tmp_path / "clients" / "b"

    grid.on_push = gone_in_round_2
    grid.delays = dict.fromkeys("abc", 3.0)
    result = federate(tmp_path, grid)
    assert result.rounds[1]["rejected"] == {"1": "not connected"}
    assert result.rounds[2]["rejected"] == {}
    train = [record_figures(reply.content) for name, message, reply in grid.exchanged if name == "b"]
    assert [figures["started_from"] for figures in train if figures["kind"] == "train"] == [-1, 0]
    out = capsys.readouterr().out
    assert "client b: not connected any more" in out
    assert "client b: connected again" in out


def test_all_clients_gone_is_a_clear_end(tmp_path):
    deploy(tmp_path, toy_config("fedproto", rounds=3), wait_seconds=20.0)
    grid = LocalGrid(tmp_path)

    def all_gone(message):
        if record_figures(message.content).get("round") == 1:
            grid.folders.clear()

    grid.on_push = all_gone
    with pytest.raises(UserError, match=r"Round 2: none of the clients answered .* deploy resume"):
        federate(tmp_path, grid)
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "none of the clients answered" in status["error"]
    assert len(Folder(tmp_path / "server" / "run").rounds()) == 1


# ---- rounds are idempotent ----


def counting(monkeypatch):
    """The rounds in which clients trained, in order."""
    trained, original = [], ClientWork._trained

    def counted(self, task, *rest):
        trained.append((self.settings.name, task["round"]))
        return original(self, task, *rest)

    monkeypatch.setattr(ClientWork, "_trained", counted)
    return trained


def test_a_message_that_is_delivered_twice_trains_once(tmp_path, monkeypatch):
    trained = counting(monkeypatch)
    deploy(tmp_path, toy_config("fedproto", rounds=1))
    grid = LocalGrid(tmp_path)
    federate(tmp_path, grid)
    (message, first), *_ = [
        (m, r) for name, m, r in grid.exchanged if name == "b" and m.metadata.message_type == "train"
    ]
    again = call(tmp_path / "clients" / "b", message)
    assert trained.count(("b", 0)) == 1
    assert record_figures(again.content) == record_figures(first.content)
    for name, value in record_tensors(first.content).items():
        assert torch.equal(record_tensors(again.content)[name], value)


def test_a_client_that_dies_after_it_stored_its_round_trains_once(tmp_path, monkeypatch):
    """The process dies between the write and the answer; Flower reports the crash, and the server sends again."""
    trained = counting(monkeypatch)
    table = toy_config("fedproto", rounds=2)
    members = deploy(tmp_path, table)
    crashes = []

    def crash(message, reply):
        crashes.append(1)
        return [reply] if len(crashes) > 1 else [Message(Error(8, "crashed"), reply_to=message)]

    result = federate(tmp_path, LocalGrid(tmp_path, faults={("b", "train", 2): crash}))
    assert len(crashes) == 2
    assert trained.count(("b", 1)) == 1
    assert without_time(result.rounds) == without_time(played(Config.of(table), members).rounds)


class DiedError(BaseException):
    """The server is killed."""


def dies_in(kind, round):
    """The server dies when it sends this message."""

    def dies(message):
        figures = record_figures(message.content)
        if (figures.get("kind"), figures.get("round")) == (kind, round):
            raise DiedError

    return dies


@pytest.mark.parametrize("checkpoint_every", [1, 2])
def test_a_server_that_died_continues_from_its_last_checkpoint(checkpoint_every, tmp_path, monkeypatch):
    """It dies in round 4, after clients have trained in it; with a checkpoint of every second round, they go back."""
    trained = counting(monkeypatch)
    table = toy_config("fedproto", rounds=5, run={"checkpoint_every": checkpoint_every}, method={"pull": 3.0})
    members = deploy(tmp_path, table)
    grid = LocalGrid(tmp_path)
    grid.on_push = dies_in("evaluate", 3)
    with pytest.raises(DiedError):
        federate(tmp_path, grid)
    result = federate(tmp_path, LocalGrid(tmp_path), resume=True)
    assert without_time(result.rounds) == without_time(played(Config.of(table), members).rounds)
    assert sorted(trained) == sorted((name, round) for name in "abc" for round in range(5))


def test_clients_go_back_if_the_server_repeats_a_round_with_another_message(tmp_path, monkeypatch):
    """Client c fails in round 1 and the server dies in round 3. Then round 1 is repeated, and c does not fail."""
    trained = counting(monkeypatch)
    table = toy_config("fedproto", rounds=3, run={"checkpoint_every": 3}, method={"pull": 3.0})
    members = deploy(tmp_path, table)
    grid = LocalGrid(tmp_path, faults={("c", "train", 1): nothing})
    grid.on_push = dies_in("train", 2)
    with pytest.raises(DiedError):
        federate(tmp_path, grid)
    assert sorted(trained) == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0), ("c", 1)]
    result = federate(tmp_path, LocalGrid(tmp_path), resume=True)
    assert without_time(result.rounds) == without_time(played(Config.of(table), members).rounds)
    assert trained.count(("a", 0)) == 1  # its first message is the same
    assert trained.count(("a", 1)) == 2  # its second is not, because the first lacked client c


def test_more_rounds_than_first_asked_for(tmp_path):
    table = toy_config("fedavg", rounds=2)
    members = deploy(tmp_path, table)
    federate(tmp_path)
    longer = federate(tmp_path, resume=True, rounds=3)
    reference = toy_config("fedavg", rounds=3)
    assert without_time(longer.rounds) == without_time(played(Config.of(reference), members).rounds)
    assert len(federate(tmp_path, resume=True).rounds) == 3  # as many as were last asked for
    with pytest.raises(UserError, match="Continue it with `protofed deploy resume`"):
        federate(tmp_path)


def test_a_run_whose_balanced_test_set_is_lost_says_so(tmp_path):
    deploy(tmp_path, toy_config("fedavg", rounds=1))
    federate(tmp_path)
    file = tmp_path / "server" / "balanced.npz"
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(UserError, match=r"balanced\.npz does not exist. If the server had this file"):
        federate(tmp_path, resume=True, rounds=2)
    file.write_bytes(content)
    assert len(federate(tmp_path, resume=True, rounds=2).rounds) == 2


def test_a_client_that_lost_its_state_is_named_after_a_restart_of_the_server(tmp_path, capsys):
    """Client c has never uploaded anything, so it has lost nothing."""
    deploy(tmp_path, toy_config("fedproto"))
    federate(tmp_path, LocalGrid(tmp_path, faults={("c", "train", 1): raised, ("c", "train", 2): raised}))
    for name in "bc":
        shutil.rmtree(tmp_path / "clients" / name / "store")
    capsys.readouterr()
    federate(tmp_path, resume=True, rounds=3)
    said = [line for line in capsys.readouterr().out.splitlines() if "state is lost" in line]
    assert said == ["client b: its earlier state is lost, it started again from its initial weights"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "federation.json is missing"),
        ('{"run": "x", "descriptions": {"a": {}}}', "federation.json is damaged"),
        (f'{{"run": "{"0" * 32}", "descriptions": {{}}}}', "federation.json is damaged"),
    ],
)
def test_a_run_is_not_resumed_without_its_id_and_its_clients(content, problem, tmp_path):
    """With a new id, every client would start again from its initial weights."""
    deploy(tmp_path, toy_config("local", rounds=1))
    federate(tmp_path)
    file = tmp_path / "server" / "federation.json"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(UserError) as error:
        federate(tmp_path, resume=True, rounds=2)
    assert problem in str(error.value)
    assert f"Restore the file from a backup, or move {tmp_path / 'server' / 'run'}" in str(error.value)
    assert "protofed run" not in str(error.value)
    assert len(Folder(tmp_path / "server" / "run").rounds()) == 1


# ---- enrolment ----


def refusals(tmp_path, capsys, **server):
    """What the server says about nodes that it refuses, and its final error."""
    with pytest.raises(UserError) as problem:
        federate(tmp_path)
    return capsys.readouterr().out + str(problem.value)


def test_another_experiment_is_refused_by_name(tmp_path, capsys):
    deploy(tmp_path, toy_config(), wait_seconds=5.0)
    write_toml(tmp_path / "clients" / "b" / "experiment.toml", toy_config(train={"lr": 0.2}))
    said = refusals(tmp_path, capsys)
    assert "client b has another experiment file than the server" in said
    assert "2 of 3 clients have enrolled after 5 s, but 3 are needed" in said
    assert "Missing: b." in said


DESCRIPTION = {
    "input": {"shape": [4], "scale": 1.0, "mean": 0.0, "std": 1.0, "fill": None},
    "sizes": [6, 3, -1],
    "pixels": False,
    "counts": [[[0, 3], [1, 3]], [[0, 1]]],
    "images": [],
    "net": None,
    "group": "",
    "own": False,
    "dataset": "toy",
    "remark": "",
    "balanced": False,
}
"""What a client says about itself, if it has nothing to hide."""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        *(
            ({key: None}, f"{key} is missing")
            for key in ("pixels", "group", "dataset", "own", "counts", "input", "sizes")
        ),
        ({"counts": [[]]}, "counts of 1 sets instead of 2"),
        ({"counts": [[], [], []]}, "counts of 3 sets instead of 2"),
        ({"counts": [[[0, 10**30]], []]}, "a count is 10{30}"),
        ({"counts": [[[0, 7]], []]}, "counts have 7 labels of 6 examples"),
        ({"counts": [[[-1, 1]], []]}, "count 1 of class -1"),
        ({"counts": [[[10**9, 1]], []]}, "count 1 of class 1000000000"),
        ({"counts": [[["a", 1], [1, 1]], []]}, "some of its classes are names"),
        ({"counts": [[[0]], []]}, "not enough values"),
        ({"sizes": [10**13, 3, -1]}, "at most 10,000,000 examples"),
        ({"sizes": [6, 10**30, -1]}, "at most 10,000,000 examples"),
        ({"sizes": [6, 3, -7]}, "sizes"),
        ({"sizes": [6, 3]}, "sizes"),
        ({"own": "yes"}, "own is 'yes'"),
        ({"dataset": {"a": 1}}, "dataset is {'a': 1}"),
        ({"remark": "x" * 10_000}, "remark has 10000 characters"),
        ({"input": {"shape": [10**12]}}, "inputs of shape"),
        ({"input": {"shape": []}}, "inputs of shape"),
        ({"input": {"shape": [4], "mask": []}}, "input has the key 'mask'"),
        ({"input": {"shape": [4], "scale": "x"}}, "scale of inputs is 'x'"),
        ({"input": {"shape": [4], "mean": [0.0] * 3}}, "mean of inputs is"),
        ({"pixels": True}, "inputs of shape"),
        ({"net": {"name": "mlp", "hidden": [10**7, 10**7]}}, "a net with [0-9,]* parameters"),
        ({"net": {"name": "cnn"}}, "cnn"),
        ({"net": [{"name": "mlp"}, {"name": "mlp"}]}, "net is"),
        ({"net": {"name": "mlp", "hidden": [1] * 10_000}}, "net is"),
    ],
)
def test_a_description_that_the_server_cannot_work_with_is_refused(change, problem):
    config = Config.of(toy_config())
    assert checked_description({**DESCRIPTION, "name": "b"}, config, ()) == DESCRIPTION
    with pytest.raises(ValueError, match=problem):
        checked_description(DESCRIPTION | change, config, ())


def test_a_description_without_a_net_is_refused():
    with pytest.raises(ValueError, match="KeyError 'net'"):
        checked_description({key: DESCRIPTION[key] for key in DESCRIPTION if key != "net"}, Config.of(toy_config()), ())


def test_a_malformed_description_does_not_end_the_run_of_the_others(tmp_path, capsys):
    deploy(tmp_path, toy_config(), min_clients=2, wait_seconds=5.0)

    def malformed(tensors, figures):
        del figures["pixels"]

    result = federate(tmp_path, LocalGrid(tmp_path, faults={("b", "query.enrol", 0): altered(malformed)}))
    assert "client b cannot take part with what it says about itself: pixels is missing." in capsys.readouterr().out
    assert [row["name"] for row in result.clients] == ["a", "c"]


def test_a_name_without_a_registered_key_cannot_be_taken(tmp_path, capsys):
    deploy(tmp_path, toy_config(), wait_seconds=5.0, node_ids={"a": 100, "c": 999})
    said = refusals(tmp_path, capsys)
    assert "node 100: refused" not in said
    assert "node 101: refused: it calls itself b, but server.toml and the registered keys give this name to no" in said
    assert (
        "node 102: refused: it calls itself c, but server.toml and the registered keys give this name to node" in said
    )


def test_another_version_a_strange_name_and_a_taken_name_are_refused(tmp_path, capsys, monkeypatch):
    deploy(tmp_path, toy_config(), wait_seconds=5.0)
    write_toml(tmp_path / "clients" / "b" / "client.toml", {"name": "a"})
    said = refusals(tmp_path, capsys)
    assert "node 101: refused: client number 0 is already online as node 100" in said
    write_toml(tmp_path / "clients" / "b" / "client.toml", {"name": "x"})
    monkeypatch.setattr("protofed.deploy.client_work.__version__", "0.0.1")
    said = refusals(tmp_path, capsys)
    assert "node 101: refused: it is called 'x'. server.toml lists a, b, c." in said
    assert "client a has protofed 0.0.1, the server" in said


def test_enough_clients_start_without_the_others(tmp_path):
    """The two that are there are numbered anew, and the run is that of a federation of two."""
    table = toy_config("fedavg")
    config = Config.of(table)
    deploy(tmp_path, table, min_clients=2, wait_seconds=5.0)
    result = federate(tmp_path, LocalGrid(tmp_path, ("a", "b")))
    members = toy_members(config, ([0, 1, 2] * 4, [0, 1] * 3))
    assert without_time(result.rounds) == without_time(played(config, members).rounds)


def test_the_clients_of_a_resumed_run_enrol_under_their_own_names(tmp_path, capsys):
    """Client b is not in the run, so that c has its number."""
    deploy(tmp_path, toy_config("local", rounds=1), min_clients=2, wait_seconds=5.0)
    federate(tmp_path, LocalGrid(tmp_path, ("a", "c")))
    capsys.readouterr()
    federate(tmp_path, LocalGrid(tmp_path, ("a", "c")), resume=True, rounds=2)
    out = capsys.readouterr().out
    assert "client c: enrolled" in out
    assert "client b" not in out
    status = json.loads((tmp_path / "server" / "status.json").read_text())["clients"]
    assert [status[name]["enrolled"] for name in "abc"] == [True, False, True]


def test_a_client_that_server_toml_lists_no_more_is_left_out_of_a_resumed_run(tmp_path):
    deploy(tmp_path, toy_config("local", rounds=1))
    federate(tmp_path)
    write_toml(tmp_path / "server" / "server.toml", {"clients": ["a", "b"], "classes": [0, 1, 2], "wait_seconds": 5.0})
    result = federate(tmp_path, resume=True, rounds=2)
    assert [row["rejected"] for row in result.rounds] == [{}, {"2": "not connected"}]


def test_a_node_that_claims_a_name_keeps_to_it_when_clients_are_numbered_again(tmp_path, capsys):
    """A second node says that it is b. Then a is missing, so that b becomes 0 and c becomes 1, and c is gone."""
    table = toy_config("fedproto", rounds=3)
    deploy(tmp_path, table, min_clients=2, wait_seconds=5.0)
    grid = LocalGrid(tmp_path, ("x", "b", "c", "b"))
    del grid.folders[100]

    def gone_in_round_2(message):
        if record_figures(message.content).get("round") == 1:
            grid.folders.pop(102, None)

    grid.on_push = gone_in_round_2
    result = federate(tmp_path, grid)
    assert [row["name"] for row in result.clients] == ["b", "c"]
    assert result.rounds[2]["rejected"] == {"1": "not connected"}
    assert "node 103: refused: client number 1 is already online as node 101" in capsys.readouterr().out


def test_nets_that_cannot_be_averaged_are_named(tmp_path):
    deploy(tmp_path, toy_config("fedavg"))
    write_toml(
        tmp_path / "clients" / "b" / "client.toml", {"name": "b", "net": {"name": "mlp", "hidden": [7], "dim": 5}}
    )
    with pytest.raises(UserError, match=r"fedavg cannot average nets of different shapes: .* \(Client 0 is a, 1 is b"):
        federate(tmp_path)


def test_a_client_whose_data_changed_is_refused_when_the_run_goes_on(tmp_path, capsys):
    table = toy_config("fedavg")
    deploy(tmp_path, table, wait_seconds=5.0)
    federate(tmp_path)
    other = toy_members(Config.of(table), ([0, 1, 2], [0, 1] * 3, [1, 2]))
    write_client_data(tmp_path / "clients" / "a" / "data.npz", other, 0)
    with pytest.raises(UserError, match="Missing: a"):
        federate(tmp_path, resume=True, rounds=3)
    assert "client a has other data, another net or another policy" in capsys.readouterr().out


def test_problems_of_clients_are_not_told_to_the_server(tmp_path):
    """The text of an error can have values of the data, so it stays in the client's log."""
    deploy(tmp_path, toy_config(), wait_seconds=5.0)
    np.savez(tmp_path / "clients" / "b" / "data.npz", x=np.full((4, 4), np.nan), y=[0, 1, 0, 1])
    with pytest.raises(UserError):
        federate(tmp_path)
    out = (tmp_path / "server" / "server.log").read_text()
    assert "node 101: refused: it does not describe itself: it failed (UserError); client.log" in out
    assert "not finite" not in out
    assert "16 of 16 values are missing (NaN)" in (tmp_path / "clients" / "b" / "client.log").read_text()


def test_the_folder_of_the_server_has_no_model_of_a_client(tmp_path):
    deploy(tmp_path, toy_config("fedproto"))
    federate(tmp_path)
    result = Result.load(tmp_path / "server" / "run")
    assert result.state.kept == {}
    assert result.prototypes.mean.shape == (3, 1, 5)
    with pytest.raises(UserError, match="is on the client's own machine"):
        result.predict(examples([0]).x.numpy(), client=1)


def test_the_app_reads_the_runs_options(tmp_path, monkeypatch):
    from flwr.app import Context, RecordDict

    from protofed.deploy import server_app

    asked = {}
    monkeypatch.setattr(server_app, "serve", lambda grid, folder, **options: asked.update(folder=folder, **options))
    context = Context(1, 1, {}, RecordDict(), {"folder": str(tmp_path), "resume": True, "rounds": 7})
    server_app.app(grid=LocalGrid(tmp_path), context=context)
    assert asked == {"folder": tmp_path, "resume": True, "rounds": 7}
    assert serve


def test_what_cannot_be_had_is_null_and_said_once(tmp_path, capsys):
    deploy(tmp_path, toy_config("fednh", eval={"personal": True}, run={"monitor": 1}))
    result = federate(tmp_path)
    out = capsys.readouterr().out
    assert out.count("note: eval.personal: no client has a balanced test set (balanced.npz)") == 1
    assert out.count("note: run.monitor: the bounds need the clients' data") == 1
    assert result.summary["personal"]["v"] is None
    assert not (tmp_path / "server" / "run" / "bounds.jsonl").exists()


def test_without_flower_protofed_works_and_says_what_is_missing(monkeypatch):
    from importlib.metadata import PackageNotFoundError

    from protofed.engines.flower import installed

    code = "import sys, protofed.cli, protofed.experiment.run; assert 'flwr' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

    def missing(name):
        raise PackageNotFoundError(name)

    installed.require_flower()
    monkeypatch.setattr(installed, "version", missing)
    with pytest.raises(UserError, match=r"needs Flower, which is not installed. Run pip install 'protofed\[flower\]'"):
        installed.require_flower()
    monkeypatch.setattr(installed, "version", lambda name: "1.42.0")
    with pytest.raises(UserError, match=r"needs Flower 1.41.0, but 1.42.0 is installed"):
        installed.require_flower()


def test_flower_is_no_engine_of_a_run_on_one_machine():
    with pytest.raises(UserError, match=r"docs/deploy\.md"):
        protofed.run({"run": {"rounds": 1}, "data": {"clients": 2}, "engine": {"name": "flower"}})
