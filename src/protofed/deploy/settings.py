"""The files server.toml and client.toml of a deployed federation."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt

from protofed.errors import UserError
from protofed.experiment.options import check

if TYPE_CHECKING:
    from pathlib import Path

NODE_IDS_FILE = "node_ids.json"
"""The ids that the nodes of clients got when their keys were registered."""
EXPERIMENT_FILE = "experiment.toml"
"""The experiment, in the server's folder and in every client's."""


@dataclass(frozen=True)
class ServerSettings:
    """The keys of server.toml."""

    clients: tuple[str, ...]
    """names of the clients; the position in the list is the client's number"""
    min_clients: Annotated[int, Ge(0)] = 0
    """number of clients that must have enrolled before the first round; 0: all of them"""
    wait_seconds: Annotated[float, Gt(0)] = 300.0
    """how long to wait for clients to enrol, and for one to come back if all are gone"""
    round_seconds: Annotated[float, Gt(0)] = 600.0
    """how long to wait for the clients' answers to a training or an evaluation"""
    poll_seconds: Annotated[float, Gt(0)] = 0.4
    """pause between two looks for answers"""
    classes: tuple[str | int, ...] = ()
    """names of the classes, in order; []: those that all clients' files list, otherwise the sorted names of all"""
    node_ids: dict[str, int] = field(default_factory=dict)
    """Flower's id of each client's node, if clients authenticate; only that node can take the name"""

    @property
    def enough(self) -> int:
        """The number of clients that must have enrolled before the first round."""
        return self.min_clients or len(self.clients)


@dataclass(frozen=True)
class ClientSettings:
    """The keys of client.toml, without [net]."""

    name: str
    """name of the client, as in server.toml"""
    data: str = "data.npz"
    """file with the client's data, relative to its folder"""
    position: Annotated[int, Ge(0)] = 0
    """position of the client in the list of server.toml, on which the draw of a held-out test set depends"""
    keep_sent: bool = False
    """whether the content of every message that leaves is kept in sent/"""


def read_server_settings(folder: Path) -> ServerSettings:
    """The server's settings; an error that lists all problems."""
    table = read_settings_file(folder / "server.toml")
    node_ids = table.pop("node_ids", None)
    if node_ids is None:
        registered = folder / NODE_IDS_FILE
        node_ids = json.loads(registered.read_text()) if registered.exists() else {}
    settings = checked_file(folder / "server.toml", ServerSettings, table)
    if not isinstance(node_ids, dict) or not all(type(number) is int for number in node_ids.values()):
        raise UserError(f"{folder / 'server.toml'}: [node_ids] must have a whole number per client name.")
    if not settings.clients or len(set(settings.clients)) < len(settings.clients):
        raise UserError(f"{folder / 'server.toml'}: clients must list at least one name, and each name once.")
    if settings.min_clients > len(settings.clients):
        raise UserError(
            f"{folder / 'server.toml'}: min_clients is {settings.min_clients}, but there are {len(settings.clients)} "
            "clients. Use that number or fewer."
        )
    return ServerSettings(**{**{f.name: getattr(settings, f.name) for f in fields(settings)}, "node_ids": node_ids})


def read_client_settings(folder: Path) -> tuple[ClientSettings, dict[str, Any] | None]:
    """A client's settings, and the table [net] if it has a net of its own."""
    table = read_settings_file(folder / "client.toml")
    net = table.pop("net", None)
    return checked_file(folder / "client.toml", ClientSettings, table), net


def read_settings_file(path: Path) -> dict[str, Any]:
    """The content of a TOML file of a deployed federation."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. `protofed deploy init` writes it.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UserError(f"{path} is not a readable TOML file: {problem}.") from problem


def require_policy(path: Path) -> None:
    """Raise an error if a client has lost its policy, because nothing else limits what leaves."""
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: nothing leaves without a policy. Restore it; an empty file is the default one."
        )


def checked_file(path: Path, kind: Any, table: dict[str, Any]) -> Any:
    """The dataclass of a file from its table; an error that lists all problems."""
    problems: list[str] = []
    section = path.name.removesuffix(".toml")
    checked = check(section, kind, table, problems)
    if checked is None:
        lines = [f"  - {problem.removeprefix(f'{section}.')}" for problem in problems]
        raise UserError("\n".join([f"{path} has {'a problem' if len(lines) == 1 else 'problems'}:", *lines]))
    return checked
