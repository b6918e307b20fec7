"""The folder of a deployed federation: one folder for the server, one per client, and the operator's own."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from protofed.deploy.settings import checked_file, read_settings_file, require_policy
from protofed.errors import UserError

NETWORK_FILE = "network.toml"
"""How a server listens, or where a client finds it."""
PEERS_FOLDER = "peers"
"""In a client's folder: NAME.pub of every other client, if keys of secure sums are signed."""
RUNNING_FILE = "running.json"
"""The processes of a server or client, while they run."""


@dataclass(frozen=True)
class ServerNetwork:
    """The keys of the server's network.toml."""

    listen: str = "127.0.0.1"
    """127.0.0.1: the server accepts connections of this host only; 0.0.0.0: of every IPv4 network of the host"""
    port: Annotated[int, Ge(1), Le(65535)] = 8443
    """port for everything: clients, operator and the server's own processes"""
    tls: bool = False
    """whether connections are encrypted, with server.pem and server.key"""
    auth: bool = False
    """whether only clients with a key in keys/ may connect"""


@dataclass(frozen=True)
class ClientNetwork:
    """The keys of a client's network.toml."""

    server: str
    """address of the server, host:port"""
    tls: bool = False
    """whether the connection is encrypted, and the server's certificate checked with ca.pem"""
    auth: bool = False
    """whether the client proves its identity with client.key"""


def part_kind(folder: Path) -> str:
    """Whether a folder is a "server" or a "client"; an error if it is neither."""
    for kind in ("server", "client"):
        if (folder / f"{kind}.toml").is_file():
            return kind
    raise UserError(
        f"{folder} is neither a server nor a client: it has no server.toml and no client.toml. "
        "`protofed deploy init` writes DIR/server and DIR/clients/NAME."
    )


def server_network(folder: Path) -> ServerNetwork:
    """How the server listens; an error if the folder lacks a file that this needs."""
    if part_kind(folder) != "server":
        raise UserError(f"{folder} is a client's folder. Start it with: protofed deploy client {folder}")
    network: ServerNetwork = _network(folder, ServerNetwork)
    _must_have(folder, ["ca.pem", "server.pem", "server.key"] if network.tls else [])
    return network


def client_network(folder: Path) -> ClientNetwork:
    """Where the client finds its server; an error if the folder lacks a file that this needs."""
    if part_kind(folder) != "client":
        raise UserError(f"{folder} is the server's folder. Start it with: protofed deploy server {folder}")
    network: ClientNetwork = _network(folder, ClientNetwork)
    _must_have(folder, ["ca.pem"] * network.tls + ["client.key"] * network.auth)
    require_policy(folder / "policy.toml")
    return network


def _network(folder: Path, kind: type[ServerNetwork | ClientNetwork]) -> Any:
    """The content of network.toml."""
    file = folder / NETWORK_FILE
    network = checked_file(file, kind, read_settings_file(file))
    if network.auth and not network.tls:
        raise UserError(f"{file}: auth = true needs tls = true.")
    return network


def _must_have(folder: Path, names: list[str]) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise UserError(
                f"{folder / name} does not exist, but {NETWORK_FILE} asks for it. Copy it from the deployment "
                "that `protofed deploy init` wrote."
            )


@dataclass(frozen=True)
class Deployment:
    """A folder that `protofed deploy init` wrote, or a part of it: the server, or some of the clients."""

    path: Path

    @classmethod
    def existing(cls, path: Path) -> Deployment:
        """The deployment in a folder; an error if there is none."""
        deployment = cls(path)
        if not deployment.parts():
            raise UserError(
                f"{path} is not a deployment: it has neither server/ nor clients/. "
                f"Make one with: protofed deploy init FILE.toml {path} --clients 3"
            )
        return deployment

    @property
    def server(self) -> Path:
        return self.path / "server"

    @property
    def authority(self) -> Path:
        """The operator's own folder, with the key that signs certificates."""
        return self.path / "authority"

    def client(self, name: str) -> Path:
        """The folder of a client."""
        return self.path / "clients" / name

    def clients(self) -> dict[str, Path]:
        """The folder of every client that is here, by its name."""
        return {file.parent.name: file.parent for file in sorted((self.path / "clients").glob("*/client.toml"))}

    def parts(self) -> dict[str, Path]:
        """The folders of the server and of the clients that are here, by name. A part's own folder counts, too."""
        for kind in ("server", "client"):
            if (self.path / f"{kind}.toml").is_file():
                return {self.path.resolve().name: self.path}
        server = {"server": self.server} if (self.server / "server.toml").is_file() else {}
        return {**server, **self.clients()}

    def part(self, name: str) -> Path:
        """The folder of the server or of a client; an error if it is not here."""
        parts = self.parts()
        if name not in parts:
            raise UserError(f'{self.path} has no "{name}". It has: {", ".join(parts)}.')
        return parts[name]


def server_status(server: Path) -> dict[str, Any]:
    """What the server app last wrote about its run; {} if it has not written anything yet."""
    try:
        status = json.loads((server / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that it is complete at any moment. A new one has this mode from the first moment on."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    temporary.replace(path)


def must_be_empty(path: Path) -> None:
    """Raise an error if the folder exists and is not empty."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise UserError(f"{path} already exists{' and is not empty' if path.is_dir() else ''}. Give another folder.")
