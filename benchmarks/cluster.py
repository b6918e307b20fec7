"""Compares two workers of Ray on this machine with two processes of the pool: seconds per round, start-up and memory.

`python benchmarks/cluster.py --json FILE` needs `protofed[ray]`. Each engine has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import time
from pathlib import Path
from typing import Any

ROUNDS = 10
ENGINES: dict[str, dict[str, Any]] = {"pool": {"name": "auto", "workers": 2}, "ray": {"name": "ray", "workers": 2}}


def table(engine: dict[str, Any]) -> dict[str, Any]:
    """20 clients of digits per round: almost no work, so that the engine's own costs are seen."""
    run = {"rounds": ROUNDS, "sample": 20, "eval_every": ROUNDS}
    return {"run": run, "data": {"clients": 40}, "partition": {"name": "iid"}, "train": {"batch": 8}, "engine": engine}


def measured(name: str) -> dict[str, Any]:
    """The figures of one engine."""
    import protofed

    memory: list[float] = []

    class Observer(protofed.Watcher):
        def round(self, row: Any) -> None:
            memory.append(_memory_of_all())

    before, began = _memory_of_all(), time.perf_counter()
    result = protofed.run(table(ENGINES[name]), watchers=[Observer()])
    total = time.perf_counter() - began
    seconds = [row["seconds"] for row in result.rounds]
    return {
        "round_seconds": sorted(seconds[1:-1])[(len(seconds) - 2) // 2],
        "start_seconds": total - sum(seconds[1:]),
        "memory_mb": max(memory) - before,
        "loss": result.summary["loss"],
        "load": os.getloadavg()[0],
    }


def _memory_of_all() -> float:
    """The memory of this process and its descendants, and of Ray's processes, in MB; shared pages count once each."""
    lines = subprocess.run(["ps", "-eo", "pid,ppid,args"], check=True, capture_output=True, text=True).stdout
    rows = [line.split(None, 2) for line in lines.splitlines()[1:]]
    family, grown = {os.getpid()}, True
    while grown:
        found = {int(pid) for pid, parent, *_ in rows if int(parent) in family}
        grown, family = not found <= family, family | found
    return sum(_proportional(pid) for pid in family)


def _proportional(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    found = {}
    for name in ENGINES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(_in_child, (name,))
        print(name, json.dumps(found[name]), flush=True)
    assert found["pool"]["loss"] == found["ray"]["loss"]
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n")


def _in_child(name: str) -> dict[str, Any]:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it starts workers
    return measured(name)


if __name__ == "__main__":
    main()
