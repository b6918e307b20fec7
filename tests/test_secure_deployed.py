"""Secure sums in a deployed federation: the rounds of a simulation, drop-outs, and what the server sees."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from grid import NAMES, LocalGrid, altered, deploy, federate, toy_config, without_time, write_toml
from protofed.deploy.client_store import ClientStore
from protofed.deploy.client_work import ClientWork
from protofed.engines.flower.wire import record_figures, record_tensors
from protofed.errors import ConfigError, UserError
from protofed.experiment.config import Config
from protofed.messages import flatten as flat
from protofed.trust.secure_sum.field import PRIME
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
