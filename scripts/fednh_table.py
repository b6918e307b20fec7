"""FedNH compared with its paper and its authors' code, on the cifar10 subset: the tables of docs/results/fednh.md.

    python scripts/fednh_table.py [table1] [protocol] [rho]

Without arguments: all three. Runs go to runs/fednh; finished runs are not repeated. About three hours on two cores.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from series import result_of, two_at_a_time

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
AUTHORS_PROTOCOL = "run.rounds=40 run.eval_every=1 eval.clients=round"
AUTHORS_METHODS = {
    "fednh": "method.initial=orthonormal method.weights=count method.unit_means=true",
    "fedavg": "method.name=fedavg method.weights=equal",
}


def column(results: list[dict[str, Any]], *keys: str) -> str:
    """The mean of a figure over seeds, with its 95 % interval."""
    values: Any = results
    for key in keys:
        values = [value[key] for value in values]
    return "-" if None in values else Interval.of(values).percent()


def table1(seeds: range = range(3)) -> None:
    """Four methods on the subset with 60 rounds, and their differences."""
    jobs = {
        (name, seed): (RUNS / f"{name}-{seed}", RECIPE, f"run.seed={seed} run.eval_every=60 engine.workers=1 {words}")
        for seed, (name, words) in product(seeds, METHODS.items())
    }
    two_at_a_time(result_of, list(jobs.values()))
    print(
        "\n| method | GM | PM(V) | PM(L) | spread of PM(L) over clients | all | paper: GM / PM(V) / PM(L) |\n|---|---|---|---|---|---|---|"
    )
    by_method = {}
    for name in METHODS:
        results = by_method[name] = [result_of(*jobs[name, seed]) for seed in seeds]
        ways = {", by head": (), ", by prototype": ("prototype",)} if name == "fedproto" else {"": ()}
        for suffix, way in ways.items():
            cells = [column(results, "personal", *way, key) for key in ("v", "l", "l_std", "all")]
            server = column(results, "global", "accuracy")
            paper = PAPER[name] if suffix != ", by head" else ""
            print(f"| {name}{suffix} | {server} | {' | '.join(cells)} | {paper} |")
    print("\n| | GM | PM(V) | PM(L) |\n|---|---|---|---|")
    for first, second in (("fednh", "fedavg"), ("fednh", "local"), ("fedavg", "local"), ("fedproto", "local")):
        cells = [
            difference(by_method[first], by_method[second], *keys)
            for keys in (("global", "accuracy"), ("personal", "v"), ("personal", "l"))
        ]
        print(f"| {first} - {second} | {' | '.join(cells)} |")


def difference(first: list[dict[str, Any]], second: list[dict[str, Any]], section: str, key: str) -> str:
    """The mean difference of a figure on the same seeds, with its 95 % interval."""
    pairs = [(a[section][key], b[section][key]) for a, b in zip(first, second, strict=True)]
    return "" if any(None in pair for pair in pairs) else Interval.of([a - b for a, b in pairs]).percent("+")


def protocol() -> None:
    """Nearly the protocol of the authors' code, with two seeds."""
    print("\n| method (seed) | GM, last round (mean of 38-40) | PM(V) | PM(L) |\n|---|---|---|---|")
    for name, words in AUTHORS_METHODS.items():
        for seed in (0, 1):
            out = RUNS / f"code-{name}-{seed}"
            result = result_of(out, RECIPE, f"run.seed={seed} {AUTHORS_PROTOCOL} {words}")
            last_three = np.mean([row["accuracy_global"] for row in Folder(out).rounds()[-3:]])
            server, personal = result["global"]["accuracy"], result["personal"]
            cells = f"{server:.3f} ({last_three:.3f}) | {personal['v']:.3f} | {personal['l']:.3f}"
            print(f"| {name} ({seed}) | {cells} |")


def rho() -> None:
    """Fig. 4: values of rho, with 30 rounds and one seed."""
    print("\n| rho | GM | PM(V) | PM(L) |\n|---|---|---|---|")
    for value in (0.1, 0.3, 0.5, 0.7, 0.9):
        result = result_of(RUNS / f"rho-{value}", RECIPE, f"method.rho={value} run.rounds=30")
        cells = (result["global"]["accuracy"], result["personal"]["v"], result["personal"]["l"])
        print(f"| {value} | {' | '.join(f'{100 * cell:.1f}' for cell in cells)} |")


if __name__ == "__main__":
    for word in sys.argv[1:] or ["table1", "protocol", "rho"]:
        {"table1": table1, "protocol": protocol, "rho": rho}[word]()
