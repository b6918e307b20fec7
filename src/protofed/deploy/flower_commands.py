"""The commands of Flower that a deployment runs, with an environment in which nothing phones home."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.errors import UserError

if TYPE_CHECKING:
    from protofed.deploy.deployment import ClientNetwork, ServerNetwork

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""No telemetry, no update checks, no installation of packages at run time."""
CONNECTION = "here"
"""The name of the server in the file config.toml of Flower's own folder."""
_LOCAL = ("127.0.0.1", "localhost")
"""The names of this host, to which no proxy leads."""
_PATIENCE = 120.0
"""Seconds after which a command of Flower that only asks the server is given up."""


def flower_environment(part: Path) -> dict[str, str]:
    """The environment of all processes of a server or client. Flower's own folder is home/ within the part."""
    scripts = Path(sys.executable).parent  # Flower starts its other programs by name
    return {
        **os.environ,
        **OFFLINE,
        **_without_proxy_here(),
        "FLWR_HOME": str((part / "home").resolve()),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
    }


def _without_proxy_here() -> dict[str, str]:
    """The variables that name the hosts without a proxy: those of the environment, and this host.

    Programs differ in which spelling they read, so both name the same hosts.
    """
    spellings = ("no_proxy", "NO_PROXY")
    given = [host.strip() for spelling in spellings for host in os.environ.get(spelling, "").split(",")]
    return dict.fromkeys(spellings, ",".join(dict.fromkeys((*filter(None, given), *_LOCAL))))


def flower_program(name: str) -> str:
    """The path of a program of Flower; an error if it is not installed next to this Python."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: Flower is not installed. Install it with: pip install 'protofed[flower]'"
        )
    return str(path)


def superlink_command(part: Path, network: ServerNetwork, listen: str, port: int) -> list[str]:
    """The command that starts the server's SuperLink."""
    part = part.resolve()
    tls = ["--insecure"]
    if network.tls:
        tls = ["--ssl-certfile", f"{part / 'server.pem'}", "--ssl-keyfile", f"{part / 'server.key'}"]
        tls += ["--ssl-ca-certfile", f"{part / 'ca.pem'}"]
    return [
        flower_program("flower-superlink"),
        *tls,
        *(["--enable-supernode-auth"] if network.auth else []),
        *("--host", listen, "--port", str(port)),
        *("--isolation", "subprocess", "--disable-runtime-dependency-installation"),
        *("--database", str(part / "state.db")),
    ]


def supernode_command(part: Path, network: ClientNetwork, server: str, port: int) -> list[str]:
    """The command that starts a client's SuperNode. `port` is one for its own processes, on this host only."""
    part = part.resolve()
    return [
        flower_program("flower-supernode"),
        *(["--root-certificates", str(part / "ca.pem")] if network.tls else ["--insecure"]),
        *(["--auth-supernode-private-key", str(part / "client.key")] if network.auth else []),
        *("--superlink", server, "--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", f"folder={json.dumps(str(part))}"),
    ]


def write_connection(part: Path, network: ServerNetwork, port: int) -> None:
    """Write the file in which Flower's operator commands find the server."""
    home = part.resolve() / "home"
    home.mkdir(exist_ok=True)
    tls = f"root-certificates = {json.dumps(str(part.resolve() / 'ca.pem'))}" if network.tls else "insecure = true"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\n{tls}\n'
    )


def is_healthy(part: Path, network: ServerNetwork, port: int) -> bool:
    """Whether the SuperLink answers. It is on this host, so no proxy is asked."""
    context = ssl.create_default_context(cafile=str(part / "ca.pem")) if network.tls else None
    address = f"{'https' if network.tls else 'http'}://127.0.0.1:{port}/health"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with direct.open(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def ask_flower(part: Path, *words: str) -> dict[str, Any]:
    """The JSON answer of an operator's command; an error with Flower's message if it fails."""
    try:
        done = subprocess.run(
            [flower_program("flwr"), *words, "--format", "json"],
            env=flower_environment(part),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"`flwr {' '.join(words[:2])}` gave no answer within {_PATIENCE:.0f} seconds.") from None
    start = done.stdout.find("{")
    try:
        answer: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout[start:])[0] if start >= 0 else {}
    except ValueError:
        answer = {}
    if done.returncode or not answer.get("success"):
        text = str(answer.get("error-message") or done.stderr.strip() or done.stdout.strip())
        raise UserError(f"`flwr {' '.join(words[:2])}` failed: {text}")
    return answer


def register_client(part: Path, name: str) -> int:
    """Tell the SuperLink a client's public key, from keys/NAME.pub. Returns the id of its node."""
    key = part.resolve() / "keys" / f"{name}.pub"
    answer = ask_flower(part, "supernode", "register", str(key), CONNECTION, "--name", name)
    return int(answer["node-id"])


def submit_run(part: Path, resume: bool, rounds: int) -> str:
    """Start the server app. Returns Flower's id of the run."""
    folder = json.dumps(str(part.resolve()))
    settings = f"folder={folder} resume={str(resume).lower()} rounds={rounds}"
    return str(ask_flower(part, "run", str(part.resolve() / "app"), CONNECTION, "--run-config", settings)["run-id"])


def run_status(part: Path, run: str) -> str:
    """Flower's status of a run, such as "running" or "finished:completed"; "" if the server does not know the run."""
    runs = ask_flower(part, "list", CONNECTION)["runs"]
    return next((str(entry["status"]) for entry in runs if str(entry["run-id"]) == run), "")
