"""What `protofed deploy status` and `sent` show: the state of a federation, and what a client has sent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from protofed.deploy.deployment import Deployment, part_kind, server_status
from protofed.deploy.supervisor import read_running
from protofed.errors import UserError
from protofed.experiment.wording import duration

if TYPE_CHECKING:
    from pathlib import Path


def federation_state(deployment: Deployment) -> dict[str, Any]:
    """The state of the run, and of the server and every client: from the server's status.json and the processes."""
    parts = deployment.parts()
    folder = parts.get("server") or next((part for part in parts.values() if part_kind(part) == "server"), None)
    status = server_status(folder) if folder else {}
    state = str(status.get("state", "not started"))
    if folder and state in ("enrolling", "running") and not process_runs(folder):
        state = "interrupted"
    known: dict[str, dict[str, Any]] = dict(status.get("clients", {}))
    local = {name: part for name, part in parts.items() if part_kind(part) == "client"}
    clients = {
        name: {**known.get(name, {}), "process": process_word(local.get(name))}
        for name in dict.fromkeys([*known, *local])
    }
    live = state in ("enrolling", "running")
    for client in clients.values():
        client["connected"] = live and bool(client.get("connected"))
    return {
        "state": state,
        "round": status.get("round", 0),
        "rounds": status.get("rounds", 0),
        "error": status.get("error", ""),
        "server": process_word(folder),
        "clients": clients,
    }


def process_runs(folder: Path) -> bool:
    """Whether the process of a server or client runs on this machine."""
    running = read_running(folder)
    return running is not None and running.process.alive


def process_word(folder: Path | None) -> str:
    """Whether the process of a server or client runs, in a word."""
    if folder is None:
        return "elsewhere"
    return "runs" if process_runs(folder) else "stopped"


def status_rows(state: dict[str, Any], now: float | None = None) -> list[tuple[str, ...]]:
    """A row per client: name, process, connected, last round, last upload, rejected."""
    now = time.time() if now is None else now
    rows: list[tuple[str, ...]] = []
    for name, client in state["clients"].items():
        upload = client.get("last_upload")
        rejected, reason = client.get("rejected", 0), client.get("last_reason", "")
        rows.append(
            (
                name,
                client["process"],
                "yes" if client["connected"] else "no",
                str(client.get("last_round") or "-"),
                f"{duration(max(now - upload, 0))} ago" if upload else "-",
                f"{rejected} ({reason})" if rejected and reason else str(rejected),
            )
        )
    return rows


def sent_messages(folder: Path) -> list[dict[str, Any]]:
    """The lines of a client's ledger."""
    from protofed.deploy.ledger import read_ledger

    if part_kind(folder) != "client":
        raise UserError(f"{folder} is the server's folder. Give a client's: DIR/clients/NAME.")
    return read_ledger(folder)


def sent_rows(messages: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row per message: time, round (from 1), kind, content, bytes, hash."""
    return [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(message["time"])) if "time" in message else "-",
            str(message["round"] + 1) if message.get("round") is not None else "-",
            str(message["kind"]),
            _content_text(message),
            f"{message['bytes']:,}",
            str(message["sha256"])[:12],
        )
        for message in messages
    ]


def _content_text(message: dict[str, Any]) -> str:
    """The tensors with their shapes, and the names of the figures."""
    tensors = ", ".join(f"{tensor['name']} {tensor['shape']}" for tensor in message.get("tensors", []))
    figures = ", ".join(sorted(message.get("figures") or {}))
    return "; ".join(filter(None, [tensors, f"figures: {figures}" if figures else ""])) or "-"
