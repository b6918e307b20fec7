"""Compares what `protofed plan` says with three runs: CPU seconds, seconds, memory and disk.

`python benchmarks/plan.py --json FILE` keeps the figures. Every plan and every run has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MNIST = ["data.name=mnist", "data.clients=2000", "partition.name=with_replacement", "net.name=cnn", "train.batch=8"]
RUNS = {
    "digits": ["run.rounds=30"],
    "mnist": [
        *MNIST,
        "method.name=fedavg",
        "run.rounds=15",
        "run.sample=50",
        "eval.clients_sampled=200",
        "run.eval_every=5",
    ],
    "digits-sampled": ["data.clients=40", "partition.name=iid", "train.epochs=3", "run.rounds=25", "run.sample=10"],
}
_PLAN = "import sys; sys.argv = ['protofed', 'plan', '--json', *sys.argv[1:]]; from protofed.cli import entry; entry()"
_RUN = """
import json, os, resource, sys, tempfile, time
from protofed.experiment.config import Config
from protofed.experiment.run import run
config = Config.load(None, sys.argv[1:])
cpu, wall = time.process_time(), time.perf_counter()
with tempfile.TemporaryDirectory() as folder:
    run(config, folder + "/run")
    disk = sum(os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(folder) for name in names)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
print(json.dumps({"cpu": cpu, "wall": wall, "memory": memory, "disk": disk}))
"""


def compared(sets: list[str]) -> dict[str, Any]:
    """What was planned and what was measured for an experiment with these changes."""
    sets = [*sets, "engine.workers=1"]
    words = [word for change in sets for word in ("--set", change)]
    plan = json.loads(_output([sys.executable, "-c", _PLAN, *words]))
    planned = {**plan["total"], "memory": plan["memory"], "disk": plan["disk"]}
    return {"planned": planned, "measured": json.loads(_output([sys.executable, "-c", _RUN, *sets]).splitlines()[-1])}


def _output(words: list[str]) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    found = {}
    for name, sets in RUNS.items():
        found[name] = compared(sets)
        print(name, json.dumps(found[name]), flush=True)
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
