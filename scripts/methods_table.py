"""The accuracy and cost of every method on one problem: the table of docs/methods/README.md.

    python scripts/methods_table.py            # write the table again, from docs/results/data/methods.json
    python scripts/methods_table.py --measure  # make the runs first, half an hour on one core

MNIST, 20 clients with about 3 classes each, 30 rounds, one seed, one process. Runs go to runs/methods; finished runs are
not repeated.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from protofed import Config, run
from protofed.experiment.folder import Folder
from protofed.experiment.watchers import Watcher
from protofed.methods import METHODS

RUNS, RECIPE, ROUNDS = Path("runs/methods"), "recipes/fedproto-mnist-n3.toml", 30
DOCS = Path(__file__).parents[1] / "docs"
KEPT, PAGE = DOCS / "results" / "data" / "methods.json", DOCS / "methods" / "README.md"
WAYS = {"by head": "head", "own classes": "head_own", "by prototype": "prototype"}
"""The columns with accuracies, by their names in result.json."""
MARKED = re.compile(r"<!-- methods -->\n.*?<!-- end -->\n", re.DOTALL)


class Clock(Watcher):
    """CPU seconds between the ends of two rounds. The last round, which has the only evaluation, is left out."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def started(self, *_: object) -> None:
        self.round()

    def round(self, *_: object) -> None:
        self.ticks.append(time.process_time())

    @property
    def seconds(self) -> float:
        """The median per round."""
        return median(after - before for before, after in zip(self.ticks[:-2], self.ticks[1:-1], strict=True))


def measured(name: str) -> dict[str, Any]:
    """A method's accuracies, the numbers it sends, and its CPU seconds per round."""
    out, seconds_file = RUNS / name, RUNS / f"{name}.seconds.json"
    if not seconds_file.exists():
        print(f"{out} ...", file=sys.stderr, flush=True)
        shutil.rmtree(out, ignore_errors=True)
        words = [f"method.name={name}", f"run.rounds={ROUNDS}", f"run.eval_every={ROUNDS}", "engine.workers=1"]
        clock = Clock()
        run(Config.load(RECIPE, words), out, watchers=[clock])
        seconds_file.write_text(json.dumps(clock.seconds))
    result = Folder(out).result()
    return {
        "accuracy": {way: result["accuracy"].get(way) for way in WAYS.values()},
        "majority": result["majority"],
        "up": result["cost"]["up_params"],
        "down": result["cost"]["down_params"],
        "seconds": json.loads(seconds_file.read_text()),
    }


def table(kept: dict[str, Any]) -> str:
    """The Markdown table of all methods."""

    def percent(accuracy: dict[str, float] | None) -> str:
        return f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['std']:.1f}" if accuracy else "-"

    lines = [["method", *WAYS, "numbers up", "numbers down", "CPU time"], ["---"] * 7]
    for name, row in kept.items():
        ratio = row["seconds"] / kept["fedavg"]["seconds"]
        ways = [percent(row["accuracy"][way]) for way in WAYS.values()]
        lines.append([name, *ways, f"{row['up']:,.0f}", f"{row['down']:,.0f}", f"{ratio:.1f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_table(text: str) -> str:
    """The page with the table of the kept figures."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    return MARKED.sub(f"<!-- methods -->\n\n{table(kept)}\n\n<!-- end -->\n", text)


def main(words: list[str]) -> None:
    if "--measure" in words:
        KEPT.write_text(json.dumps({name: measured(name) for name in sorted(METHODS)}, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
