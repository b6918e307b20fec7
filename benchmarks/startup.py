"""Measure how long `protofed --help` and the first round of digits take: the section Start-up of docs/performance.md.

    python benchmarks/startup.py [--turns 5] [--json docs/results/data/startup.json]

The commands take turns; CPU and wall seconds of each are kept, and the median counts. Less than a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[1] / "docs" / "results" / "data" / "startup.json"
COMMANDS = {
    "protofed --help": ["-m", "protofed", "--help"],
    "import torch": ["-c", "import torch"],
    "protofed run --set run.rounds=1": ["-m", "protofed", "run", "--set", "run.rounds=1"],
}


def measured(words: list[str]) -> dict[str, float]:
    """CPU and wall seconds of a Python process with these arguments, in an empty folder."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": round(used, 3), "wall": round(wall, 3)}


def table(kept: dict[str, Any]) -> str:
    """Medians."""
    lines = ["| command | CPU s | wall s |", "|---|---|---|"]
    for name, runs in kept["runs"].items():
        cpu, wall = (statistics.median(run[kind] for run in runs) for kind in ("cpu", "wall"))
        lines.append(f"| `{name}` | {cpu:.2f} | {wall:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, default=KEPT)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in COMMANDS}
    for words in COMMANDS.values():
        measured(words)  # so that files are in memory
    for _ in range(options.turns):
        for name, words in COMMANDS.items():
            runs[name].append(measured(words))
    kept = {"load": os.getloadavg()[0], "runs": runs}
    options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(table(kept))


if __name__ == "__main__":
    main()
