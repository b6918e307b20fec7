"""Writes the folder of a new deployment: experiment, app, certificates, keys, and a folder per host."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from protofed.data.table.files import tables_in
from protofed.deploy.certificates import (
    certified_hosts,
    check_host,
    write_authority,
    write_client_key,
    write_server_certificate,
)
from protofed.deploy.client_data import read_client_data, write_balanced, write_client_data
from protofed.deploy.deployment import (
    NETWORK_FILE,
    PEERS_FOLDER,
    Deployment,
    ServerNetwork,
    must_be_empty,
    server_network,
)
from protofed.deploy.handouts import (
    APP,
    APP_MODULES,
    CLIENT_SETTINGS,
    POLICY,
    SERVER_SETTINGS,
    client_readme,
    compose_file,
    copy_net_weights,
    folder_readme,
    systemd_unit,
)
from protofed.deploy.policy import kinds_sent
from protofed.deploy.processes import port_is_free
from protofed.deploy.settings import EXPERIMENT_FILE
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.options import toml_value
from protofed.experiment.sections import TABLE, DataSection, GivenInPython
from protofed.experiment.stored import GIVEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

LOCAL_HOSTS = ("localhost", "127.0.0.1")
"""Every certificate is valid for these, because the server's own processes connect this way."""
FIRST_PORT = 8443
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


@dataclass(frozen=True)
class Plan:
    """What `protofed deploy init` is asked for."""

    config: Config
    names: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    port: int = FIRST_PORT
    tls: bool = False
    auth: bool = False
    data: Mapping[str, Path] = field(default_factory=dict)
    keep_sent: bool = False

    @property
    def network(self) -> ServerNetwork:
        """How the server listens: for other machines only if it has a name or address of its own."""
        return ServerNetwork("0.0.0.0" if self.hosts else "127.0.0.1", self.port, self.tls, self.auth)

    def data_file(self, name: str) -> str:
        """The name of a client's data file in its folder."""
        if self.config.data.name == TABLE:
            return f"data{self.data[name].suffix if name in self.data else '.csv'}"
        return "data.npz"

    @property
    def address(self) -> str:
        """The address of the server, for clients."""
        return f"{self.hosts[0] if self.hosts else '127.0.0.1'}:{self.port}"


def client_names(text: str) -> tuple[str, ...]:
    """The names in --clients: a number of clients, or names with commas between them.

    >>> client_names("2"), client_names("north, south")
    (('client-0', 'client-1'), ('north', 'south'))
    """
    if text.strip().isdecimal():
        if not 1 <= int(text) <= 1000:
            raise UserError(f"--clients: got {text}; must be 1 to 1000, or names as in a,b,c.")
        return tuple(f"client-{number}" for number in range(int(text)))
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not _NAME.fullmatch(name) or name == "server":
            raise UserError(
                f'--clients: got the name "{name}"; must have only lower-case letters, digits and hyphens, begin '
                'with a letter or digit, have up to 32 of them, and not be "server".'
            )
    if len(set(names)) < len(names):
        raise UserError(f'--clients: got a name twice in "{text}". Give every client its own name.')
    return names


def data_files(words: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """The files in --data: NAME=FILE, several with commas between them or by repeating the option."""
    files = {}
    for word in (part for text in words for part in text.split(",")):
        name, equals, file = word.strip().partition("=")
        if not (equals and name and file):
            raise UserError(f'--data: got "{word}"; must look like NAME=FILE.')
        if name not in names:
            raise UserError(f'--data: there is no client "{name}". The clients are {", ".join(names)}.')
        files[name] = Path(file)
    return files


def free_server_port() -> int:
    """The first port from 8443 on that no program uses now."""
    return next(port for port in range(FIRST_PORT, 65536) if port_is_free("127.0.0.1", port))


def client_table_files(config: Config, names: Sequence[str]) -> dict[str, Path]:
    """The table of each client in `data.root`: the file with the client's name."""
    root = Path(config.data.root).expanduser()
    if not root.is_dir():
        raise UserError(
            f"data.root: {root} is not a folder with one table per client. Divide the table by clients and give "
            "--data NAME=FILE for each, or --own-data if the tables are elsewhere."
        )
    files = tables_in(root)
    if list(files) != list(names):
        raise UserError(
            f"--clients: got {', '.join(names)}, but {root} has the tables of {', '.join(files) or 'nobody'}. "
            "Give these names in this order, or the file of each client with --data NAME=FILE."
        )
    return files


def experiment_for(config: Config, names: Sequence[str], own_data: bool) -> Config:
    """The experiment with this number of clients. With `own_data`, every client has a file instead of [data]."""
    if config.data.name == TABLE:
        if config.data.scaling == "federated":
            raise UserError(
                'data.scaling: got "federated", which a deployed federation cannot do yet. Use "client", or give '
                "the mean and deviation of each column."
            )
        config = replace(config, data=replace(config.data, root="", client=""))
    elif own_data or config.data.name == GIVEN:
        from_python = GivenInPython()
        config = replace(config, data=DataSection(GIVEN), partition_name=GIVEN, partition=from_python)  # type: ignore[arg-type]
    return config.with_clients(len(names))


def write_deployment(path: Path, plan: Plan, say: Callable[[str], None]) -> None:
    """Write a complete deployment. The folder appears only when everything in it has been written."""
    path = path.absolute()
    must_be_empty(path)
    if plan.auth and not plan.tls:
        raise UserError("--auth: clients authenticate over encrypted connections only. Give --tls, too.")
    for host in plan.hosts:
        check_host(host)
    if plan.config.privacy.secure_sum and len(plan.names) < 2:
        raise UserError("--clients: got 1, but a secure sum of one client hides nothing. Give two or more clients.")
    if caution := plan.config.privacy.caution_when_deployed:
        say(caution)
    members = None
    if plan.config.data.name not in (GIVEN, TABLE):
        members = Members.of(plan.config, say)
        if len(members) != len(plan.names):
            raise UserError(
                f"--clients: got {len(plan.names)}, but partition {plan.config.partition_name} divides "
                f"{plan.config.data.name} among {len(members)} clients. Give {len(members)}."
            )
        members.check_nets(plan.config.method_name, plan.config.method)
    for name, file in plan.data.items():
        read_client_data(file, plan.config, name)  # an error now is better than one when the federation runs
    unfinished = path.with_name(f".{path.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _write_files(Deployment(unfinished), path, plan, members)
        if path.is_dir():  # it stays the same folder, because a terminal may be in it
            path.chmod(0o700)
            for entry in unfinished.iterdir():
                entry.rename(path / entry.name)
        else:
            unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_files(new: Deployment, path: Path, plan: Plan, members: Members | None) -> None:
    """Write all files of a deployment that will be at `path`."""
    new.path.mkdir(parents=True, mode=0o700)
    if plan.tls:
        new.authority.mkdir(mode=0o700)
        write_authority(new.authority, "protofed")
    _write_server(new, path, plan, members)
    for number, name in enumerate(plan.names):
        target = new.client(name) / plan.data_file(name)
        _write_client(new, path, plan, name, number)
        if members:
            write_client_data(target, members, number)
            if plan.config.eval.personal:
                write_balanced(new.client(name) / "balanced.npz", members)
        elif name in plan.data:
            shutil.copyfile(plan.data[name], target)
        kinds = sorted(kinds_sent(plan.config.method))
        (new.client(name) / "README.md").write_text(
            client_readme(name, target.name, plan.config.data.target, target.exists(), kinds)
        )
    if plan.auth and plan.config.privacy.secure_sum:
        _introduce_clients(new, plan.names)
    hosts = plan.hosts or LOCAL_HOSTS
    (new.path / "README.md").write_text(folder_readme(path, plan.names, plan.network, hosts))


def _write_server(new: Deployment, path: Path, plan: Plan, members: Members | None) -> None:
    (new.server / "keys").mkdir(parents=True)
    modules = new.server / "app" / "protofed_app"
    modules.mkdir(parents=True)
    (modules.parent / "pyproject.toml").write_text(APP)
    for name, text in APP_MODULES.items():
        (modules / name).write_text(text)
    (new.server / EXPERIMENT_FILE).write_text(tomli_w.dumps(plan.config.table()))
    settings = SERVER_SETTINGS.format(clients=toml_value(plan.names))
    classes = f"classes = {toml_value(members.labels)}  # in order\n" if members else ""
    (new.server / "server.toml").write_text(settings + classes)
    network = plan.network
    connection = {"listen": network.listen, "port": network.port, "tls": network.tls, "auth": network.auth}
    (new.server / NETWORK_FILE).write_text(tomli_w.dumps(connection))
    copy_net_weights(plan.config, new.server)
    if members:
        write_balanced(new.server / "balanced.npz", members)
    if plan.tls:
        shutil.copyfile(new.authority / "ca.pem", new.server / "ca.pem")
        write_server_certificate(new.authority, new.server, _all_hosts(plan.hosts))
    _write_examples(new.server, "server", path / "server", plan.port)


def _write_client(new: Deployment, path: Path, plan: Plan, name: str, position: int) -> None:
    folder = new.client(name)
    folder.mkdir(parents=True, mode=0o700)
    shutil.copyfile(new.server / EXPERIMENT_FILE, folder / EXPERIMENT_FILE)
    copy_net_weights(plan.config, folder)
    (folder / "client.toml").write_text(
        CLIENT_SETTINGS.format(
            name=name, data=plan.data_file(name), position=position, keep_sent=toml_value(plan.keep_sent)
        )
    )
    (folder / NETWORK_FILE).write_text(
        tomli_w.dumps({"server": plan.address, "tls": plan.tls, "auth": plan.auth}),
    )
    may_send, secure = toml_value(sorted(kinds_sent(plan.config.method))), plan.config.privacy.secure_sum
    (folder / "policy.toml").write_text(POLICY.format(may_send=may_send, secure=toml_value(secure)))
    if plan.tls:
        shutil.copyfile(new.authority / "ca.pem", folder / "ca.pem")
    if plan.auth:
        write_client_key(folder / "client.key", folder / "client.pub")
        shutil.copyfile(folder / "client.pub", new.server / "keys" / f"{name}.pub")
    _write_examples(folder, "client", path / "clients" / name, plan.port)


def _introduce_clients(new: Deployment, names: Sequence[str]) -> None:
    """Give every client the public keys of the others, with which they sign the keys of secure sums."""
    for name in names:
        (new.client(name) / PEERS_FOLDER).mkdir()
        for other in names:
            if other != name:
                shutil.copyfile(new.client(other) / "client.pub", new.client(name) / PEERS_FOLDER / f"{other}.pub")


def _write_examples(folder: Path, kind: str, final: Path, port: int) -> None:
    (folder / "protofed.service").write_text(systemd_unit(kind, final, Path(sys.executable).parent / "protofed"))
    (folder / "compose.yaml").write_text(compose_file(kind, port))


def _all_hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*hosts, *LOCAL_HOSTS)))


def renew_certificate(deployment: Deployment, hosts: Sequence[str]) -> datetime:
    """Make a new key and certificate for the server, for the same hosts if none are given. Returns when it ends."""
    if not server_network(deployment.server).tls:
        raise UserError(f"{deployment.path} was made without --tls: it has no certificates.")
    for host in hosts:
        check_host(host)
    before = certified_hosts(deployment.server / "server.pem")
    return write_server_certificate(deployment.authority, deployment.server, _all_hosts(hosts or before))
