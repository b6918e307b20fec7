"""Secure sums in a deployed federation: the rounds of a simulation, drop-outs, and what the server sees."""

from __future__ import annotations

import json
import shutil
import stat

import numpy as np
import pytest
import torch
from flwr.app import Message

from grid import NAMES, LocalGrid, altered, call, deploy, federate, toy_config, without_time, write_toml
from protofed.deploy.certificates import write_client_key
from protofed.deploy.client_store import ClientStore
from protofed.deploy.client_work import ClientWork
from protofed.deploy.ledger import read_ledger
from protofed.deploy.secure_client import SECRETS_FILE, TOTALS_FILE
from protofed.engines.flower.wire import record_figures, record_tensors, to_records
from protofed.errors import ConfigError, UserError
from protofed.experiment.config import Config
from protofed.messages import flatten as flat
from protofed.trust.secure_sum.field import PRIME
from protofed.trust.secure_sum.protocol import SecureClient
from protofed.trust.secure_sum.totals import summed_upload
from toys import played, runner_of

SECURE = {"secure_sum": True, "threshold": 0.6}
"""Two of three clients are enough."""
STEPS = ("query.keys", "query.shares", "train", "query.reveal")


DEADLINE = {"round_seconds": 5.0}


def secure(method="fedproto", /, rounds=2, **sections):
    return toy_config(method, rounds, **{"privacy": SECURE, **sections})


def gone(message, reply):
    """A client that vanishes: its answer never comes."""
    return []


SLOW = {
    "fedproto": {"run": {"sample": 2}, "system": {"slow": 0.5}, "train": {"epochs": 3}},
    "fedavg": {"method": {"weights": "equal"}},
    **{name: {} for name in ("fedrep", "fedprox", "fedper", "fedbabu", "fedrod", "ditto")},
}


@pytest.mark.parametrize(
    ("method", "sections"),
    [("fedproto", {}), ("fedavg", {}), *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW.items())],
)
def test_the_rounds_are_those_of_the_simulator(tmp_path, method, sections):
    """Bit for bit: the same numbers are quantised and added, and masks cancel exactly."""
    table = secure(method, **sections)
    members = deploy(tmp_path, table)
    ours, expected = federate(tmp_path), played(Config.of(table), members)
    assert without_time(ours.rounds) == without_time(expected.rounds)
    assert all(torch.equal(value, flat(expected.server)[name]) for name, value in flat(ours.state.server).items())
    assert [row["void"] for row in ours.rounds] == [False] * 2
    assert ours.rounds[0]["up_bytes"] == 8 * ours.rounds[0]["up_params"]


# ---- drop-outs ----


@pytest.mark.parametrize("step", STEPS)
def test_drop_outs_between_any_two_steps(tmp_path, step):
    """Round 1: two of three clients vanish after a step, and the round is void. Round 2: one does, which is no harm."""
    faults = {("b", step, 1): gone, ("c", step, 1): gone, ("b", step, 2): gone}
    table = secure()
    members = deploy(tmp_path, table, **DEADLINE)
    result = federate(tmp_path, LocalGrid(tmp_path, faults=faults))
    first, second = result.rounds
    assert (first["void"], second["void"]) == (True, False)
    assert "2 are needed (privacy.threshold)" in first["void_reason"] or first["void_reason"] == "no upload can be used"
    assert set(second["rejected"]) == ({"1"} if step != "query.reveal" else set())

    runner = runner_of(Config.of(table), members)
    if step in ("train", "query.reveal"):  # in round 1 all have trained
        runner.engine.train(0, runner._messages(range(3)))
    uploads = [report.upload for report in runner.engine.train(1, runner._messages(range(3)))]
    left = [upload for upload in uploads if upload.client != 1 or step == "query.reveal"]
    total = summed_upload(runner.method, left, range(3), 1, SECURE["threshold"])
    expected = flat(runner.method.aggregate(members.server(1, 1), runner.server, [total]))
    assert all(torch.equal(value, expected[name]) for name, value in flat(result.state.server).items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_nonsense_of_one_client_is_a_drop_out(tmp_path, kind):
    def spoil(tensors, figures):
        for name in list(tensors):
            tensors[name] = tensors[name][:, :-1] if tensors[name].dim() == 2 else tensors[name] * 0 - 1

    deploy(tmp_path, secure(rounds=1))
    result = federate(tmp_path, LocalGrid(tmp_path, faults={("b", kind, 1): altered(spoil)}))
    assert result.rounds[0]["void"] is False
    assert set(result.rounds[0]["rejected"]) == ({"1"} if kind != "query.reveal" else set())


def test_keys_with_which_no_secret_is_possible_stop_nobody_else(tmp_path):
    def zero(tensors, figures):
        tensors["keys"] = tensors["keys"] * 0

    deploy(tmp_path, secure(rounds=1))
    (row,) = federate(tmp_path, LocalGrid(tmp_path, faults={("a", "query.keys", 1): altered(zero)})).rounds
    assert row["rejected"] == {"0": "keys: its public keys cannot be used"}
    assert row["void"] is False


# ---- what the server sees ----


def plain_uploads(root):
    """What each client would have sent, from its own store: numbers as they are, and as they are summed."""
    uploads = {}
    for name in NAMES:
        work = ClientWork(root / "clients" / name)
        (folder,) = (work.folder / "store").iterdir()
        uploads[name] = ClientStore(work.folder / "store", folder.name, work.config.method).read(0).upload
    return uploads


def test_the_server_never_receives_an_upload_that_is_not_masked(tmp_path):
    """Every byte that clients send in two runs with equal data. Equal totals, and nothing else of uploads is equal."""
    views, states = [], []
    for name in ("one", "other"):
        deploy(tmp_path / name, secure(rounds=1))
        grid = LocalGrid(tmp_path / name)
        states.append(flat(federate(tmp_path / name, grid).state.server))
        views.append([(client, message, reply) for client, message, reply in grid.exchanged])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    masked = [
        {
            client: record_tensors(reply.content)
            for client, message, reply in view
            if message.metadata.message_type == "train"
        }
        for view in views
    ]
    for client in NAMES:
        one, other = masked[0][client], masked[1][client]
        assert set(one) == set(other) == {"masked"}
        assert not (one["masked"] == other["masked"]).any()  # equal numbers happen once in 2^61
    for root, view in zip(("one", "other"), views, strict=True):
        sent = b"".join(
            value.numpy().tobytes() for *_, reply in view for value in record_tensors(reply.content).values()
        )
        figures = json.dumps([record_figures(reply.content) for *_, reply in view])
        assert "class" not in figures
        for upload in plain_uploads(tmp_path / root).values():
            row = upload["prototypes/mean"][0].double().numpy()
            for form in (row.astype(np.float32), row, np.rint(row * 2**24).astype(np.int64)):
                assert form.tobytes() not in sent
        counts = [record_figures(reply.content)["counts"] for _, message, reply in view[:3]]
        assert counts == [[[], []]] * 3  # nor how many examples of each class a client has


def test_messages_to_clients_have_no_shares_that_the_server_could_read(tmp_path):
    """The shares that the server passes on are encrypted: they are not those that clients reveal."""
    deploy(tmp_path, secure(rounds=1))
    grid = LocalGrid(tmp_path)
    federate(tmp_path, grid)
    by_kind = {kind: [] for kind in STEPS}
    for _, message, reply in grid.exchanged:
        if message.metadata.message_type in by_kind:
            by_kind[message.metadata.message_type].append(record_tensors(reply.content))
    relayed = b"".join(tensors["shares"].numpy().tobytes() for tensors in by_kind["query.shares"])
    for tensors in by_kind["query.reveal"]:
        for share in tensors["seeds_of"].numpy():
            assert share.tobytes()[-32:] not in relayed
        assert "keys_of" not in tensors  # nobody dropped out


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


# ---- what is refused at the start ----


@pytest.mark.parametrize(
    "sections",
    [{"method": {"name": "fedtgp"}}, {"trust": {"prototypes": "median"}}, {"method": {"pooling": "written"}}],
)
def test_what_a_simulation_refuses_a_deployment_refuses_with_the_same_sentence(tmp_path, sections):
    table = secure(**sections)
    with pytest.raises(ConfigError, match=r"privacy\.secure_sum: ") as simulated:
        Config.of(table)
    deploy(tmp_path, secure())
    for part in ("server", "clients/a"):
        write_toml(tmp_path / part / "experiment.toml", table)
    for start in (lambda: federate(tmp_path), lambda: ClientWork(tmp_path / "clients" / "a")):
        with pytest.raises(ConfigError) as deployed:
            start()
        assert deployed.value.problems == simulated.value.problems


def test_attackers_in_secure_sums_are_refused(tmp_path):
    deploy(tmp_path, secure(attack={"share": 0.4}))
    with pytest.raises(UserError, match=r"attack.share: in a deployed federation with privacy.secure_sum"):
        federate(tmp_path)


def test_a_policy_can_demand_secure_sums(tmp_path):
    deploy(tmp_path, toy_config(rounds=1))
    write_toml(tmp_path / "clients" / "a" / "policy.toml", {"require_secure_sum": True})
    (row,) = federate(tmp_path).rounds
    assert row["rejected"] == {"0": "its policy allows uploads in secure sums only (require_secure_sum)"}
    deploy(tmp_path / "secure", secure(rounds=1))
    write_toml(tmp_path / "secure" / "clients" / "a" / "policy.toml", {"require_secure_sum": True})
    assert federate(tmp_path / "secure").rounds[0]["rejected"] == {}


def test_a_policy_that_forbids_the_upload_is_heard_before_the_sum_begins(tmp_path):
    deploy(tmp_path, secure(rounds=1))
    write_toml(tmp_path / "clients" / "a" / "policy.toml", {"may_send": []})
    (row,) = federate(tmp_path).rounds
    assert row["rejected"] == {"0": "keys: its policy does not allow to send prototypes (may_send)"}
    assert row["void"] is False


def test_a_masked_upload_keeps_all_bits_on_its_way():
    from protofed.deploy.secure_wire import pack_vector, unpack_vector

    vector = np.array([0, 1, PRIME - 1], np.uint64)
    assert unpack_vector(pack_vector(vector), 3).numpy().astype(np.uint64).tolist() == vector.tolist()
    for wrong in (
        torch.tensor([-1, 0, 0]),
        torch.tensor([PRIME, 0, 0]),
        torch.zeros(3),
        torch.zeros(2, dtype=torch.long),
    ):
        with pytest.raises(ValueError, match="its masked upload"):
            unpack_vector({"masked": wrong}, 3)


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
