"""What a deployment costs: a federation of three clients over loopback, next to the same run on the local engine.

    python benchmarks/deploy.py [--json FILE] [--rounds N] [--secure]

Two federations with TLS and authentication run one after the other: FedProto with a small net, which sends little, and
FedAvg with a large one. All processes are real (SuperLink, SuperNodes, the apps of each message). Measured are seconds
and CPU seconds per round, the bytes that pass between each client and the server (counted by a proxy in between), and
the memory of each process. CPU seconds and bytes hardly depend on what else runs on the machine; seconds do. With
--secure the two federations are FedProto without and with secure sums.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch

from deployed import Federation, federation
from protofed.deploy.processes import command_of, descendants, free_port, resident_bytes
from protofed.experiment.config import Config
from protofed.experiment.run import run

RECIPE = str(Path(__file__).parents[1] / "recipes" / "digits-n3.toml")
CLIENTS = ("a", "b", "c")
WORKLOADS = {
    "fedproto": ["net.hidden=[64]"],
    "fedavg": ["method.name=fedavg", "net.hidden=[1024, 256]"],
}
SECURE = {"fedproto": WORKLOADS["fedproto"], "fedproto-secure": [*WORKLOADS["fedproto"], "privacy.secure_sum=true"]}
TICKS = os.sysconf("SC_CLK_TCK")


class Proxy:
    """Passes connections on to the server, and counts the bytes in both directions."""

    def __init__(self, target: int) -> None:
        self.target, self.up, self.down = target, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return  # the listener was closed
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()  # the server does not listen yet
                continue
            for source, sink, direction in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._copy, args=(source, sink, direction), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while block := source.recv(1 << 16):
                setattr(self, direction, getattr(self, direction) + len(block))
                sink.sendall(block)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()


def cpu_seconds(pids: list[int]) -> float:
    """CPU seconds of these processes and of all their descendants, also of those that have ended."""
    ticks = 0
    for pid in {handle.pid for root in pids for handle in descendants(root)} | set(pids):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # of the process, and of those children that it has waited for
    return ticks / TICKS


class Measurements:
    """What is seen while a federation runs: CPU seconds and bytes at the end of every round, and the largest memory."""

    def __init__(self, made: Federation, proxies: list[Proxy]) -> None:
        self.made, self.proxies = made, proxies
        self.cpu: list[float] = []
        self.up: list[int] = []
        self.down: list[int] = []
        self.memory: dict[str, int] = {}
        self.total_memory = 0

    def look(self) -> None:
        roots = [command.process.pid for command in self.made.commands]
        family = {handle.pid for root in roots for handle in descendants(root)} | set(roots)
        sizes = {pid: resident_bytes(pid) for pid in family}
        self.total_memory = max(self.total_memory, sum(sizes.values()))
        for pid, size in sizes.items():
            name = command_of(pid)
            name = name if name.startswith(("flower-", "flwr-")) else "protofed deploy" if pid in roots else "other"
            self.memory[name] = max(self.memory.get(name, 0), size)
        while len(self.cpu) < len(self.made.rounds()):
            self.cpu.append(cpu_seconds(roots))
            self.up.append(sum(proxy.up for proxy in self.proxies))
            self.down.append(sum(proxy.down for proxy in self.proxies))


def measure(method: str, sets: list[str], rounds: int, folder: Path) -> dict[str, Any]:
    """Run one federation, and the same experiment locally."""
    words = [word for change in sets for word in ("--set", change)]
    with federation(
        folder / method, RECIPE, "--clients", ",".join(CLIENTS), "--tls", "--auth", *words, port=free_port()
    ) as made:
        proxies = [Proxy(made.port) for _ in CLIENTS]
        seen = Measurements(made, proxies)
        server = made.start("server", made.server, "--rounds", str(rounds))
        for name, proxy in zip(CLIENTS, proxies, strict=True):
            made.start("client", made.client(name), "--server", f"127.0.0.1:{proxy.port}")
        while server.process.poll() is None:
            seen.look()
            time.sleep(0.25)
        if server.process.returncode:
            sys.exit(f"The federation did not finish:\n{server.text()}")
        deployed = made.rounds()
        for proxy in proxies:
            proxy.listener.close()
    local = run(Config.load(RECIPE, [*sets, f"data.clients={len(CLIENTS)}", f"run.rounds={rounds}"]))
    return {
        "rounds": rounds,
        "local_seconds": [row["seconds"] for row in local.rounds],
        "seconds": [row["seconds"] for row in deployed],
        "cpu_seconds": [later - earlier for earlier, later in zip(seen.cpu, seen.cpu[1:], strict=False)],
        "up_bytes": local.summary["cost"]["up_bytes"] / rounds,
        "down_bytes": local.summary["cost"]["down_bytes"] / rounds,
        "wire_up": [later - earlier for earlier, later in zip(seen.up, seen.up[1:], strict=False)],
        "wire_down": [later - earlier for earlier, later in zip(seen.down, seen.down[1:], strict=False)],
        "memory": dict(sorted(seen.memory.items())),
        "total_memory": seen.total_memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--rounds", type=int, default=6, help="rounds per federation; the first one is not counted")
    parser.add_argument("--secure", action="store_true", help="measure what secure sums cost")
    arguments = parser.parse_args()
    workloads = SECURE if arguments.secure else WORKLOADS
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="protofed-deploy-") as folder:
        results = {method: measure(method, sets, arguments.rounds, Path(folder)) for method, sets in workloads.items()}
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
    content = {"machine": machine, "load": {"before": before, "after": os.getloadavg()}, "methods": results}
    for method, result in results.items():
        later = {key: values for key, values in result.items() if isinstance(values, list)}
        later |= {key: later[key][1:] for key in ("seconds", "local_seconds")}  # the others begin with round 2
        median = {key: statistics.median(values) for key, values in later.items()}
        print(
            f"{method}: per round {median['seconds']:.1f} s (local {median['local_seconds']:.2f} s), "
            f"{median['cpu_seconds']:.1f} CPU s; up {median['wire_up']:,.0f} bytes on the wire, "
            f"{result['up_bytes']:,.0f} in messages; {result['total_memory'] / 1e6:,.0f} MB in total"
        )
        print("  memory: " + ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in result["memory"].items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
