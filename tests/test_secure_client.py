"""Secure sums in a deployed federation: what a client refuses, how long it keeps secrets, and signed keys."""

from __future__ import annotations

import json
import shutil
import stat

import pytest
import torch
from flwr.app import Message

from grid import NAMES, LocalGrid, call, deploy, federate, without_time
from protofed.deploy.certificates import write_client_key
from protofed.deploy.ledger import read_ledger
from protofed.deploy.secure_client import SECRETS_FILE, TOTALS_FILE
from protofed.engines.flower.wire import record_figures, record_tensors, to_records
from protofed.trust.secure_sum.protocol import SecureClient
from test_secure_deployed import DEADLINE, gone, secure

# ---- what a client refuses ----


def changed(message, **secure_figures):
    """The server's message with other figures about the secure sum."""
    figures = record_figures(message.content)
    figures["secure"] |= secure_figures
    return Message(
        to_records(record_tensors(message.content), figures),
        message.metadata.dst_node_id,
        message.metadata.message_type,
    )


def asked(grid, kind, client, action):
    """Let the grid do something with the folder of a client before it delivers a message of this kind to it."""

    def on_push(message):
        folder = grid.folders.get(message.metadata.dst_node_id)
        if message.metadata.message_type == kind and folder.name == client:
            message.metadata.__dict__["_message_id"] = "before"
            action(folder, message)

    grid.on_push = on_push


def called(folder, message):
    """The answer to a message, as Flower would deliver it."""
    message.metadata.__dict__["_message_id"] = "test"
    return call(folder, message)


def test_a_client_never_reveals_both_shares_of_one_client(tmp_path):
    deploy(tmp_path, secure(rounds=1))
    grid, answers = LocalGrid(tmp_path), []

    def ask(folder, message):
        for uploaded in ([0, 1], [0, 1], [0, 2], [0, 1, 2]):
            answers.append(called(folder, changed(message, uploaded=uploaded)))

    asked(grid, "query.reveal", "a", ask)
    (row,) = federate(tmp_path, grid).rounds
    first, again, *others = answers
    figures = record_figures(first.content)
    assert (figures["seeds_of"], figures["keys_of"]) == ([0, 1], [2])
    tensors = record_tensors(again.content)
    assert all(torch.equal(value, tensors[name]) for name, value in record_tensors(first.content).items())
    for answer in others:
        assert "asked twice for reveal" in answer.error.reason
    assert row["void"] is False  # the true question came too late for client a, and b and c are enough


def test_a_client_masks_one_upload_per_attempt(tmp_path):
    deploy(tmp_path, secure(rounds=1))
    grid, answers = LocalGrid(tmp_path), []

    def ask(folder, message):
        tensors, figures = record_tensors(message.content), record_figures(message.content)
        node = message.metadata.dst_node_id
        answers.append(called(folder, Message(to_records(tensors, figures), node, "train")))
        answers.append(called(folder, Message(to_records(tensors, {**figures, "epochs": 2}), node, "train")))
        del figures["secure"]
        answers.append(called(folder, Message(to_records(tensors, figures), node, "train")))

    asked(grid, "train", "a", ask)
    (row,) = federate(tmp_path, grid).rounds
    first, other, plain = answers
    used = next(
        reply for name, message, reply in grid.exchanged if (name, message.metadata.message_type) == ("a", "train")
    )
    assert torch.equal(record_tensors(first.content)["masked"], record_tensors(used.content)["masked"])
    assert "asked twice for train" in other.error.reason
    assert "nothing leaves without" in plain.error.reason
    assert row["rejected"] == {}
    lines = [line for line in read_ledger(tmp_path / "clients" / "a") if line["kind"] == "train"]
    assert {tensor["name"] for line in lines for tensor in line["tensors"]} == {"masked"}


@pytest.mark.parametrize(
    ("kind", "questions"),
    [
        (
            "query.keys",
            [({"threshold": 1}, "would hide nothing"), ({"attempt": "../x"}, "nothing about a secure sum")],
        ),
        ("query.shares", [({"threshold": 3}, "does not have the secrets")]),
        (
            "query.reveal",
            [
                ({"uploaded": [0]}, "1 clients uploaded"),
                ({"uploaded": [0, 7, 8]}, "1 clients uploaded"),
                ({"uploaded": "all"}, "does not say which"),
                ({"attempt": "0" * 32}, "does not have the secrets"),
            ],
        ),
    ],
)
def test_a_client_refuses_what_would_weaken_the_sum(first_round, kind, questions):
    """Each question is asked before the true one, in the same round."""
    folder, message = first_round(kind)
    for figures, reason in questions:
        assert reason in called(folder, changed(message, **figures)).error.reason
    assert not called(folder, changed(message)).has_error()


def test_a_client_insists_on_the_threshold_of_its_own_file(first_round):
    """The server promises all clients 2 of 3, then wants a sum over 4: with 0.6 the client needs 3 of these."""
    folder, message = first_round("query.shares")
    tensors, figures = record_tensors(message.content), record_figures(message.content)
    tensors["secure/keys"] = torch.cat([tensors["secure/keys"], tensors["secure/keys"][:1] + 1])
    figures["secure"]["keys"].append(3)
    answer = called(folder, Message(to_records(tensors, figures), message.metadata.dst_node_id, "query.shares"))
    assert "a total of 2 of 4 clients only" in answer.error.reason


@pytest.fixture
def first_round(tmp_path):
    """The folder of client a and the server's message of a kind, before the client has answered it."""
    deploy(tmp_path, secure(rounds=1))

    class StopError(Exception):
        pass

    def before(kind):
        grid, caught = LocalGrid(tmp_path), []

        def catch(folder, message):
            caught.append((folder, message))
            raise StopError

        asked(grid, kind, "a", catch)
        with pytest.raises(StopError):
            federate(tmp_path, grid)
        return caught[0]

    return before


def test_secrets_are_the_owners_alone_and_do_not_outlive_the_round(first_round):
    folder, message = first_round("query.reveal")
    (secrets,) = folder.glob(f"store/*/{SECRETS_FILE}")
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    kept = json.loads(secrets.read_text())
    private = kept["secrets"]["private"]
    assert not called(folder, message).has_error()
    assert json.loads(secrets.read_text())["secrets"] is None
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret.encode() in content or bytes.fromhex(secret) in content for secret in private), path


def test_after_a_run_no_secrets_are_left(tmp_path):
    """Also if the round was void, and the server did not ask for shares."""
    deploy(tmp_path, secure(rounds=1), **DEADLINE)
    faults = {(name, "train", 1): gone for name in "bc"}
    assert federate(tmp_path, LocalGrid(tmp_path, faults=faults)).rounds[0]["void"] is True
    assert list(tmp_path.glob(f"clients/*/store/*/{SECRETS_FILE}")) == []


def test_a_repeated_round_needs_the_same_clients(tmp_path):
    """A server that was interrupted repeats its round: totals of other clients could be compared with the first."""
    deploy(tmp_path, secure(rounds=2), **DEADLINE)
    grid = LocalGrid(tmp_path)
    expected = federate(tmp_path, grid)
    totals = json.loads((tmp_path / "clients" / "a" / TOTALS_FILE).read_text())
    assert sorted(key.partition("round ")[2] for key in totals) == ["0", "0", "1", "1"]
    lose_rounds(tmp_path)
    again = federate(tmp_path, LocalGrid(tmp_path, faults={("b", "train", 2): gone}), resume=True)
    assert without_time(again.rounds)[0] == without_time(expected.rounds)[0]
    assert again.rounds[1]["void"] is True
    log = (tmp_path / "server" / "server.log").read_text()
    assert "repeats a round with other clients" in log


def lose_rounds(tmp_path):
    """Let the server forget its run, as after a crash before the first checkpoint."""
    for path in (tmp_path / "server" / "run" / "checkpoint").iterdir():
        path.unlink()
    (tmp_path / "server" / "run" / "rounds.jsonl").write_text("")


def test_a_repeated_round_needs_the_same_message(tmp_path):
    """The others would answer as before, so that the difference of the totals is that of two uploads of a."""
    deploy(tmp_path, secure("fedavg", rounds=1), **DEADLINE)
    federate(tmp_path, LocalGrid(tmp_path))
    lose_rounds(tmp_path)
    grid = LocalGrid(tmp_path)

    def other_prototypes(folder, message):
        tensors = record_tensors(message.content)
        changed = {
            name: t + 1 if name.startswith("down/") and t.is_floating_point() else t for name, t in tensors.items()
        }
        assert any(not torch.equal(changed[name], tensors[name]) for name in tensors)
        message.content = to_records(changed, record_figures(message.content))

    asked(grid, "train", "a", other_prototypes)
    federate(tmp_path, grid, resume=True)
    log = (tmp_path / "server" / "server.log").read_text()
    assert "client a: rejected in round 1: the server repeats a round with other clients or another message" in log
    (answer,) = [line for line in read_ledger(tmp_path / "clients" / "a") if line["kind"] == "train"]
    assert answer["round"] == 0  # the one of the first time


def test_an_upload_of_an_earlier_run_needs_the_same_clients(tmp_path):
    """A run with the same seed has the same uploads: two totals over different clients could be compared."""
    deploy(tmp_path, secure(rounds=1), **DEADLINE)
    federate(tmp_path, LocalGrid(tmp_path))
    shutil.rmtree(tmp_path / "server" / "run")
    (row,) = federate(tmp_path, LocalGrid(tmp_path, faults={("c", "train", 1): gone})).rounds
    assert row["void"] is True
    assert "with other clients or another message" in (tmp_path / "server" / "server.log").read_text()


@pytest.mark.parametrize("epochs", [0, 0.5])
def test_a_client_does_not_train_less_than_the_experiment_says(first_round, epochs):
    """If all others are told not to train, the total shows the upload of one."""
    folder, message = first_round("train")
    tensors, figures = record_tensors(message.content), record_figures(message.content)
    less = Message(to_records(tensors, figures | {"epochs": epochs}), message.metadata.dst_node_id, "train")
    assert "other training than its experiment" in called(folder, less).error.reason


def test_secrets_of_an_interrupted_run_are_deleted_with_the_next_one(first_round):
    folder, message = first_round("query.keys")
    old = folder / "store" / "an-old-run"
    old.mkdir(parents=True)
    for name in (SECRETS_FILE, f".{SECRETS_FILE}.new"):
        (old / name).write_text("{}")
    assert not called(folder, message).has_error()
    assert list(old.iterdir()) == []


# ---- signed keys ----


def introduce(root):
    """Keys for all clients, as `protofed deploy init --auth` writes them."""
    (root / "server" / "keys").mkdir()
    for name in NAMES:
        folder = root / "clients" / name
        write_client_key(folder / "client.key", folder / "client.pub")
        (root / "server" / "keys" / f"{name}.pub").write_bytes((folder / "client.pub").read_bytes())
        for other in NAMES:
            if other != name:
                (root / "clients" / other / "peers").mkdir(exist_ok=True)
                (root / "clients" / other / "peers" / f"{name}.pub").write_bytes((folder / "client.pub").read_bytes())


def test_signed_keys_are_passed_on_and_believed(tmp_path):
    deploy(tmp_path, secure(rounds=1))
    introduce(tmp_path)
    (row,) = federate(tmp_path).rounds
    assert row["rejected"] == {}
    assert row["void"] is False


def test_a_client_with_another_key_is_left_out_and_stops_nobody(tmp_path):
    deploy(tmp_path, secure(rounds=1))
    introduce(tmp_path)
    write_client_key(tmp_path / "clients" / "b" / "client.key", tmp_path / "clients" / "b" / "client.pub")
    (row,) = federate(tmp_path).rounds
    assert row["rejected"] == {"1": "keys: its keys are not signed with the key that is registered for it"}
    assert row["void"] is False


def test_a_server_that_puts_its_own_keys_in_place_of_a_clients_gets_no_shares(tmp_path):
    """Without signatures client a cannot notice it, and would send shares that the server can decrypt."""
    deploy(tmp_path, secure(rounds=1))
    introduce(tmp_path)
    grid, answers = LocalGrid(tmp_path), []

    def deceive(folder, message):
        tensors, figures = record_tensors(message.content), record_figures(message.content)
        false = tensors["secure/keys"].clone()
        false[1] = torch.frombuffer(bytearray(b"".join(SecureClient(1, 0, 2).public_keys())), dtype=torch.uint8)
        node = message.metadata.dst_node_id
        wrong = [
            ({**tensors, "secure/keys": false}, figures["secure"]),
            (tensors, {**figures["secure"], "names": ["a", "c", "b"]}),  # of another client
            (tensors, {**figures["secure"], "names": ["a", "c", "c"]}),  # one client twice
            (tensors, {**figures["secure"], "names": ["a", "x", "c"]}),  # of nobody
            ({"secure/keys": tensors["secure/keys"]}, {**figures["secure"], "signatures": []}),
        ]
        for changed_tensors, changed_figures in wrong:
            content = to_records(changed_tensors, {**figures, "secure": changed_figures})
            answers.append(called(folder, Message(content, node, "query.shares")))
        (folder / "peers").rename(folder / "nobody")
        answers.append(called(folder, Message(to_records(wrong[0][0], figures), node, "query.shares")))

    asked(grid, "query.shares", "a", deceive)
    federate(tmp_path, grid)
    reasons = [answer.error.reason if answer.has_error() else "" for answer in answers]
    assert ["not signed by a client that it knows" in reason for reason in reasons] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert ["names and signatures of all clients" in reason for reason in reasons][2:5] == [True, False, True]
    assert reasons[-1] == ""
