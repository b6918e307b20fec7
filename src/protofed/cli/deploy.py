"""The commands `protofed deploy ...`: a federation on real machines, with Flower."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from protofed.cli.arguments import AsJson, Sets, option

if TYPE_CHECKING:
    from rich.table import Table

    from protofed.deploy.supervisor import Part

deploy_app = typer.Typer(
    no_args_is_help=True, help="Run an experiment on real machines, with Flower (pip install 'protofed[flower]')."
)
DeployFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `protofed deploy init` wrote.")]
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
    _supervise([ServerPart(folder, _say_line, resume, rounds, listen, port)], command)


@deploy_app.command("client")
def deploy_client(
    folder: Annotated[Path, typer.Argument(metavar="DIR/clients/NAME", help="Folder of the client.")],
    server: Annotated[Optional[str], option("--server", help="host:port, instead of network.toml's.")] = None,
    give_up: Annotated[
        float, option("--give-up", min=0, help="Seconds for which a refused client tries again.")
    ] = 120.0,
) -> None:
    """Run only this client, until it is stopped."""
    from protofed.deploy.client_part import ClientPart

    _supervise([ClientPart(folder, _say_line, server, give_up)], "")


def _run_all(folder: Path, rounds: int, port: int, resume: bool) -> None:
    """Run or resume the server and all clients, and show the verdict."""
    from protofed.deploy.deployment import Deployment
    from protofed.deploy.federation_parts import check_resume, federation_parts

    deployment = Deployment.existing(folder)
    up, to_continue = (f"protofed deploy {verb} {shlex.quote(str(folder))}" for verb in ("up", "resume"))
    check_resume(deployment.server, resume, up if resume else to_continue)
    _supervise(federation_parts(deployment, _say_line, resume, rounds, port), to_continue)


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


def _say_line(name: str, text: str) -> None:
    """A line of the server or a client, after its name."""
    print(f"{name:<8} | {text}", flush=True)


def _status_table(state: dict[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from protofed.deploy.deployment_tables import status_rows

    run = f"round {state['round']} of {state['rounds']}" if state["rounds"] else "no round yet"
    error = escape(f"\n{state['error']}") if state["error"] else ""
    table = Table(title=f"{state['state']}, {run}; the server {state['server']}", caption=error or None)
    for column in ("client", "process", "connected", "last round", "last upload", "rejected"):
        table.add_column(column)
    for row in status_rows(state):
        table.add_row(*map(escape, row))  # a reason may have text of a client
    return table


@deploy_app.command("status")
def deploy_status(
    folder: DeployFolder,
    once: Annotated[bool, option("--once", help="Print the table once, instead of keeping it up to date.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show who is connected, the last round and upload of each client, and what was rejected."""
    from rich.console import Console
    from rich.live import Live

    from protofed.deploy.deployment import Deployment
    from protofed.deploy.deployment_tables import federation_state

    deployment = Deployment.existing(folder)
    state, console = federation_state(deployment), Console()
    if as_json:
        print(json.dumps(state, indent=2))
    elif once or not console.is_terminal:
        console.print(_status_table(state))
    else:
        with Live(_status_table(state), console=console, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(1.0)
                    live.update(_status_table(federation_state(deployment)), refresh=True)
            except KeyboardInterrupt:
                return


@deploy_app.command("logs")
def deploy_logs(
    folder: DeployFolder,
    name: Annotated[Optional[str], typer.Argument(help="server, or a client. Without one: all of them.")] = None,
    follow: Annotated[bool, option("--follow", help="Go on with new lines until Ctrl-C.")] = False,
    complete: Annotated[bool, option("--all", help="Every line of Flower's logs, too.")] = False,
) -> None:
    """Show the logs of the server and the clients."""
    from protofed.deploy.deployment import Deployment
    from protofed.deploy.log_lines import LogTail, log_files, readable_line

    deployment = Deployment.existing(folder)
    parts = {name: deployment.part(name)} if name else deployment.parts()
    tails: dict[Path, tuple[str, LogTail]] = {}
    while True:
        for part_name, part in parts.items():
            for path in log_files(part):
                tails.setdefault(path, (part_name, LogTail(path, from_start=True)))
        for path, (part_name, tail) in tails.items():
            for line in tail.new_lines():
                if text := line if complete or path.parent.name != "logs" else readable_line(line):
                    _say_line(part_name, text)
        if not follow:
            return
        try:
            time.sleep(0.5)
        except KeyboardInterrupt:
            return


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


@deploy_app.command("sent")
def deploy_sent(
    folder: Annotated[Path, typer.Argument(metavar="DIR/clients/NAME", help="Folder of a client.")],
    as_json: AsJson = False,
) -> None:
    """Show every message that left a client: when, in which round, which tensors and figures, bytes, SHA-256."""
    from rich.console import Console
    from rich.table import Table

    from protofed.deploy.deployment_tables import sent_messages, sent_rows

    messages = sent_messages(folder)
    if as_json:
        print(json.dumps(messages, indent=2))
        return
    table = Table(caption=f"{len(messages):,} messages, {sum(message['bytes'] for message in messages):,} bytes")
    for column in ("time", "round", "kind", "content", "bytes", "sha256"):
        table.add_column(column, justify="right" if column in ("round", "bytes") else "left")
    for row in sent_rows(messages):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
