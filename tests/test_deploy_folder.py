"""What `protofed deploy init` writes: a complete folder, with certificates that verify and keys that only the owner reads."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import ssl
import stat
import threading
import tomllib
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr")

import protofed
from protofed.cli import app
from protofed.deploy.certificates import (
    SERVER_DAYS,
    certified_hosts,
    valid_until,
    write_authority,
    write_client_key,
    write_server_certificate,
)
from protofed.deploy.client_data import read_client_data
from protofed.deploy.client_part import ClientPart
from protofed.deploy.deployment import Deployment, ServerNetwork, client_network, server_network
from protofed.deploy.deployment_tables import federation_state, sent_rows, status_rows
from protofed.deploy.federation_parts import federation_parts
from protofed.deploy.flower_commands import (
    OFFLINE,
    flower_environment,
    is_healthy,
    superlink_command,
    supernode_command,
)
from protofed.deploy.handouts import copy_net_weights
from protofed.deploy.new_deployment import client_names, data_files
from protofed.deploy.policy import Policy
from protofed.deploy.processes import free_port
from protofed.deploy.server_part import ServerPart
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.members import Members

RECIPE = str(Path(__file__).parents[1] / "recipes" / "digits-n3.toml")


def init(*words: str) -> str:
    done = CliRunner().invoke(app, ["deploy", "init", *words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("deploy") / "D"
    output = init(
        RECIPE, str(path), "--clients", "a,b,c", "--tls", "--auth", "--host", "fl.example.org", "--port", "9999"
    )
    assert "fl.example.org:9999" in output
    assert "PRIVATE" not in output
    return path


def handshake(folder: Path, name: str, authority: Path) -> None:
    """A TLS connection through a socket pair, with the server's certificate checked for a host name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=str(authority))
    left, right = socket.socketpair()
    errors: list[Exception] = []

    def serve() -> None:
        try:
            server.wrap_socket(left, server_side=True).close()
        except (ssl.SSLError, OSError) as problem:
            errors.append(problem)
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(right, server_hostname=name).close()
    finally:
        right.close()
        thread.join()


def test_the_server_certificate_is_accepted_for_its_hosts_only(folder):
    for name in ("fl.example.org", "localhost", "127.0.0.1"):
        handshake(folder / "server", name, folder / "clients" / "a" / "ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder / "server", "other.example.org", folder / "clients" / "a" / "ca.pem")


def test_a_certificate_of_another_authority_is_refused(folder, tmp_path):
    write_authority(tmp_path, "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder / "server", "localhost", tmp_path / "ca.pem")


def test_secrets_are_readable_by_their_owner_only(folder):
    secrets = {path for path in folder.rglob("*") if path.suffix == ".key"}
    names = {str(path.relative_to(folder)) for path in secrets}
    assert names == {"authority/ca.key", "server/server.key", *(f"clients/{name}/client.key" for name in "abc")}
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and path not in secrets)
    assert b"PRIVATE KEY" not in content


def test_a_certificate_is_renewed_by_the_same_authority(folder, tmp_path):
    copy = tmp_path / "D"
    shutil.copytree(folder, copy)
    before = (copy / "server" / "server.pem").read_bytes()
    done = CliRunner().invoke(app, ["deploy", "renew", str(copy)])
    assert done.exit_code == 0, done.output
    assert (copy / "server" / "server.pem").read_bytes() != before
    assert certified_hosts(copy / "server" / "server.pem") == ["fl.example.org", "localhost", "127.0.0.1"]
    left = valid_until(copy / "server" / "server.pem") - datetime.now(UTC)
    assert timedelta(days=SERVER_DAYS - 1) < left <= timedelta(days=SERVER_DAYS)
    handshake(copy / "server", "fl.example.org", folder / "clients" / "a" / "ca.pem")


def test_a_key_of_another_authority_signs_nothing(folder, tmp_path):
    copy = tmp_path / "D"
    shutil.copytree(folder, copy)
    before = (copy / "server" / "server.pem").read_bytes()
    shutil.copyfile(copy / "server" / "server.key", copy / "authority" / "ca.key")
    with pytest.raises(UserError, match=r"ca\.key is not the key of ca\.pem"):
        write_server_certificate(copy / "authority", copy / "server", ["localhost"])
    assert (copy / "server" / "server.pem").read_bytes() == before


def test_a_client_without_its_policy_does_not_start(folder, tmp_path):
    client = tmp_path / "a"
    shutil.copytree(folder / "clients" / "a", client)
    (client / "policy.toml").unlink()
    for read in (client_network, lambda path: Policy.read(path / "policy.toml")):
        with pytest.raises(UserError, match=r"policy\.toml does not exist: nothing leaves without a policy"):
            read(client)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data.npz", "not a zip file", "data.npz"),
        ("policy.toml", 'may_send = ["prototypes"', "policy.toml"),
        ("policy.toml", 'may_send = ["losses"]', "losses.*may_report"),
        ("experiment.toml", '[run]\nrounds = "x"', "The experiment has a problem:\n  - run.rounds"),
    ],
)
def test_damaged_files_of_a_client_are_noticed_before_processes_start(folder, tmp_path, name, content, words):
    copy = tmp_path / "D"
    shutil.copytree(folder, copy)
    (copy / "clients" / "a" / name).write_text(content)
    with pytest.raises(UserError, match=words):
        federation_parts(Deployment(copy), lambda name, line: None, resume=False, rounds=1, port=0)
    done = CliRunner().invoke(app, ["deploy", "client", str(copy / "clients" / "a")])
    with pytest.raises(UserError, match=words):
        raise done.exception


def test_a_server_without_a_port_is_said(folder):
    with pytest.raises(UserError, match='--server: got "foo"; must be host:port'):
        ClientPart(folder / "clients" / "a", lambda name, line: None, server="foo")


def test_one_client_cannot_hide_in_a_secure_sum(tmp_path):
    with pytest.raises(UserError, match="a secure sum of one client hides nothing"):
        init(RECIPE, str(tmp_path / "D"), "--clients", "1", "--set", "privacy.secure_sum=true")


def test_a_guarantee_that_enrolment_weakens_is_said(tmp_path):
    private = ["--clients", "a,b", "--set", "privacy.encoder=frozen", "--set", "privacy.noise=4"]
    assert 'Careful: privacy.neighbours = "add-remove" hides' in init(RECIPE, str(tmp_path / "D"), *private)
    exchanged = init(RECIPE, str(tmp_path / "E"), *private, "--set", "privacy.neighbours=replace-one")
    assert "Careful" not in exchanged


def test_initial_weights_are_copied_to_the_server_and_all_clients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = protofed.run({"run": {"rounds": 1}, "data": {"clients": 2}}, tmp_path / "run")
    made.model(0)
    done = CliRunner().invoke(app, ["export", "run", "--client", "0", "--out", "w/a.safetensors"])
    assert done.exit_code == 0, done.output
    words = ["--clients", "a,b", "--set", "net.weights=w/a.safetensors"]
    init(RECIPE, "D", *words)
    assert all(
        (tmp_path / "D" / part / "w" / "a.safetensors").is_file() for part in ("server", "clients/a", "clients/b")
    )
    with pytest.raises(UserError, match=r"net\.weights: got \.\./a\.safetensors; must be a file in this folder"):
        copy_net_weights(Config.of({"net": {"weights": "../a.safetensors"}}), tmp_path)


def test_no_certificate_without_the_key_of_the_authority(tmp_path):
    with pytest.raises(UserError, match=r"ca\.key does not exist"):
        write_server_certificate(tmp_path, tmp_path, ["localhost"])


def test_a_client_key_is_one_that_flower_accepts(tmp_path):
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    write_client_key(tmp_path / "k", tmp_path / "k.pub")
    private, public = (
        load_ssh_private_key((tmp_path / "k").read_bytes(), None),
        load_ssh_public_key((tmp_path / "k.pub").read_bytes()),
    )
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert public.curve.name == "secp384r1"
    assert private.public_key() == public


def test_every_client_gets_exactly_its_part_of_the_data(folder):
    members = Members.of(Config.load(RECIPE, ["data.clients=3"]))
    for number, name in enumerate("abc"):
        data = read_client_data(folder / "clients" / name / "data.npz", Config.of({}))
        for ours, theirs in ((data.train, members.train[number]), (data.test, members.test[number])):
            x, y = ours.take(ours.index)
            other_x, other_y = theirs.take(torch.arange(len(theirs)))
            assert np.array_equal(x, other_x)
            assert np.array_equal(y, other_y)


def test_settings_fit_together(folder):
    server, client = server_network(folder / "server"), client_network(folder / "clients" / "b")
    assert (server.listen, server.port, server.tls, server.auth) == ("0.0.0.0", 9999, True, True)
    assert (client.server, client.tls, client.auth) == ("fl.example.org:9999", True, True)
    experiment = Config.load(folder / "server" / "experiment.toml")
    assert experiment.table() == Config.load(RECIPE, ["data.clients=3"]).with_clients(3).table()
    assert (folder / "clients" / "a" / "experiment.toml").read_bytes() == (
        folder / "server" / "experiment.toml"
    ).read_bytes()
    assert tomllib.loads((folder / "clients" / "a" / "policy.toml").read_text())["may_send"] == ["prototypes"]
    for unit in folder.rglob("protofed.service"):
        assert f'deploy {"server" if unit.parent.name == "server" else "client"} "{unit.parent}"' in unit.read_text()


def test_commands_of_flower_have_tls_and_keys(folder):
    server, client = folder / "server", folder / "clients" / "a"
    command = superlink_command(server, server_network(server), "127.0.0.1", 1234)
    assert {"--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile", "--enable-supernode-auth"} <= set(command)
    assert "--disable-runtime-dependency-installation" in command
    command = supernode_command(client, client_network(client), "h:1", 1234)
    assert command[command.index("--root-certificates") + 1] == str(client / "ca.pem")
    assert command[command.index("--auth-supernode-private-key") + 1] == str(client / "client.key")
    assert f'folder="{client}"' in command


def test_nothing_phones_home_and_every_part_has_its_own_home(folder):
    environments = [flower_environment(path) for path in Deployment(folder).parts().values()]
    for environment in environments:
        assert {key: environment[key] for key in OFFLINE} == {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }
    assert len({environment["FLWR_HOME"] for environment in environments}) == 4


class Healthy(BaseHTTPRequestHandler):
    """Answers every question with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


@pytest.mark.parametrize("tls", [False, True])
def test_the_server_on_this_machine_is_asked_without_a_proxy(tls, folder, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")  # nobody is there
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        port = server.server_port
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "server" / "server.pem", folder / "server" / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert is_healthy(folder / "server", ServerNetwork(tls=tls), port)
        server.shutdown()
    assert not is_healthy(folder / "server", ServerNetwork(tls=tls), port)


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (None, None, "127.0.0.1,localhost"),
        ("", "", "127.0.0.1,localhost"),
        (None, "a.org, .b.org", "a.org,.b.org,127.0.0.1,localhost"),
        ("localhost,a.org", "b.org", "localhost,a.org,b.org,127.0.0.1"),
    ],
)
def test_processes_of_flower_reach_this_machine_without_a_proxy(lower, upper, expected, tmp_path, monkeypatch):
    for name, value in (("no_proxy", lower), ("NO_PROXY", upper)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    environment = flower_environment(tmp_path)
    assert (environment["no_proxy"], environment["NO_PROXY"]) == (expected, expected)


@pytest.mark.parametrize("listen", ["::", "192.0.2.7", "localhost"])
def test_a_server_listens_on_this_machine_or_on_every_network(listen, folder, tmp_path):
    shutil.copytree(folder / "server", tmp_path / "server")
    with pytest.raises(UserError, match=rf'listen: got "{listen}"; must be 127\.0\.0\.1 .* or 0\.0\.0\.0 '):
        ServerPart(tmp_path / "server", lambda name, text: None, resume=False, listen=listen, port=free_port())


def test_the_advice_of_resume_has_the_name_of_the_folder(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "to-resume")
    done = CliRunner().invoke(app, ["deploy", "resume", str(tmp_path / "to-resume")])
    assert str(done.exception).endswith(f"Start one with: protofed deploy up {tmp_path / 'to-resume'}")
    run = tmp_path / "to-resume" / "server" / "run"
    run.mkdir()
    (run / "config.toml").touch()
    done = CliRunner().invoke(app, ["deploy", "up", str(tmp_path / "to-resume")])
    assert f"Continue it with: protofed deploy resume {tmp_path / 'to-resume'}\n" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--clients", "a,b", "--auth"], "Give --tls"),
        (["--clients", "a,a"], "a name twice"),
        (["--clients", "A"], 'got the name "A"'),
        (["--clients", "server,b"], 'got the name "server"'),
        (["--clients", "0"], "must be 1 to 1000"),
        (["--clients", "a,b", "--data", "c=x.npz"], 'there is no client "c"'),
        (["--clients", "a,b", "--data", "a"], "must look like NAME=FILE"),
        (["--clients", "a,b", "--data", "a=missing.npz"], "There is no file missing.npz"),
        (["--clients", "2", "--tls", "--host", "bad host"], "must be a host name or an IPv4 address"),
        (["--clients", "2", "--host", "2001:db8::1"], 'got "2001:db8::1"; must be a host name or an IPv4 address'),
        (["--clients", "2", "--host", "example.org:80"], "without a port"),
        (
            ["--clients", "2", "--set", "privacy.secure_sum=true", "--set", "trust.prototypes=median"],
            'cannot be used with the rule "median"',
        ),
        (
            ["--clients", "2", "--set", "privacy.secure_sum=true", "--set", "attack.share=0.2"],
            "the server sees no upload that an attacker could have changed",
        ),
    ],
)
def test_mistakes_are_explained_and_leave_nothing_behind(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["deploy", "init", RECIPE, "D", *words])
    assert message in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path):
    (tmp_path / "file").write_text("mine")
    done = CliRunner().invoke(app, ["deploy", "init", RECIPE, str(tmp_path), "--clients", "2"])
    assert "already exists and is not empty" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_own_files_are_copied_and_missing_ones_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(20, 4)), y=np.arange(20) % 2)
    output = init(RECIPE, str(tmp_path / "D"), "--clients", "a,b", "--data", f"a={tmp_path / 'a.npz'}", "--keep-sent")
    assert "the data of b" in output
    assert (tmp_path / "D/clients/a/data.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()
    assert not (tmp_path / "D/clients/b/data.npz").exists()
    assert "Put this client's data" in (tmp_path / "D/clients/b/README.md").read_text()
    experiment = Config.load(tmp_path / "D" / "server" / "experiment.toml")
    assert (experiment.data.name, experiment.partition_name, experiment.data.clients) == ("given", "given", 2)
    assert tomllib.loads((tmp_path / "D/clients/a/client.toml").read_text())["keep_sent"] is True
    done = CliRunner().invoke(app, ["deploy", "client", str(tmp_path / "D/clients/b")])
    assert "data.npz does not exist" in str(done.exception)


def test_names_and_files_of_the_command_line():
    assert client_names("3") == ("client-0", "client-1", "client-2")
    assert data_files(["a=x.npz,b=y.npz", "c=z.npz"], "abc") == {
        "a": Path("x.npz"),
        "b": Path("y.npz"),
        "c": Path("z.npz"),
    }


def test_a_missing_certificate_or_key_is_named_before_anything_starts(folder, tmp_path):
    copy = tmp_path / "a"
    shutil.copytree(folder / "clients" / "a", copy)
    (copy / "client.key").unlink()
    done = CliRunner().invoke(app, ["deploy", "client", str(copy)])
    assert "client.key does not exist" in str(done.exception)


def test_status_and_ledger_as_rows(folder, tmp_path):
    copy = tmp_path / "D"
    shutil.copytree(folder, copy)
    status = {
        "state": "running",
        "round": 3,
        "rounds": 9,
        "error": "",
        "clients": {
            "a": {"connected": True, "last_round": 3, "last_upload": 100.0, "rejected": 2, "last_reason": "not finite"}
        },
    }
    (copy / "server" / "status.json").write_text(json.dumps(status))
    state = federation_state(Deployment(copy))
    assert state["state"] == "interrupted"  # no process of the server runs
    assert status_rows(state, now=165.0)[0] == ("a", "stopped", "no", "3", "1 min 5 s ago", "2 (not finite)")
    assert status_rows(state)[1][:4] == ("b", "stopped", "no", "-")
    message = {
        "time": 0.0,
        "round": 2,
        "kind": "train",
        "tensors": [{"name": "mean", "shape": [3, 50]}],
        "figures": {"loss": 1},
        "bytes": 1234,
        "sha256": "ab" * 32,
    }
    assert sent_rows([message])[0][1:] == ("3", "train", "mean [3, 50]; figures: loss", "1,234", "abababababab")


def test_a_folder_of_something_else_is_refused(tmp_path):
    for words in (["up"], ["status"], ["down"], ["resume"]):
        done = CliRunner().invoke(app, ["deploy", *words, str(tmp_path)])
        assert "is not a deployment" in str(done.exception)


def test_a_replaced_key_is_registered_again_and_the_old_one_forgotten(folder, tmp_path, monkeypatch):
    """The SuperLink's database is deleted before it starts, because it would still accept the old key."""
    copy = tmp_path / "server"
    shutil.copytree(folder / "server", copy)
    numbers = itertools.count(1)
    monkeypatch.setattr("protofed.deploy.server_part.register_client", lambda part, name: next(numbers))

    def started() -> dict[str, int]:
        part = ServerPart(copy, lambda name, text: None, resume=False, port=free_port())
        part._forget_other_keys()
        (copy / "state.db").touch()
        part._register_clients()
        return json.loads((copy / "node_ids.json").read_text())

    assert started() == {"a": 1, "b": 2, "c": 3}
    assert started() == {"a": 1, "b": 2, "c": 3}
    write_client_key(tmp_path / "k", copy / "keys" / "b.pub")
    assert started() == {"a": 4, "b": 5, "c": 6}
    (copy / "state.db").unlink()
    assert started() == {"a": 7, "b": 8, "c": 9}


def test_an_interrupted_registration_is_repaired_by_the_next_start(folder, tmp_path, monkeypatch):
    """Flower has the key of c, but the process ended before its answer was written. It refuses the same key again."""
    copy = tmp_path / "server"
    shutil.copytree(folder / "server", copy)
    numbers, database = itertools.count(1), set()

    def register(part: Path, name: str) -> int:
        if not (copy / "state.db").exists():
            database.clear()
            (copy / "state.db").touch()
        if name in database:
            raise UserError("Public key already in use")
        database.add(name)
        if name == "c" and dies:
            raise KeyboardInterrupt
        return next(numbers)

    monkeypatch.setattr("protofed.deploy.server_part.register_client", register)

    def start() -> dict[str, int]:
        part = ServerPart(copy, lambda name, text: None, resume=False, port=free_port())
        part._forget_other_keys()
        part._register_clients()
        return json.loads((copy / "node_ids.json").read_text())

    dies = True
    with pytest.raises(KeyboardInterrupt):
        start()
    assert "c" not in json.loads((copy / "node_ids.json").read_text())
    dies = False
    assert sorted(start()) == ["a", "b", "c"]
    after = start()
    assert start() == after


def test_a_question_to_flower_may_fail_some_times(folder, tmp_path, monkeypatch):
    copy, said, clock = tmp_path / "server", [], [1000.0]
    shutil.copytree(folder / "server", copy)
    monkeypatch.setattr("protofed.deploy.server_part.time.monotonic", lambda: clock[0])
    answers: list[str] = []

    def status(part: Path, run: str) -> str:
        if not (answer := answers.pop(0)):
            raise UserError("`flwr list` gave no answer within 120 seconds.")
        return answer

    monkeypatch.setattr("protofed.deploy.server_part.run_status", status)
    part = ServerPart(copy, lambda name, text: said.append(text), resume=False, port=free_port())

    def look() -> None:
        clock[0] += 61
        part._watch_run()

    answers[:] = ["", "", "", "", "running", "", "", "", "", "finished:completed"]
    while answers:
        assert part.outcome is None
        look()
    assert part.outcome is True
    assert said.count("`flwr list` gave no answer within 120 seconds. Asking again in 60 seconds.") == 8
    answers[:] = [""] * 5
    for _ in range(4):
        look()
    with pytest.raises(UserError, match="gave no answer"):
        look()


def test_a_deployment_may_be_written_into_the_current_folder(tmp_path, monkeypatch):
    """The folder stays the same one, because a terminal is in it."""
    here = tmp_path / "D"
    here.mkdir()
    monkeypatch.chdir(here)
    before = here.stat().st_ino
    init(RECIPE, ".", "--clients", "2")
    assert sorted(path.name for path in here.iterdir()) == ["README.md", "clients", "server"]
    assert [path.name for path in tmp_path.iterdir()] == ["D"]
    assert (here.stat().st_ino, stat.S_IMODE(here.stat().st_mode)) == (before, 0o700)
    assert str(here / "server") in (here / "server" / "protofed.service").read_text()
