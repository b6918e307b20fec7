"""FedNH beside its paper and its authors' code, on the cifar10 subset: the tables of docs/results/fednh.md.

    python scripts/fednh_table.py [table1] [protocol] [rho]

Without a word: all three. Runs go to runs/fednh; what is finished there is not run again. About three hours on two cores.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from series import finished, two_at_a_time

from protofed.experiment.folder import Folder
from protofed.measures.intervals import Interval

RUNS, RECIPE = Path("runs/fednh"), "recipes/fednh-cifar10.toml"
METHODS = {
    "fednh": "",
    "fedavg": "method.name=fedavg",
    "fedproto": "method.name=fedproto method.pull=0.1",
    "local": "method.name=local",
}
PAPER = {
    "fednh": "69.01 / 65.02 / 84.63 ± 5.61",
    "fedavg": "66.40 / 63.10 / 84.08 ± 6.80",
    "fedproto": "- / 41.48 / 68.35 ± 11.03",
    "local": "- / 42.79 / 71.57 ± 10.13",
}
AS_THE_CODE = "run.rounds=40 run.eval_every=1 eval.clients=round"
CODE = {
    "fednh": "method.initial=orthonormal method.weights=count method.unit_means=true",
    "fedavg": "method.name=fedavg method.weights=equal",
}


def column(results: list[dict[str, Any]], *keys: str) -> str:
    """A figure over seeds."""
    values: Any = results
    for key in keys:
        values = [value[key] for value in values]
    return "-" if None in values else Interval.of(values).percent()


def table1(seeds: range = range(3)) -> None:
    jobs = {
        (name, seed): (RUNS / f"{name}-{seed}", RECIPE, f"run.seed={seed} run.eval_every=60 engine.workers=1 {words}")
        for seed, (name, words) in product(seeds, METHODS.items())
    }
    two_at_a_time(finished, list(jobs.values()))
    print(
        "\n| method | GM | PM(V) | PM(L) | spread of PM(L) over clients | all | paper: GM / PM(V) / PM(L) |\n|---|---|---|---|---|---|---|"
    )
    every = {}
    for name in METHODS:
        results = every[name] = [finished(*jobs[name, seed]) for seed in seeds]
        ways = {", by head": (), ", by prototype": ("prototype",)} if name == "fedproto" else {"": ()}
        for told, way in ways.items():
            cells = [column(results, "personal", *way, key) for key in ("v", "l", "l_std", "all")]
            shared = column(results, "global", "accuracy")
            paper = PAPER[name] if told != ", by head" else ""
            print(f"| {name}{told} | {shared} | {' | '.join(cells)} | {paper} |")
    print("\n| | GM | PM(V) | PM(L) |\n|---|---|---|---|")
    for ours, theirs in (("fednh", "fedavg"), ("fednh", "local"), ("fedavg", "local"), ("fedproto", "local")):
        cells = [
            difference(every[ours], every[theirs], *keys)
            for keys in (("global", "accuracy"), ("personal", "v"), ("personal", "l"))
        ]
        print(f"| {ours} - {theirs} | {' | '.join(cells)} |")


def difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], section: str, key: str) -> str:
    """How much better, seed by seed."""
    pairs = [(a[section][key], b[section][key]) for a, b in zip(ours, theirs, strict=True)]
    return "" if any(None in pair for pair in pairs) else Interval.of([a - b for a, b in pairs]).percent("+")


def protocol() -> None:
    print("\n| method (seed) | GM, last round (mean of 38-40) | PM(V) | PM(L) |\n|---|---|---|---|")
    for name, words in CODE.items():
        for seed in (0, 1):
            out = RUNS / f"code-{name}-{seed}"
            found = finished(out, RECIPE, f"run.seed={seed} {AS_THE_CODE} {words}")
            late = np.mean([row["accuracy_global"] for row in Folder(out).rounds()[-3:]])
            own = found["personal"]
            print(
                f"| {name} ({seed}) | {found['global']['accuracy']:.3f} ({late:.3f}) | {own['v']:.3f} | {own['l']:.3f} |"
            )


def rho() -> None:
    print("\n| rho | GM | PM(V) | PM(L) |\n|---|---|---|---|")
    for value in (0.1, 0.3, 0.5, 0.7, 0.9):
        found = finished(RUNS / f"rho-{value}", RECIPE, f"method.rho={value} run.rounds=30")
        cells = (found["global"]["accuracy"], found["personal"]["v"], found["personal"]["l"])
        print(f"| {value} | {' | '.join(f'{100 * cell:.1f}' for cell in cells)} |")


if __name__ == "__main__":
    for word in sys.argv[1:] or ["table1", "protocol", "rho"]:
        {"table1": table1, "protocol": protocol, "rho": rho}[word]()
