"""Which parts a supervisor runs: a server with all its clients on this machine, or the server alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofed.deploy.client_check import check_client_files
from protofed.deploy.client_part import ClientPart
from protofed.deploy.server_part import ServerPart
from protofed.deploy.settings import read_server_settings
from protofed.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.deploy.deployment import Deployment
    from protofed.deploy.supervisor import Part, ShowLine


def has_run(server: Path) -> bool:
    """Whether the server has a run that was started."""
    return (server / "run" / "config.toml").exists()


def check_resume(server: Path, resume: bool, command: str) -> None:
    """Raise an error if a new run would replace an earlier one, or if there is none to resume."""
    if has_run(server) and not resume:
        raise UserError(
            f"{server / 'run'} has a run already. Continue it with: {command}\n"
            f"For a new run, move {server / 'run'} to another place first."
        )
    if resume and not has_run(server):
        raise UserError(f"{server} has no run to resume. Start one with: {command}")


def federation_parts(deployment: Deployment, say: ShowLine, resume: bool, rounds: int, port: int) -> list[Part]:
    """The server and all its clients, on this machine and reachable only from it."""
    server = ServerPart(deployment.server, say, resume, rounds, "127.0.0.1", port)
    if missing := [
        name for name in read_server_settings(deployment.server).clients if name not in deployment.clients()
    ]:
        raise UserError(
            f"{deployment.path / 'clients'} has no folder for {', '.join(missing)}. If clients run on other "
            f"machines, start the server alone with: protofed deploy server {deployment.server}"
        )
    address = f"127.0.0.1:{server.port}"
    clients = [
        ClientPart(folder, say, address, ready=lambda: server.accepts) for folder in deployment.clients().values()
    ]
    check_client_files(deployment.clients().values())
    return [server, *clients]
