"""Federations of real processes: SuperLink, SuperNodes and the commands that an operator uses. Together a few minutes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from deployed import Federation, assert_same_rounds, federation, until
from protofed.deploy.certificates import write_authority, write_client_key
from protofed.deploy.flower_commands import flower_environment, flower_program
from protofed.deploy.processes import Child, descendants, end_processes, free_port
from protofed.deploy.secure_client import SECRETS_FILE
from protofed.experiment.config import Config
from protofed.experiment.run import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
RECIPES = Path(__file__).parents[1] / "recipes"
DIGITS = str(RECIPES / "digits-n3.toml")


def local_rounds(file: str, clients: int, rounds: int, *sets: str) -> list[dict]:
    """The rows of `protofed run` with the same seed and clients."""
    return run(Config.load(file, [f"data.clients={clients}", f"run.rounds={rounds}", *sets])).rounds


def refusal(made: Federation, *words: str) -> str:
    """What Flower says when a node with these arguments tries to connect. It must end without having connected."""
    command = [flower_program("flower-supernode"), "--superlink", f"127.0.0.1:{made.port}", "--port", str(free_port())]
    log = made.path / "stranger" / f"{len(list((made.path / 'stranger').iterdir()))}.log"
    child = Child([*command, "--max-retries", "1", *words], flower_environment(log.parent), log)
    try:
        code = until(lambda: child.ended(), "the end of a node that is refused")
    finally:
        end_processes([child], ())
    text = log.read_text()
    assert code == 1, text
    assert "SuperNode ID" not in text
    return text


def test_a_federation_with_tls_and_keys_equals_a_local_run_and_refuses_strangers(tmp_path):
    with federation(tmp_path / "D", DIGITS, "--clients", "a,b,c", "--tls", "--auth", port=free_port()) as made:
        up = made.start("up", made.path, "--rounds", "2")
        up.says("client a: enrolled")
        ca = str(made.client("a") / "ca.pem")
        write_client_key(tmp_path / "wrong.key", tmp_path / "wrong.pub")
        write_authority(tmp_path / "other", "other")
        (made.path / "stranger").mkdir()
        assert "[code: 2001]" in refusal(made, "--root-certificates", ca)
        assert "[code: 2004]" in refusal(
            made, "--root-certificates", ca, "--auth-supernode-private-key", str(tmp_path / "wrong.key")
        )
        key = str(made.client("a") / "client.key")
        other = str(tmp_path / "other" / "ca.pem")
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(
            made, "--root-certificates", other, "--auth-supernode-private-key", key
        )
        assert "305" in refusal(made, "--insecure")
        assert up.ends() == 0, up.text()
        made.is_gone()
        for words in ("a        | connected to", "server   | round 2: 3 of 3 clients answered", "finished:completed"):
            assert words in up.text()
        assert f"Written to {made.server / 'run'}" in up.text()
        assert_same_rounds(made.rounds(), local_rounds(DIGITS, 3, 2))
        state = json.loads(made.do("status", made.path, "--json"))
        assert (state["state"], state["round"], state["server"]) == ("finished", 2, "stopped")
        assert [client["last_round"] for client in state["clients"].values()] == [2, 2, 2]
        sent = json.loads(made.do("sent", made.client("a"), "--json"))
        trained = [message for message in sent if message["kind"] == "train"]
        assert [message["round"] for message in trained] == [0, 1]
        assert "round 2: 3 of 3" in made.do("logs", made.path, "server")
        logs = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".log", ".out"))
        assert b"PRIVATE" not in logs


def test_secure_sums_equal_those_of_a_local_run(tmp_path):
    """Four messages per round and client, each in a process of its own that finds the secrets in the client's store."""
    secure = "privacy.secure_sum=true"
    with federation(
        tmp_path / "D", DIGITS, "--clients", "a,b,c", "--tls", "--auth", "--set", secure, port=free_port()
    ) as made:
        assert "require_secure_sum = true" in (made.client("a") / "policy.toml").read_text()
        assert sorted(path.name for path in (made.client("a") / "peers").iterdir()) == ["b.pub", "c.pub"]
        up = made.start("up", made.path, "--rounds", "2")
        assert up.ends() == 0, up.text()
        made.is_gone()
        assert "round 2: 3 of 3 clients answered" in up.text()
        assert_same_rounds(made.rounds(), local_rounds(DIGITS, 3, 2, secure))
        assert [row["void"] for row in made.rounds()] == [False, False]
        for name in "abc":
            sent = json.loads(made.do("sent", made.client(name), "--json"))
            kinds = [message["kind"] for message in sent if message["round"] == 0]
            assert kinds[:4] == ["keys", "shares", "train", "reveal"]
            keys = next(message for message in sent if message["kind"] == "keys")
            assert [tensor["name"] for tensor in keys["tensors"]] == ["keys", "signatures"]
            uploads = [message for message in sent if message["kind"] == "train"]
            assert {tensor["name"] for message in uploads for tensor in message["tensors"]} == {"masked"}
        assert not list(made.path.rglob(SECRETS_FILE))


def test_the_recipe_on_mnist_equals_a_local_run(tmp_path, mnist_root):
    recipe = str(RECIPES / "fedproto-mnist-n3.toml")
    with federation(tmp_path / "D", recipe, "--clients", "3", "--tls", "--auth", port=free_port()) as made:
        up = made.start("up", made.path, "--rounds", "3")
        assert up.ends() == 0, up.text()
        made.is_gone()
        assert_same_rounds(made.rounds(), local_rounds(recipe, 3, 3))


def test_a_killed_node_misses_its_round_and_comes_back_with_its_state(tmp_path):
    with federation(tmp_path / "D", DIGITS, "--clients", "a,b,c", "--tls", "--auth", port=free_port()) as made:
        made.settings(round_seconds=made.deadline, min_clients=1)
        up = made.start("up", made.path)
        up.says("round 1: 3 of 3 clients answered")
        until(lambda: made.works_on("a"), "the work of client a in round 2")
        node = made.process(made.client("a"))
        store = made.client("a") / "store"
        assert list(store.rglob("states.sqlite"))  # its model is on its disk when it is killed
        for handle in (node, *descendants(node.pid)):
            os.kill(handle.pid, signal.SIGKILL)
        until(lambda: [row for row in made.rounds() if "0" in row["rejected"]], "a round without client a")
        missed = next(row for row in made.rounds() if "0" in row["rejected"])
        assert set(missed["rejected"]) == {"0"}, missed
        up.says("a        | connected to", times=2)

        def back() -> list[dict]:
            return [
                row
                for row in made.rounds()
                if row["round"] > missed["round"] and "0" not in row["rejected"] and 0 in row["clients"]
            ]

        until(back, "a round with client a again")
        assert len([path for path in store.iterdir() if path.is_dir()]) == 1  # it went on with the same run
        sent = [
            message for message in json.loads(made.do("sent", made.client("a"), "--json")) if message["kind"] == "train"
        ]
        assert_trained_once(sent)
        up.process.send_signal(signal.SIGINT)
        assert up.ends() == 130
        made.is_gone()


def assert_trained_once(sent: list[dict]) -> None:
    """A round that was asked for twice has the same upload."""
    hashes: dict[tuple, set] = {}
    for message in sent:
        hashes.setdefault((message["run"], message["round"]), set()).add(message["sha256"])
    assert {len(values) for values in hashes.values()} == {1}


def test_a_killed_superlink_and_resume_equal_an_uninterrupted_run(tmp_path):
    with federation(tmp_path / "D", DIGITS, "--clients", "a,b", "--tls", "--auth", port=free_port()) as made:
        up = made.start("up", made.path, "--rounds", "3")
        up.says("round 1: 2 of 2 clients answered")
        until(lambda: made.works_on("a"), "the work of client a in round 2")
        os.kill(made.process(made.server).pid, signal.SIGKILL)
        assert up.ends() == 1
        assert "the SuperLink was killed by signal 9" in up.text()
        assert f"protofed deploy resume {made.path}" in up.text()
        made.is_gone()
        assert json.loads(made.do("status", made.path, "--json"))["state"] in ("interrupted", "failed")
        again = made.start("resume", made.path, "--rounds", "3")
        assert again.ends() == 0, again.text()
        made.is_gone()
        assert "rounds 2 to 3" in again.text()
        assert_same_rounds(made.rounds(), local_rounds(DIGITS, 2, 3))
        for name in "ab":
            sent = json.loads(made.do("sent", made.client(name), "--json"))
            assert_trained_once([message for message in sent if message["kind"] == "train"])


def test_the_server_ends_when_all_clients_are_gone(tmp_path):
    with federation(tmp_path / "D", DIGITS, "--clients", "a,b", "--tls", port=free_port()) as made:
        made.settings(round_seconds=made.deadline, wait_seconds=made.deadline)
        server = made.start("server", made.server)
        clients = [made.start("client", made.client(name)) for name in "ab"]
        server.says("round 1: 2 of 2 clients answered")
        for name, client in zip("ab", clients, strict=True):
            assert made.do("down", made.client(name)) == f"Stopped: {name}.\n"
            assert client.ends() == 130
        assert server.ends() == 1
        assert "error:" in server.text()
        assert "finished:completed" not in server.text()
        made.is_gone()
        state = json.loads(made.do("status", made.path, "--json"))
        assert state["state"] == "failed"
        assert state["error"]
        shutil.rmtree(made.path)  # nothing holds it
