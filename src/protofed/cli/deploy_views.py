"""What the operator of a deployed federation looks at: `protofed deploy status`, `logs` and `sent`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from protofed.cli.arguments import AsJson, option

if TYPE_CHECKING:
    from rich.table import Table

DeployFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `protofed deploy init` wrote.")]


def say_line(name: str, text: str) -> None:
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
                    say_line(part_name, text)
        if not follow:
            return
        try:
            time.sleep(0.5)
        except KeyboardInterrupt:
            return


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
