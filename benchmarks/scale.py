"""How a run scales with the number of clients: seconds per round, memory, bytes of checkpoints, start-up.

`python benchmarks/scale.py` runs FedProto and FedAvg on MNIST with 100 to 100,000 clients, 100 of them per round, each
in a process of its own. `--json FILE` keeps the measurements, `--picture FILE` draws them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

SIZES = (100, 1_000, 10_000, 100_000)
METHODS = ("fedproto", "fedavg")
ROUNDS = 6
PER_ROUND = 100
TESTED = 500


def table(method: str, clients: int, rounds: int) -> dict[str, Any]:
    """The experiment: every client has 24 training images of 3 classes, and FedProto's CNN."""
    return {
        "run": {"rounds": rounds, "sample": PER_ROUND, "eval_every": rounds},
        "data": {"name": "mnist", "clients": clients},
        "partition": {"name": "with_replacement", "ways": 3, "shots": 8, "test": 10},
        "net": {"name": "cnn"},
        "method": {"name": method},
        "train": {"batch": 8},
        "eval": {"clients_sampled": min(TESTED, clients)},
        "engine": {"workers": 1},
    }


def measure(method: str, clients: int, rounds: int = ROUNDS, **changes: dict[str, Any]) -> dict[str, Any]:
    """The figures of one run, made in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_measured, (method, clients, rounds, changes))


def _measured(method: str, clients: int, rounds: int, changes: dict[str, Any]) -> dict[str, Any]:
    import protofed
    from protofed.experiment.store import STORE_FILE

    written: list[float] = []
    ends: list[tuple[float, float]] = []

    class Observer(protofed.Watcher):
        def started(self, config: Any, members: Any, done: Any, notes: Any) -> None:
            self.began()

        def began(self) -> None:
            ends.append((time.perf_counter(), time.process_time()))
            written.append(_bytes_written())

        def round(self, row: Any) -> None:
            self.began()

    sections = table(method, clients, rounds)
    for section, keys in changes.items():
        sections[section] = {**sections.get(section, {}), **keys}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="protofed-scale-") as folder:
        out = Path(folder) / "run"
        result = protofed.run(sections, out, watchers=[Observer()])
        total = time.perf_counter() - began
        size = (out / "checkpoint" / STORE_FILE).stat().st_size
        partition = (out / "partition.json").stat().st_size
    walls, cpus = ([later - earlier for earlier, later in pairwise(times)] for times in zip(*ends, strict=True))
    untested = slice(1, rounds - 1)  # the first round loads and records, the last one has the test
    middle = sorted(walls[untested])[len(walls[untested]) // 2]
    return {
        "method": method,
        "clients": clients,
        "rounds": rounds,
        "start_seconds": ends[0][0] - began,
        "first_round_seconds": walls[0],
        "round_seconds": middle,
        "round_cpu_seconds": sorted(cpus[untested])[len(cpus[untested]) // 2],
        "last_round_seconds": walls[-1],
        "total_seconds": total,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "written_mb_per_round": (written[-1] - written[1]) / (rounds - 1) / 1e6,
        "database_mb": size / 1e6,
        "partition_mb": partition / 1e6,
        "tested": result.summary["tested"],
        "load": os.getloadavg()[0],
    }


def _bytes_written() -> float:
    """The bytes that this process has passed to the system in writes: the log and the database both count."""
    path = Path("/proc/self/io")
    lines = dict(line.split(": ") for line in path.read_text().splitlines()) if path.exists() else {}
    return float(lines.get("wchar", "nan"))


def rows_of_table(measured: list[dict[str, Any]]) -> list[str]:
    """The table of docs/performance.md."""
    lines = [
        "| method | clients | rounds | CPU s per round | peak memory, MB | MB written per round | database, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in measured:
        lines.append(
            f"| {run['method']} | {run['clients']:,} | {run['rounds']} | {run['round_cpu_seconds']:.2f} "
            f"| {run['peak_mb']:,.0f} | {run['written_mb_per_round']:.1f} | {run['database_mb']:.0f} |"
        )
    return lines


def draw(measured: list[dict[str, Any]], path: Path) -> None:
    """The curves over the number of clients."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {
        "round_cpu_seconds": "CPU seconds per round",
        "peak_mb": "peak memory, MB",
        "written_mb_per_round": "MB written per round",
    }
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), constrained_layout=True)
    for axis, (key, title) in zip(axes, panels.items(), strict=True):
        for method, mark in zip(METHODS, "os", strict=True):
            runs = [run for run in measured if run["method"] == method and run["rounds"] == ROUNDS]
            axis.plot([run["clients"] for run in runs], [run[key] for run in runs], marker=mark, label=method)
        axis.set(xscale="log", xlabel="clients", title=title, ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=SIZES)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    words = parser.parse_args()
    measured = []
    for method in words.methods:
        for clients in words.clients:
            measured.append(measure(method, clients, words.rounds))
            print(json.dumps(measured[-1]), flush=True)
    print("\n".join(rows_of_table(measured)))
    if words.json:
        words.json.write_text(json.dumps(measured, indent=1) + "\n")
    if words.picture:
        draw(measured, words.picture)


if __name__ == "__main__":
    main()
