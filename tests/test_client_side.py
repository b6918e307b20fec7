"""A client of a deployed federation: what leaves its machine, what it refuses, what it stores and reads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from grid import LocalGrid, call, deploy, federate, toy_config, toy_members, write_toml
from protofed.cli.models import export_command, predict_command
from protofed.core import Method, Nothing, Prototypes, Tensor
from protofed.data.npz_files import own_arrays, read_npz
from protofed.deploy.client_data import ClientData, read_balanced, read_client_data, write_balanced, write_client_data
from protofed.deploy.client_store import ClientStore, StoredRound
from protofed.deploy.client_work import ClientWork
from protofed.deploy.ledger import LEDGER_FILE, Ledger, read_ledger
from protofed.deploy.policy import Policy, PolicyError, kinds_sent
from protofed.engines.flower.wire import content_hash, record_figures, record_tensors, to_records
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.config import Config
from protofed.experiment.federation import Federation
from protofed.experiment.results import Result, State
from protofed.experiment.store import STORE_FILE
from protofed.messages import KeptModel, flatten
from protofed.methods import METHODS
from protofed.methods.fedproto import Bank
from protofed.methods.local import Local
from protofed.models.invitation import Invitation, write_invitation
from protofed.models.join import join
from protofed.models.newcomer_data import read_newcomer
from toys import examples, played


@pytest.fixture(autouse=True)
def _disk_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)


# ---- messages as records ----


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3), max_size=3), st.sampled_from([torch.float32, torch.int64, torch.bool, torch.uint8]))
def test_records_return_what_was_put_into_them(shape, dtype):
    tensors = {"": torch.ones(shape).to(dtype), "a/b": torch.zeros(shape).to(dtype)}
    figures = {"round": 3, "none": None, "terms": {"pull": 0.1}, "labels": [1, "two"]}
    content = to_records(tensors, figures)
    assert record_figures(content) == figures
    for name, value in record_tensors(content).items():
        assert value.dtype == dtype
        assert torch.equal(value, tensors[name])
    assert record_tensors(to_records({}, {})) == {}


def test_records_that_nobody_should_send_are_errors_and_never_unpickled():
    pickled = np.array([{"a": 1}], dtype=object)
    file = BytesIO()
    np.save(file, pickled, allow_pickle=True)
    archive = BytesIO()
    np.savez(archive, w=np.zeros(1))
    strange = [
        Array("float32", (1,), "torch.pickle", b"x"),
        Array("object", (1,), "numpy.ndarray", file.getvalue()),
        Array("float32", (1,), "numpy.ndarray", b"\x93NUMPY"),
        Array("float32", (1,), "numpy.ndarray", b"PK\x03\x04x"),
        Array("float32", (1,), "numpy.ndarray", archive.getvalue()),
        Array("float32", (1,), "numpy.ndarray", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1")),
        Array(
            "float32", (1,), "numpy.ndarray", npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**30},)}}")
        ),
    ]
    for array in strange:
        with pytest.raises(ValueError, match="the tensor w cannot be read"):
            record_tensors(RecordDict({"tensors": ArrayRecord({"/w": array})}))
    with pytest.raises(ValueError, match="no figures"):
        record_figures(RecordDict())
    with pytest.raises(ValueError, match="nested too deeply"):
        record_figures(RecordDict({"figures": ConfigRecord({"json": "[" * 100_000})}))


def npy(header: str) -> bytes:
    """A .npy file with this header and no values."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def test_the_hash_of_a_message_changes_with_every_part_of_it():
    one = {"a": torch.tensor([1.0, 2.0])}
    variants = [
        (one, {"round": 1}),
        (one, {"round": 2}),
        ({"b": one["a"]}, {"round": 1}),
        ({"a": one["a"].reshape(1, 2)}, {"round": 1}),
        ({"a": one["a"].double()}, {"round": 1}),
        ({"a": torch.tensor([1.0, 3.0])}, {"round": 1}),
    ]
    assert len({content_hash(*variant) for variant in variants}) == len(variants)
    both = {"a": torch.ones(1), "b": torch.zeros(1)}
    assert content_hash(both, {}) == content_hash(dict(reversed(both.items())), {})


# ---- what leaves a client ----


def test_a_client_says_nothing_about_a_class_that_it_lacks(tmp_path):
    """Client b has the classes 0 and 1; its messages have two prototypes, and class 2 is in none of them."""
    deploy(tmp_path, toy_config("fedproto"))
    grid = LocalGrid(tmp_path)
    federate(tmp_path, grid)
    for kind, reply in [(m.metadata.message_type, r) for name, m, r in grid.exchanged if name == "b"]:
        figures, tensors = record_figures(reply.content), record_tensors(reply.content)
        if kind == "query.enrol":
            assert [name for name, _ in figures["counts"][0]] == [0, 1]
            assert "labels" not in figures
        if kind == "train":
            assert tensors["prototypes/rows"].tolist() == [0, 1]
            assert tensors["prototypes/mean"].shape == (2, 5)
            assert sorted(tensors) == [f"prototypes/{part}" for part in ("mean", "rows", "shape", "support")]
        if kind == "evaluate":
            assert tensors == {}


def test_the_ledger_has_every_message_before_it_leaves(tmp_path):
    deploy(tmp_path, toy_config("fedproto"))
    write_toml(tmp_path / "clients" / "b" / "client.toml", {"name": "b", "keep_sent": True})
    grid = LocalGrid(tmp_path)
    federate(tmp_path, grid)
    folder = tmp_path / "clients" / "b"
    lines, sent = read_ledger(folder), [reply for name, _, reply in grid.exchanged if name == "b"]
    assert [line["kind"] for line in lines] == ["enrolment", "train", "evaluate", "train", "evaluate"]
    assert [line["round"] for line in lines] == [None, 0, 0, 1, 1]
    for line, reply in zip(lines, sent, strict=True):
        figures, tensors = record_figures(reply.content), record_tensors(reply.content)
        assert line["figures"] == figures
        assert {entry["name"]: entry["shape"] for entry in line["tensors"]} == {
            k: list(v.shape) for k, v in tensors.items()
        }
        assert line["sha256"] == content_hash(tensors, figures)
        with safe_open(folder / line["content"], "pt") as kept:
            assert json.loads(kept.metadata()["figures"]) == figures
            assert all(torch.equal(kept.get_tensor(name), value) for name, value in tensors.items())
    train = lines[1]
    assert train["tensors"][0] == {"name": "prototypes/mean", "shape": [2, 5], "dtype": "float32"}
    numbers = 4 * (2 * 5 + 2 + 2 + 3)  # means, supports, rows, shape: four bytes each
    assert train["bytes"] == numbers + len(json.dumps(train["figures"]))
    assert read_ledger(tmp_path / "clients" / "a")[1]["content"] is None


def test_nothing_leaves_if_the_ledger_cannot_be_written(tmp_path, monkeypatch):
    deploy(tmp_path, toy_config("fedproto"), wait_seconds=5.0)

    def full(self, *args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ledger, "record", full)
    grid = LocalGrid(tmp_path)
    with pytest.raises(UserError):
        federate(tmp_path, grid)
    assert all(reply.has_error() for _, _, reply in grid.exchanged)
    assert grid.exchanged[0][2].error.reason == "it failed, and cannot write to its folder"


def test_a_line_that_was_not_written_completely_does_not_hide_the_next(tmp_path):
    ledger = Ledger(tmp_path, False)
    ledger.record("train", {}, {"round": 0})
    with (tmp_path / LEDGER_FILE).open("a") as file:
        file.write('{"kind": "tr')
    ledger.record("train", {}, {"round": 1})
    assert [(line["kind"], line["round"]) for line in read_ledger(tmp_path)] == [
        ("train", 0),
        ("unreadable", None),
        ("train", 1),
    ]


@pytest.mark.parametrize("kind", ["train", "../../outside", None])
def test_a_test_of_an_unknown_kind_is_refused_before_anything_is_computed(kind, tmp_path):
    """Its kind would be a part of a file's name and, if it is "train", count as a round with an upload."""
    deploy(tmp_path, toy_config("fedproto", rounds=1))
    folder = tmp_path / "clients" / "b"
    write_toml(folder / "client.toml", {"name": "b", "keep_sent": True})
    grid = LocalGrid(tmp_path)
    federate(tmp_path, grid)
    (message,) = (m for name, m, _ in grid.exchanged if name == "b" and m.metadata.message_type == "evaluate")
    before = sorted(path for path in tmp_path.rglob("*") if path.suffix != ".log")
    stored = next(folder.glob("store/*/message.safetensors")).read_bytes()
    message.content = to_records(record_tensors(message.content), {**record_figures(message.content), "kind": kind})
    assert call(folder, message).has_error()
    assert sorted(path for path in tmp_path.rglob("*") if path.suffix != ".log") == before
    assert next(folder.glob("store/*/message.safetensors")).read_bytes() == stored
    assert [line["kind"] for line in read_ledger(folder)] == ["enrolment", "train", "evaluate", "refusal"]
    assert "must be one of evaluate, validation, examine" in (folder / "client.log").read_text()


@pytest.mark.parametrize("kind", ["../x", "a/b", "a\\b", "", "."])
def test_the_ledger_refuses_a_kind_that_cannot_be_in_a_file_name(kind, tmp_path):
    with pytest.raises(ValueError, match="only lower-case letters"):
        Ledger(tmp_path, True).record(kind, {}, {"round": 0})
    assert list(tmp_path.iterdir()) == []


# ---- the policy ----


def with_policy(tmp_path, method="fedproto", name="b", **policy):
    """A federation in which one client has this policy. Returns the result and the messages of the client."""
    deploy(tmp_path, toy_config(method), wait_seconds=5.0)
    write_toml(tmp_path / "clients" / name / "policy.toml", {"may_send": ["prototypes"], **policy})
    grid = LocalGrid(tmp_path)
    result = federate(tmp_path, grid)
    return result, [(message.metadata.message_type, reply) for own, message, reply in grid.exchanged if own == name]


def test_what_may_not_be_sent_does_not_leave_and_is_logged_by_name(tmp_path, capsys):
    result, messages = with_policy(tmp_path, "fedavg")
    reason = "its policy does not allow to send weights (may_send)"
    assert [row["rejected"] for row in result.rounds] == [{"1": reason}] * 2
    assert f"client b: rejected in round 1: {reason}" in capsys.readouterr().out
    assert [reply.has_error() for kind, reply in messages if kind == "train"] == [True, True]
    lines = read_ledger(tmp_path / "clients" / "b")
    assert [line["kind"] for line in lines] == ["enrolment", "refusal", "evaluate", "refusal", "evaluate"]
    assert lines[1]["figures"]["reason"] == reason
    assert not list((tmp_path / "clients" / "b" / "store").glob(f"*/{STORE_FILE}"))  # it did not even train


def test_prototypes_alone_may_leave_without_figures(tmp_path):
    result, messages = with_policy(tmp_path, may_report=[])
    enrolment, *rest = [reply for _, reply in messages]
    assert record_figures(enrolment.content)["counts"] == [[], []]
    train = [record_figures(reply.content) for kind, reply in messages if kind == "train"]
    assert [figures["terms"] for figures in train] == [{}, {}]
    assert all(reply.has_error() for kind, reply in messages if kind == "evaluate")
    assert result.rounds[1]["rejected"] == {}
    assert result.clients[1]["accuracy_head"] is None
    assert result.clients[0]["accuracy_head"] is not None
    assert rest


def test_personal_models_are_not_scored_if_scores_may_not_leave(tmp_path):
    deploy(tmp_path, toy_config("fedproto", eval={"personal": True}))
    for name in "abc":
        (tmp_path / "clients" / name / "balanced.npz").write_bytes((tmp_path / "server" / "balanced.npz").read_bytes())
    write_toml(tmp_path / "clients" / "b" / "policy.toml", {"may_report": ["counts", "losses"]})
    grid = LocalGrid(tmp_path)
    result = federate(tmp_path, grid)
    hits = {
        name: record_figures(reply.content)["hits"]
        for name, message, reply in grid.exchanged
        if message.metadata.message_type == "train"
    }
    assert hits["b"] == {}
    assert hits["a"]
    assert [row["rejected"] for row in result.rounds] == [{}, {}]


def test_classes_of_images_and_tests_of_pixels_follow_the_policy(tmp_path):
    """One of four images is a cat, and class 1 has one pixel."""
    deploy(tmp_path, toy_config())
    masks = np.zeros((4, 2, 2), np.uint8)
    masks[0, 0, 0] = 1
    part = Examples.of(np.zeros((4, 1, 2, 2), np.float32), np.array([0, 1, 1, 1]), mask=masks)
    data = ClientData((0, 1), part, part, image_classes=("cat", "dog"))
    work = ClientWork(tmp_path / "clients" / "a")
    assert work._image_classes(data) == [["cat", 1], ["dog", 1]]
    work.policy.check_scores(data)
    work.policy = Policy(min_examples_per_class=2)
    assert work._image_classes(data) == [["dog", 1]]
    with pytest.raises(PolicyError, match="tests of pixels"):
        work.policy.check_scores(data)
    work.policy.check_scores(data.without_classes([1]))
    work.policy = Policy(may_report=("losses",))
    assert work._image_classes(data) == []


def test_an_upload_is_refused_while_a_class_has_too_few_examples(tmp_path):
    """Client c has one example of class 1 and four of class 2. No message mentions class 1 or that it is small."""
    result, messages = with_policy(tmp_path, name="c", min_examples_per_class=2)
    reason = "its policy allows no upload while a class has fewer than 2 examples (min_examples_per_class)"
    assert [row["rejected"] for row in result.rounds] == [{"2": reason}] * 2
    assert record_figures(messages[0][1].content)["counts"] == [[[2, 4]], []]


def test_small_classes_can_be_dropped(tmp_path):
    """As if client c had no example of class 1: the federation is that of three clients of which c lacks it."""
    result, messages = with_policy(tmp_path, name="c", min_examples_per_class=2, small_classes="drop")
    train = [record_tensors(reply.content) for kind, reply in messages if kind == "train"]
    assert [tensors["prototypes/rows"].tolist() for tensors in train] == [[2], [2]]
    assert record_figures(messages[0][1].content)["sizes"][0] == 4
    assert [row["rejected"] for row in result.rounds] == [{}, {}]
    assert result.clients[2]["classes"] == "2"


def own_files(tmp_path, own, test, classes=None, **policy):
    """A federation of own files with labels by name, without `classes` in server.toml; b has the policy."""
    deploy(tmp_path, toy_config("fedproto", rounds=2))
    write_toml(tmp_path / "server" / "server.toml", {"clients": list("abc"), "wait_seconds": 5.0})
    (tmp_path / "server" / "balanced.npz").unlink()
    write_toml(tmp_path / "clients" / "b" / "policy.toml", {"may_send": ["prototypes"], **policy})
    for name in "abc":
        y, y_test = (np.array(list(text)) for text in ((own, test) if name == "b" else ("rrrrrrsssss", "rs")))
        x, x_test = (np.random.default_rng(3).normal(size=(len(part), 4)) for part in (y, y_test))
        names = {"classes": np.array(list(classes))} if classes else {}
        np.savez(tmp_path / "clients" / name / "data.npz", x=x, y=y, x_test=x_test, y_test=y_test, **names)
    grid = LocalGrid(tmp_path)
    return federate(tmp_path, grid), [record_figures(reply.content) for name, _, reply in grid.exchanged if name == "b"]


@pytest.mark.parametrize(("own", "test"), [("rrrrrrqq", "rr"), ("rrrrrr", "rrq"), ("rrrrrrqq", "rrqqqqqq")])
def test_a_class_that_is_dropped_may_be_one_that_the_federation_lacks(own, test, tmp_path):
    """Client b alone has q, in its training set, its test set or both; nothing that leaves it has q."""
    result, figures = own_files(tmp_path, own, test, min_examples_per_class=5, small_classes="drop")
    assert [row["rejected"] for row in result.rounds] == [{}, {}]
    assert result.clients[1]["accuracy_head"] is not None
    assert figures[0]["sizes"] == [6, 2, -1]
    assert '"q"' not in json.dumps(figures)
    assert result.state.members.labels == ("r", "s")


def test_a_file_may_list_classes_that_nobody_has(tmp_path):
    result, _ = own_files(tmp_path, "rrrs", "rs", classes="qrst")
    assert [row["rejected"] for row in result.rounds] == [{}, {}]
    assert result.state.members.labels == ("r", "s")


def test_renumbered_data_have_the_same_examples():
    part = Examples.of(np.zeros((3, 2), np.float32), np.array([2, 0, 2]))
    data = ClientData(("q", "r", "s"), part, part).with_labels(("s", "t", "q"))
    assert data.train.labels.tolist() == [0, 2, 0]
    with pytest.raises(UserError, match="there is no class 's'"):
        ClientData(("q", "r", "s"), part, part).with_labels(("q", "r", "t"))
    masks = np.array([[[0, 2], [255, 2]]], np.uint8)
    image = Examples.of(np.zeros((1, 1, 2, 2), np.float32), np.array([2]), mask=masks)
    data = ClientData((0, 1, 2), image, image).with_labels((2, 0))
    assert data.train.mask.tolist() == [[[1, 0], [255, 0]]]


def answer_repeatedly(folder: Path, downs: Sequence[float]) -> list[str]:
    """What a client answers to a server that asks for round 0 again and again, with prototypes of these values."""
    work, said = ClientWork(folder), []
    labels = list(work.data().classes)
    task = {"run": "0" * 32, "round": 0, "number": 1, "clients": 3, "labels": labels, "epochs": None, "oldest": 0}
    task |= {"kind": "train", "experiment": work.config.digest(), "examined": False}
    dim = work.members(task, work.data()).nets[0].dim
    for value in downs:
        down = Bank(Prototypes(torch.full((len(labels), 1, dim), value), torch.ones(len(labels), 1)))
        try:
            reply = work.train(task, {f"down/{name}": tensor for name, tensor in flatten(down).items()})
        except PolicyError as problem:
            said.append(str(problem))
            continue
        work.ledger.record(reply.kind, reply.tensors, reply.figures)
        said.append(content_hash(reply.tensors, {}))
    return said


def test_a_server_that_repeats_a_round_gets_no_second_upload_with_other_noise(tmp_path):
    """With many of them, the noise could be averaged away."""
    config = toy_config("fedproto") | {"privacy": {"encoder": "frozen", "noise": 4.0}}
    deploy(tmp_path, config, wait_seconds=5.0)
    first, other, again = answer_repeatedly(tmp_path / "clients" / "b", [0.0, 1.0, 0.0])
    assert other == "it has made an upload of this round before, and one with other noise must not leave"
    assert again == first
    (tmp_path / "clients" / "b" / "store" / ("0" * 32) / STORE_FILE).unlink()  # the ledger still knows of it
    assert answer_repeatedly(tmp_path / "clients" / "b", [0.0, 2.0]) == [other, other]


def test_every_upload_that_leaves_counts_for_max_rounds(tmp_path):
    deploy(tmp_path, toy_config("fedproto"), wait_seconds=5.0)
    write_toml(tmp_path / "clients" / "b" / "policy.toml", {"may_send": ["prototypes"], "max_rounds": 2})
    said = answer_repeatedly(tmp_path / "clients" / "b", [0.0, 1.0, 2.0, 1.0])
    assert said[2] == "its policy allows 2 uploads of a run only (max_rounds)"
    assert said[3] == said[1] != said[0]  # the upload that has left may leave again


def test_the_number_of_rounds_can_be_limited(tmp_path):
    result, _ = with_policy(tmp_path, max_rounds=1)
    assert [row["rejected"] for row in result.rounds] == [
        {},
        {"1": "its policy allows 1 uploads of a run only (max_rounds)"},
    ]


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"may_send": ["prototype"]}, 'Did you mean "prototypes"?'),
        ({"may_send": ["counts"]}, "Put it into may_report"),
        ({"may_report": ["names"]}, "may_report: got"),
        ({"min_examples": 3}, 'min_examples: unknown key. Did you mean "min_examples_per_class"?'),
        ({"small_classes": "hide"}, 'small_classes: got "hide"'),
    ],
)
def test_a_policy_with_a_mistake_is_an_error(policy, problem, tmp_path):
    write_toml(tmp_path / "policy.toml", policy)
    with pytest.raises(UserError) as error:
        Policy.read(tmp_path / "policy.toml")
    assert problem in str(error.value)
    assert "policy.toml" in str(error.value)


def test_a_policy_may_name_the_fields_of_the_experiments_own_method(tmp_path):
    write_toml(tmp_path / "policy.toml", {"may_send": ["medians"]})
    with pytest.raises(UserError, match="may_send has 'medians'"):
        Policy.read(tmp_path / "policy.toml")
    assert Policy.read(tmp_path / "policy.toml", Own()).may_send == ("medians",)


class Medians(NamedTuple):
    medians: Tensor


class Own(Method[Nothing, Nothing, Medians, Nothing]):
    """A method that is not part of protofed."""


def test_the_kinds_of_every_method_are_its_fields():
    kinds = {name: sorted(kinds_sent(method)) for name, method in METHODS.items()}
    assert kinds["local"] == []
    assert kinds["fedproto"] == kinds["fedtgp"] == ["prototypes"]
    assert kinds["fedavg"] == ["weights"]
    assert kinds["creff"] == ["gradients", "weights"]
    assert kinds["protomargin"] == ["local_margins", "prototypes", "weights"]
    assert kinds["fesem"] == ["num_classes", "weights"]


def test_a_field_that_is_only_called_prototypes_is_not_allowed_as_such():
    class Pretended(NamedTuple):
        prototypes: Tensor
        weights: Prototypes

    class Sly(Method[Nothing, Nothing, Pretended, Nothing]):
        pass

    assert kinds_sent(Sly) == {"prototypes (Tensor)", "weights (Prototypes)"}


# ---- the store ----


def stored(round, value, message="m"):
    return StoredRound(
        round, message, KeptModel({"w": torch.tensor([value])}), {"a": torch.tensor([value])}, {"n": round}
    )


def test_the_store_returns_states_and_answers(tmp_path):
    store = ClientStore(tmp_path, "0" * 32, Local())
    assert store.newest(5) is None
    for round in range(4):
        store.write(stored(round, float(round)), oldest=0)
    assert store.rounds() == [3, 2, 1, 0]
    assert store.newest(3).kept.params["w"].item() == 2.0
    assert store.answer(3, "m").upload["a"].item() == 3.0
    assert store.answer(3, "another") is None
    assert store.answer(9, "m") is None
    store.write(
        stored(1, 7.0, "other"), oldest=0
    )  # the server repeats round 1: later rounds started from another state
    assert store.rounds() == [1, 0]
    assert store.newest(9).kept.params["w"].item() == 7.0


def test_the_store_keeps_what_the_server_may_go_back_to(tmp_path):
    store = ClientStore(tmp_path, "0" * 32, Local())
    for round in range(5):
        store.write(stored(round, 0.0), oldest=max(0, round - 1))
    assert store.rounds() == [4, 3, 2]  # the server may continue after 3 rounds, from the state of round 2


@pytest.mark.parametrize("column", ["upload", "state"])
def test_a_damaged_state_is_noticed(column, tmp_path):
    store = ClientStore(tmp_path, "0" * 32, Local())
    store.write(stored(0, 1.0), oldest=0)
    store.write(stored(1, 2.7182), oldest=0)
    path = store.folder / STORE_FILE
    content = path.read_bytes()
    value = torch.tensor([2.7182]).numpy().tobytes()  # the upload and the state of round 1 end with it
    assert content.count(value) == 2
    place = content.find(value) if column == "upload" else content.rfind(value)
    path.write_bytes(content[:place] + b"\1" + content[place + 1 :])
    assert store.newest(5).round == 0
    assert store.answer(1, "m") is None
    path.write_bytes(path.read_bytes()[:100])
    assert store.newest(5) is None
    store.write(stored(2, 3.0), oldest=0)  # a database that cannot be read is replaced
    assert store.rounds() == [2]


def test_the_run_that_the_server_names_is_not_a_path(tmp_path):
    deploy(tmp_path, toy_config())
    work = ClientWork(tmp_path / "clients" / "a")
    task = {"run": "../../x", "experiment": work.config.digest(), "number": 0, "clients": 3, "round": 0}
    with pytest.raises(UserError, match="32 hexadecimal digits"):
        work.train(task, {})
    with pytest.raises(UserError, match="another experiment"):
        work.train({**task, "run": "0" * 32, "experiment": "x"}, {})
    with pytest.raises(UserError, match="client 3 of 3"):
        work.evaluate({**task, "run": "0" * 32, "number": 3}, {})


# ---- data files ----


def test_a_written_file_has_exactly_the_clients_examples(tmp_path):
    members = toy_members(Config.of(toy_config()))
    write_client_data(tmp_path / "data.npz", members, 1)
    data = read_client_data(tmp_path / "data.npz", Config.of({}))
    assert torch.equal(data.train.take(torch.arange(6))[0], members.train[1].take(torch.arange(6))[0])
    assert data.train.labels.tolist() == members.train[1].labels.tolist()
    assert (data.classes, data.dataset, data.validation) == ((0, 1, 2), "toy", None)
    assert write_balanced(tmp_path / "balanced.npz", members)
    assert read_balanced(tmp_path / "balanced.npz")[0].labels.tolist() == [0, 1, 2] * 5
    assert read_balanced(tmp_path / "none.npz") == ()


def test_own_files_are_read_as_a_federation_reads_arrays(tmp_path):
    """Also which examples are held out, which depends on the number of the client."""
    part = examples([0, 1, 2] * 10, 3)
    x, y = part.x.numpy(), np.array(["low", "mid", "high"])[part.labels.numpy()]
    np.savez(tmp_path / "data.npz", x=x, y=y)
    federation = Federation([(x, y), (x, y)])
    for number in (0, 1):
        data = read_client_data(tmp_path / "data.npz", Config.of({}), "a", number).with_labels(federation.labels)
        assert torch.equal(data.train.x, federation.train[number].x)
        assert torch.equal(data.test.labels, federation.test[number].labels)
    assert data.classes == ("high", "low", "mid")
    other = data.with_labels(("low", "none", "mid", "high"))
    assert {int(label) for label in other.train.labels.unique()} == {0, 2, 3}
    with pytest.raises(UserError, match="there is no class 'high'"):
        data.with_labels(("low", "mid"))


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": np.zeros((3, 2))}, "has no array y"),
        ({"x": np.full((3, 2), np.inf), "y": [0, 1, 2]}, "data, inputs: 6 of 6 values are"),
        ({"x": np.zeros((3, 2)), "y": [0, 1]}, "data: got inputs [3, 2] and labels [2]"),
        ({"x": np.zeros((3, 2)), "y": [0, 1, 1], "x_test": np.zeros((1, 2))}, "has no array y_test"),
        ({"x_train": np.zeros((3, 2)), "y_train": [0, 1, 1]}, "is incomplete or was changed"),
    ],
)
def test_a_data_file_with_a_mistake_is_explained(arrays, problem, tmp_path):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(UserError) as error:
        read_client_data(tmp_path / "data.npz", Config.of({}), "a", 2)
    assert problem in str(error.value)
    assert "data.npz" in str(error.value)


@pytest.mark.parametrize(
    ("names", "missing"),
    [("y", "x"), ("x", "y"), ("x y x_test", "y_test"), ("x y y_test", "x_test"), ("x mask x_test y_test", "mask_test")],
)
def test_own_files_of_clients_and_newcomers_have_the_same_rules(names, missing, tmp_path):
    np.savez(tmp_path / "own.npz", **{name: np.zeros((4, 2)) for name in names.split()})
    message = f"own.npz has no array {missing}; it has {', '.join(names.split())}. Add it."
    with pytest.raises(UserError, match=re.escape(message)):
        own_arrays(tmp_path / "own.npz", read_npz(tmp_path / "own.npz"))
    with pytest.raises(UserError, match=re.escape(message)):
        read_client_data(tmp_path / "own.npz", Config.of({}))
    with pytest.raises(UserError, match=re.escape(message)):
        read_newcomer(tmp_path / "own.npz")


def test_own_arrays_are_inputs_with_labels_or_masks_and_a_test_set():
    x, y, mask = np.zeros((2, 3)), np.arange(2), np.ones((2, 3))
    assert own_arrays(Path("f"), {"x": x, "y": y}) == ((x, y), None)
    assert own_arrays(Path("f"), {"x": x, "y": y, "mask": mask}) == ((x, mask), None)
    assert own_arrays(Path("f"), {"x": x, "mask": y, "x_test": mask, "mask_test": x}) == ((x, y), (mask, x))


def test_masks_are_renumbered_and_dropped_with_their_images():
    masks = np.zeros((3, 4, 4), np.uint8)
    masks[0, 0, 0], masks[1, 1, 1], masks[2] = 1, 2, 255
    federation = Federation([(np.zeros((3, 1, 4, 4), np.uint8), masks)], [None], 3)
    data = ClientData(federation.labels, federation.train[0], federation.test[0])
    other = data.with_labels((2, 1, 0))
    assert other.train.class_counts(3).tolist() == [1, 1, 30]
    assert (other.train.mask == 255).sum() == 16
    assert data.without_classes([2]).train.class_counts(3).tolist() == [15, 1, 0]


# ---- the model of a client ----


@pytest.mark.parametrize("method", ["fedproto", "fedavg", "fedbabu"])
def test_a_client_predicts_with_its_model_as_in_a_run(method, tmp_path, capsys):
    table = toy_config(method)
    members = deploy(tmp_path, table)
    federate(tmp_path)
    runner = played(Config.of(table), members)
    x, folder = members.balanced[0].x.numpy(), tmp_path / "clients" / "b"
    state = State(runner.config, members, runner.server, runner.engine.state())
    np.save(tmp_path / "x.npy", x)
    predict_command(folder, tmp_path / "x.npy", out=tmp_path / "y.npy")
    assert np.array_equal(np.load(tmp_path / "y.npy"), state.model(1).predict(x))
    export_command(folder, out=tmp_path / "b.safetensors")
    with safe_open(tmp_path / "b.safetensors", "pt") as file:
        assert all(torch.equal(file.get_tensor(name), value) for name, value in state.model(1).params.items())
    if method == "fedproto":
        assert {"distance"} <= set(ClientWork(folder).model().predict(x, "prototype").dtype.names)
    with pytest.raises(UserError, match="is the folder of one client"):
        predict_command(folder, tmp_path / "x.npy", client=1)
    with pytest.raises(UserError, match="Give either --client"):
        export_command(tmp_path / "server" / "run")


def test_a_client_that_never_took_part_has_no_model(tmp_path):
    deploy(tmp_path, toy_config())
    with pytest.raises(UserError, match="has no round of a federation"):
        ClientWork(tmp_path / "clients" / "b").model()


# ---- clients that differ, and a newcomer ----


def own_clients(tmp_path, method="fedproto"):
    """Three clients with their own files: other columns, other nets, other classes, all by name."""
    table = toy_config(method, rounds=4, net={"hidden": [8], "dim": 12}, train={"lr": 0.05})
    names = np.array(["cat", "dog", "fox", "owl"])
    holdings = {"a": ([0, 1], 4), "b": ([1, 2, 3], 6), "c": ([0, 3], 9)}
    draw = np.random.RandomState(0)
    for name, (held, columns) in holdings.items():
        y = np.repeat(held, 15)
        x = draw.normal(size=(len(y), columns)) + 3 * np.eye(4, columns)[y]
        folder = tmp_path / "clients" / name
        write_toml(folder / "experiment.toml", table)
        net = {"net": {"name": "mlp", "hidden": [16, 8], "dim": 12}} if name == "b" else {}
        write_toml(folder / "client.toml", {"name": name, **net})
        write_toml(folder / "policy.toml", {"may_send": ["prototypes"]})
        np.savez(folder / "data.npz", x=x, y=names[y])
    write_toml(tmp_path / "server" / "experiment.toml", table)
    write_toml(tmp_path / "server" / "server.toml", {"clients": list(holdings)})
    return draw


def test_three_clients_that_differ_in_everything_and_a_fourth_that_joins(tmp_path):
    draw = own_clients(tmp_path)
    result = federate(tmp_path)
    assert result.labels == ("cat", "dog", "fox", "owl")
    assert [row["classes"] for row in result.clients] == ["cat dog", "dog fox owl", "cat owl"]
    assert [row["net"] for row in result.clients] == [
        "mlp(hidden=[8], dim=12)",
        "mlp(hidden=[16, 8], dim=12)",
        "mlp(hidden=[8], dim=12)",
    ]
    assert [row["train"] for row in result.clients] == [24, 36, 24]
    assert result.summary["accuracy"]["head"]["mean"] > 0.6
    loaded = Result.load(tmp_path / "server" / "run")
    assert [net.shape for net in loaded.state.members.nets] == [(4,), (6,), (9,)]
    assert [net.name for net in loaded.state.members.nets] == [row["net"] for row in result.clients]
    stored = b"".join(path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file())
    weights = flatten(
        ClientStore(tmp_path / "clients" / "a" / "store", run_id(tmp_path), loaded.state.config.method).newest(9).kept
    )
    assert all(value.numpy().tobytes() not in stored for value in weights.values() if value.numel() > 20)
    y = np.repeat([0, 3], 40)
    np.savez(
        tmp_path / "new.npz",
        x=draw.normal(size=(80, 7)) + 3 * np.eye(4, 7)[y],
        y=np.array(loaded.labels)[y],
    )
    net = Config.of({"net": {"name": "mlp", "dim": 12}}).nets[0]
    newcomer = join(loaded, *read_newcomer(tmp_path / "new.npz"), net=net, epochs=8)
    assert newcomer.classes == ["cat", "owl"]
    assert newcomer.downloaded == 2 * 12  # one prototype per class
    assert newcomer.model.net.shape == (7,)
    assert newcomer.accuracy["head"] > 0.8
    write_invitation(Invitation.of(loaded), tmp_path / "prototypes.safetensors")
    with safe_open(tmp_path / "prototypes.safetensors", "pt") as file:
        assert all(name.startswith("prototypes/") for name in file.keys())  # noqa: SIM118
    again = join(tmp_path / "prototypes.safetensors", *read_newcomer(tmp_path / "new.npz"), net=net, epochs=8)
    assert again.figures() == newcomer.figures()


def run_id(tmp_path):
    return json.loads((tmp_path / "server" / "federation.json").read_text())["run"]


def test_classes_can_be_ordered_by_the_server(tmp_path):
    own_clients(tmp_path)
    classes = ["owl", "fox", "dog", "cat", "hen"]
    write_toml(tmp_path / "server" / "server.toml", {"clients": ["a", "b", "c"], "classes": classes})
    result = federate(tmp_path)
    assert result.labels == tuple(classes)
    assert [row["classes"] for row in result.clients] == ["dog cat", "owl fox dog", "owl cat"]


def test_a_class_that_the_server_does_not_list_is_refused_by_name(tmp_path, capsys):
    own_clients(tmp_path)
    settings = {"clients": ["a", "b", "c"], "classes": ["owl", "dog", "cat"], "wait_seconds": 5.0}
    write_toml(tmp_path / "server" / "server.toml", settings)
    with pytest.raises(UserError, match="Missing: b"):
        federate(tmp_path)
    assert "client b has the class 'fox', which server.toml does not list in classes" in capsys.readouterr().out


def test_a_method_that_averages_weights_refuses_clients_that_differ(tmp_path):
    own_clients(tmp_path, "fedproto")
    for path in tmp_path.rglob("experiment.toml"):
        write_toml(path, toy_config("fedavg"))
    with pytest.raises(UserError, match=r"fedavg cannot average nets .* \(Client 0 is a, 1 is b, 2 is c\.\)"):
        federate(tmp_path)
