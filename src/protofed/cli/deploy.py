"""The commands `protofed deploy ...`: a federation on real machines, with Flower."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from protofed.cli.arguments import Sets, option
from protofed.cli.deploy_views import DeployFolder, deploy_logs, deploy_sent, deploy_status, say_line

if TYPE_CHECKING:
    from protofed.deploy.supervisor import Part

deploy_app = typer.Typer(
    no_args_is_help=True, help="Run an experiment on real machines, with Flower (pip install 'protofed[flower]')."
)
Rounds = Annotated[int, option("--rounds", min=0, help="Number of rounds. 0: as the experiment says, or as before.")]
ServerPort = Annotated[int, option("--port", min=0, max=65535, help="Port of the server. 0: as network.toml says.")]


@deploy_app.command("init")
def deploy_init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Experiment file.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write. It must not exist, or be empty.")],
    clients: Annotated[str, option("--clients", metavar="N|a,b,c", help="Number of clients, or their names.")],
    tls: Annotated[bool, option("--tls", help="Encrypt connections, with a certificate authority of its own.")] = False,
    auth: Annotated[bool, option("--auth", help="Only clients with a key may connect; needs --tls.")] = False,
    hosts: Annotated[
        Optional[list[str]],
        option("--host", help="Name or IPv4 address of the server; may be repeated. Default: this machine only."),
    ] = None,
    port: Annotated[int, option("--port", min=0, max=65535, help="Port of the server. 0: a free one from 8443.")] = 0,
    data: Annotated[
        Optional[list[str]],
        option("--data", metavar="a=FILE,b=FILE", help="Own data per client (.npz; of tables .csv, ...)."),
    ] = None,
    own_data: Annotated[
        bool, option("--own-data", help="Every client's operator puts its data into its folder later.")
    ] = False,
    keep_sent: Annotated[bool, option("--keep-sent", help="Clients keep the content of all they send.")] = False,
    sets: Sets = None,
) -> None:
    """Write a folder with everything that a server and its clients need."""
    from protofed.deploy.new_deployment import (
        Plan,
        client_names,
        client_table_files,
        data_files,
        experiment_for,
        free_server_port,
        write_deployment,
    )
    from protofed.engines.flower.installed import require_flower
    from protofed.experiment.config import Config
    from protofed.experiment.sections import TABLE
    from protofed.experiment.secure_round import refuse_attackers
    from protofed.experiment.wording import quantity

    require_flower()
    names = client_names(clients)
    files = data_files(data or (), names)
    config = Config.load(file, sets or ())
    refuse_attackers(config)
    if config.data.name == TABLE and not own_data and not files:
        files = client_table_files(config, names)
    own = bool(own_data or files)
    if not own:
        config = Config.load(file, [*(sets or ()), f"data.clients={len(names)}"])
    config = experiment_for(config, names, own)
    plan = Plan(config, names, tuple(hosts or ()), port or free_server_port(), tls, auth, files, keep_sent)
    write_deployment(folder, plan, print)
    where = shlex.quote(str(folder))
    print(f"Written to {folder}: {quantity(len(names), 'client')} ({', '.join(names)}), server {plan.address}.")
    if missing := [name for name in names if not (folder / "clients" / name / plan.data_file(name)).exists()]:
        print(f"Missing: the data of {', '.join(missing)}. {folder}/clients/NAME/README.md describes the file.")
    print(f"On this machine: protofed deploy up {where}\nOn several machines: see {folder}/README.md.")


@deploy_app.command("up")
def deploy_up(folder: DeployFolder, rounds: Rounds = 0, port: ServerPort = 0) -> None:
    """Run the server and all clients on this machine until the run ends. Ctrl-C ends everything."""
    _run_all(folder, rounds, port, resume=False)


@deploy_app.command("resume")
def deploy_resume(folder: DeployFolder, rounds: Rounds = 0, port: ServerPort = 0) -> None:
    """Continue an interrupted run with the server and all clients on this machine."""
    _run_all(folder, rounds, port, resume=True)


@deploy_app.command("server")
def deploy_server(
    folder: Annotated[Path, typer.Argument(metavar="DIR/server", help="Folder of the server.")],
    rounds: Rounds = 0,
    resume: Annotated[bool, option("--resume", help="Continue the run of this folder, if it has one.")] = False,
    listen: Annotated[
        Optional[str], option("--listen", help="127.0.0.1 or 0.0.0.0 (every network), instead of network.toml's.")
    ] = None,
    port: ServerPort = 0,
) -> None:
    """Run only the server, until the run ends. Clients connect from other machines."""
    from protofed.deploy.federation_parts import check_resume, has_run
    from protofed.deploy.server_part import ServerPart

    command = f"protofed deploy server {shlex.quote(str(folder))} --resume"
    resume = resume and has_run(folder)
    check_resume(folder, resume, command)
    _supervise([ServerPart(folder, say_line, resume, rounds, listen, port)], command)


@deploy_app.command("client")
def deploy_client(
    folder: Annotated[Path, typer.Argument(metavar="DIR/clients/NAME", help="Folder of the client.")],
    server: Annotated[Optional[str], option("--server", help="host:port, instead of network.toml's.")] = None,
    give_up: Annotated[
        float, option("--give-up", min=0, help="Seconds for which a refused client tries again.")
    ] = 120.0,
) -> None:
    """Run only this client, until it is stopped."""
    from protofed.deploy.client_check import check_client_files
    from protofed.deploy.client_part import ClientPart

    part = ClientPart(folder, say_line, server, give_up)
    check_client_files([folder])
    _supervise([part], "")


def _run_all(folder: Path, rounds: int, port: int, resume: bool) -> None:
    """Run or resume the server and all clients, and show the verdict."""
    from protofed.deploy.deployment import Deployment
    from protofed.deploy.federation_parts import check_resume, federation_parts

    deployment = Deployment.existing(folder)
    up, to_continue = (f"protofed deploy {verb} {shlex.quote(str(folder))}" for verb in ("up", "resume"))
    check_resume(deployment.server, resume, up if resume else to_continue)
    _supervise(federation_parts(deployment, say_line, resume, rounds, port), to_continue)


def _supervise(parts: Sequence[Part], to_continue: str) -> None:
    """Run the parts until they end. The exit code is 0 only if the run has been completed."""
    from protofed.deploy.federation_parts import has_run
    from protofed.deploy.supervisor import supervise

    first = parts[0]
    outcome = supervise(parts)
    if first.name == "server":
        if outcome:
            _show_verdict(first.folder / "run")
            return
        if has_run(first.folder):
            print(f"Continue with: {to_continue}", file=sys.stderr)
    if outcome is None:
        print("Stopped.", file=sys.stderr)
    raise typer.Exit(130 if outcome is None else 1)


def _show_verdict(run: Path) -> None:
    from rich.console import Console

    from protofed.cli.printing import say
    from protofed.cli.screen import run_verdict
    from protofed.experiment.results import Result

    say(Console(), run_verdict(Result.load(run)))


@deploy_app.command("down")
def deploy_down(folder: DeployFolder) -> None:
    """Stop the server and the clients that run from this folder."""
    from protofed.deploy.deployment import Deployment
    from protofed.deploy.supervisor import stop_parts

    names = stop_parts(list(Deployment.existing(folder).parts().values()))
    print(f"Stopped: {', '.join(names)}." if names else "Nothing was running.")


@deploy_app.command("renew")
def deploy_renew(
    folder: DeployFolder,
    hosts: Annotated[
        Optional[list[str]],
        option("--host", help="Name or IPv4 address of the server; may be repeated. Default: as before."),
    ] = None,
) -> None:
    """Make a new certificate for the server, signed by the same authority. Clients need nothing new."""
    from protofed.deploy.deployment import Deployment
    from protofed.deploy.new_deployment import renew_certificate

    ends = renew_certificate(Deployment.existing(folder), hosts or ())
    print(f"New: {folder}/server/server.pem and server.key, valid until {ends:%Y-%m-%d}. Restart the server with them.")


for view in (deploy_status, deploy_logs, deploy_sent):
    deploy_app.command(view.__name__.removeprefix("deploy_"))(view)
