"""The accuracy and cost of every method on one problem: the table of docs/methods/README.md.

    python scripts/methods_table.py [METHOD ...]

Without names: all methods. MNIST, 20 clients with about 3 classes each, 30 rounds, one seed, one process. Runs go to
runs/methods; finished runs are not repeated. Half an hour on one core.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from statistics import median

from protofed import Config, run
from protofed.experiment.folder import Folder
from protofed.experiment.watchers import Watcher
from protofed.methods import METHODS

RUNS, RECIPE, ROUNDS = Path("runs/methods"), "recipes/fedproto-mnist-n3.toml", 30


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


def measured(name: str) -> tuple[dict, float]:
    """A method's result.json, and its CPU seconds per round."""
    out, seconds_file = RUNS / name, RUNS / f"{name}.seconds.json"
    if not seconds_file.exists():
        print(f"{out} ...", file=sys.stderr, flush=True)
        shutil.rmtree(out, ignore_errors=True)
        words = [f"method.name={name}", f"run.rounds={ROUNDS}", f"run.eval_every={ROUNDS}", "engine.workers=1"]
        clock = Clock()
        run(Config.load(RECIPE, words), out, watchers=[clock])
        seconds_file.write_text(json.dumps(clock.seconds))
    return Folder(out).result(), json.loads(seconds_file.read_text())


def percent(accuracy: dict | None) -> str:
    """The mean and standard deviation over clients."""
    return f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['std']:.1f}" if accuracy else "-"


def main(names: list[str]) -> None:
    print("| method | by head | by prototype | numbers up | numbers down | CPU s |\n|---|---|---|---|---|---|")
    for name in names:
        result, seconds = measured(name)
        accuracy, cost = result["accuracy"], result["cost"]
        cells = percent(accuracy.get("head")), percent(accuracy.get("prototype"))
        print(
            f"| {name} | {' | '.join(cells)} | {cost['up_params']:,.0f} | {cost['down_params']:,.0f} | {seconds:.2f} |"
        )


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(METHODS))
