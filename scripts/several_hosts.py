"""A federation on several hosts, made on one machine from network namespaces, one of which is cut off for a round.

    sudo .venv/bin/python scripts/several_hosts.py

A server and three clients get a network namespace each, with an address of its own, joined by a bridge. TLS and
authentication are on. When client c has taken part in the first rounds, its link goes down; a round must end without
it. Then the link goes up again, and a later round must have c again. The script prints what happens with seconds since
the start, and exits with 0 only if all of this came true. It needs root and `ip` (iproute2), on Linux.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from deployed import COMMAND, Command, Federation, until

CLIENTS = ("a", "b", "c")
NETWORK = "10.213.77"
PREFIX = "pf"
PORT = 8443
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def ip(*words: str, may_fail: bool = False) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        sys.exit(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")


def remove_hosts() -> None:
    for name in ("server", *CLIENTS):
        ip("netns", "delete", f"{PREFIX}-{name}", may_fail=True)
        ip("link", "delete", f"{PREFIX}-{name}", may_fail=True)
    ip("link", "delete", f"{PREFIX}-bridge", may_fail=True)


def make_hosts() -> None:
    """A namespace per host, with one end of a cable in it and the other end in a bridge."""
    ip("link", "add", f"{PREFIX}-bridge", "type", "bridge")
    ip("link", "set", f"{PREFIX}-bridge", "up")
    for number, name in enumerate(("server", *CLIENTS), 1):
        host = f"{PREFIX}-{name}"
        ip("netns", "add", host)
        ip("link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", host)
        ip("link", "set", host, "master", f"{PREFIX}-bridge", "up")
        ip("-n", host, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", host, "link", "set", device, "up")


def start(made: Federation, host: str, *words: str | Path) -> Command:
    """Start `protofed deploy ...` on one of the hosts."""
    command = Command(
        made.path.parent / f"{host}.out", "deploy", *words, before=("ip", "netns", "exec", f"{PREFIX}-{host}")
    )
    made.commands.append(command)
    return command


def rounds_with(made: Federation, client: int, after: int) -> list[dict]:
    """The rounds after this one in which a client took part."""
    return [
        row
        for row in made.rounds()
        if row["round"] > after and client in row["clients"] and str(client) not in row["rejected"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="keep the deployment and the logs")
    keep = parser.parse_args().keep
    if os.geteuid() != 0 or not shutil.which("ip"):
        sys.exit("NOT RUN: this needs root and the command `ip` (iproute2), because it makes network namespaces.")
    folder = Path(tempfile.mkdtemp(prefix="protofed-hosts-"))
    made = Federation(folder / "D", PORT)
    recipe = str(Path(__file__).parents[1] / "recipes" / "digits-n3.toml")
    with ExitStack() as stack:
        if not keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(remove_hosts)
        stack.callback(made.close)
        remove_hosts()
        make_hosts()
        began = time.monotonic()
        made.do(
            *("init", recipe, made.path, "--clients", ",".join(CLIENTS), "--tls", "--auth"),
            *("--host", f"{NETWORK}.1", "--port", str(PORT)),
        )
        made.init_seconds = time.monotonic() - began
        made.settings(round_seconds=made.deadline, min_clients=1)
        say(f"four hosts, {NETWORK}.1 to .{len(CLIENTS) + 1}; the server listens on {NETWORK}.1:{PORT}, TLS and keys")
        server = start(made, "server", "server", made.server)
        clients = {name: start(made, name, "client", made.client(name)) for name in CLIENTS}
        server.says("round 2: 3 of 3 clients answered", 600)
        before = len(made.rounds())
        ip("link", "set", f"{PREFIX}-c", "down")
        say(f"after round {before}: the link of host c is down")
        until(lambda: [row for row in made.rounds() if "2" in row["rejected"]], "a round without c", 300)
        missed = next(row for row in made.rounds() if "2" in row["rejected"])
        say(f"round {missed['round']} ended without c ({missed['rejected']['2']}), with {missed['clients']} asked")
        if set(missed["rejected"]) != {"2"}:
            sys.exit(f"FAILED: other clients were rejected, too: {missed['rejected']}")
        ip("link", "set", f"{PREFIX}-c", "up")
        say("the link of host c is up again")
        until(lambda: rounds_with(made, 2, missed["round"]), "a round with c again", 300)
        say(f"round {rounds_with(made, 2, missed['round'])[0]['round']} has c again")
        for command in (server, *clients.values()):
            command.process.terminate()
        codes = [command.ends(60) for command in (server, *clients.values())]
        say(f"all commands were stopped; exit codes {codes}")
        made_left = until(lambda: not made.left(), "the end of all processes", 30)
        say(f"processes left: {'none' if made_left else made.left()}")
        print("\nThe server's log:\n" + (made.server / "server.log").read_text())
        print("Host c:\n" + clients["c"].text())


if __name__ == "__main__":
    os.environ["PATH"] = f"{Path(COMMAND[0]).parent}{os.pathsep}{os.environ['PATH']}"
    main()
