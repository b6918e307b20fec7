"""MP-FedCL compared with its paper: the tables of docs/results/mpfedcl.md.

    python scripts/mpfedcl_table.py [mnist] [domains] [labels] [k] [alpha] [clients] [--encoder FILE]

Without arguments: all of them. mnist: Table VI; domains: Table V on Digit-5 and Office; labels: Tables VI and VII on
Digit-5 and Office; k, alpha, clients: Fig. 5, 8 and 9. All except mnist need an encoder (docs/results/mpfedcl.md says
how to make one). Runs go to runs/mpfedcl, two at a time; finished runs are not repeated.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from series import result_of, two_at_a_time

RUNS = Path("runs/mpfedcl")
SEEDS = (0, 1, 2)
METHODS = {
    "mp": "method.k={k}",
    "sp": 'method.clustering="mean"',
    "dp": 'method.clustering="dbscan" method.k={k}',
    "fedavg": 'method.name="fedavg"',
    "fedprox": 'method.name="fedprox"',
    "fedproto": 'method.name="fedproto" method.nearest="all"',
    "local": 'method.name="local"',
}
WAY = dict.fromkeys(("mp", "sp", "dp", "fedproto"), "prototype")
"""The way of predicting in the paper; the other methods predict by head."""
ROUNDS = {"mp": 60, "sp": 60, "dp": 60, "fedavg": 110, "fedprox": 100, "fedproto": 100, "local": 100}
TABLE5 = {
    "local": {
        "mnist": "47.33",
        "svhn": "16.67",
        "usps": "60.33",
        "synthdigits": "26.33",
        "mnist_m": "20.33",
        "mean": "34.20",
    },
    "fedavg": {
        "mnist": "53.00",
        "svhn": "18.67",
        "usps": "54.67",
        "synthdigits": "36.00",
        "mnist_m": "32.00",
        "mean": "38.87",
    },
    "fedprox": {
        "mnist": "72.00",
        "svhn": "22.33",
        "usps": "71.67",
        "synthdigits": "49.33",
        "mnist_m": "43.67",
        "mean": "51.80",
    },
    "fedproto": {
        "mnist": "88.00",
        "svhn": "25.00",
        "usps": "91.67",
        "synthdigits": "56.67",
        "mnist_m": "48.67",
        "mean": "62.00",
    },
    "mp": {
        "mnist": "91.37",
        "svhn": "26.80",
        "usps": "93.93",
        "synthdigits": "61.00",
        "mnist_m": "51.20",
        "mean": "64.86",
    },
}
TABLE6 = {
    "mnist": {"mp": "79.95", "sp": "79.44", "dp": "78.49", "fedavg": "66.40", "fedprox": "64.85", "fedproto": "33.27"},
    "digit5": {"mp": "67.15", "sp": "57.91", "dp": "53.94", "fedavg": "29.66", "fedprox": "28.51", "fedproto": "60.84"},
    "office": {"mp": "59.07", "sp": "43.11", "dp": "37.22", "fedavg": "24.00", "fedprox": "21.74", "fedproto": "39.79"},
}
TABLE7 = {
    "digit5": {
        "local": "27.60 / 33.60",
        "fedavg": "40.80 / 43.13",
        "fedproto": "49.71 / 63.99",
        "dp": "50.37 / 63.49",
        "sp": "51.86 / 65.49",
        "mp": "53.87 / 65.08",
    },
    "office": {
        "local": "30.89 / 21.47",
        "fedavg": "22.51 / 30.17",
        "fedproto": "36.75 / 46.58",
        "dp": "35.74 / 42.77",
        "sp": "38.44 / 48.88",
        "mp": "42.98 / 49.70",
    },
}
LABELS = 'partition.name="dirichlet" partition.capped=false partition.smallest=10 data.clients=5'
DOMAINS = 'partition.name="by_domain"'
K = {"mnist": 2, "digit5": 4, "office": 4}


class Series:
    """Runs of the recipes with all seeds."""

    def __init__(self, encoder: str) -> None:
        self.encoder = encoder

    def job(self, data: str, method: str, seed: int, split: str, rounds: int, k: int | None = None) -> tuple[Any, ...]:
        """The folder, recipe and words of a run."""
        method_words = METHODS[method].format(k=k or K[data])
        encoded = "" if data == "mnist" else f'data.encoder="{self.encoder}"'
        words = f"{split} run.seed={seed} run.rounds={rounds} run.eval_every={rounds} {method_words} {encoded} engine.workers=1"
        name = "-".join(
            word.partition(".")[2].replace('"', "") for word in f"{split} {method_words} run.rounds={rounds}".split()
        )
        return RUNS / data / name.replace("=", "") / str(seed), f"recipes/mpfedcl-{data}.toml", words

    def run_all(self, jobs: list[tuple[Any, ...]]) -> None:
        two_at_a_time(result_of, jobs)

    def all_seeds(self, data: str, method: str, split: str, rounds: int, k: int | None = None) -> list[dict[str, Any]]:
        """The result.json of every seed."""
        return [result_of(*self.job(data, method, seed, split, rounds, k)) for seed in SEEDS]


def own_and_balanced(results: list[dict[str, Any]], method: str) -> tuple[list[float], list[float]]:
    """Accuracies on the clients' own test sets and on the balanced one, by the method's way of predicting."""
    way = WAY.get(method, "head")
    own = [result["accuracy"][way]["mean"] for result in results]
    if method in ("fedproto", "local"):  # every client has its own model, and the mean over clients counts
        personal = [result["personal"] if way == "head" else result["personal"][way] for result in results]
        return own, [accuracies["all"] for accuracies in personal]
    key = "accuracy" if way == "head" else "prototype"
    return own, [result["global"][key] for result in results]


def mean_and_std(values: list[float]) -> str:
    """Mean and population standard deviation in percent."""
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values):.1f}"


def label_skew(series: Series, data: str, methods: list[str]) -> None:
    """Table VI."""
    split = f"{LABELS} partition.alpha=0.05"
    series.run_all([series.job(data, name, seed, split, ROUNDS[name]) for name, seed in product(methods, SEEDS)])
    print(f"\n{data}, Dirichlet 0.05, 5 clients, seeds 0 to 2 (Table VI)\n")
    print("| method (rounds) | own test sets | balanced test set | balanced, by head | paper |\n|---|---|---|---|---|")
    for name in methods:
        results = series.all_seeds(data, name, split, ROUNDS[name])
        own, balanced = own_and_balanced(results, name)
        head = [result["global"]["accuracy"] or result["personal"]["all"] for result in results]
        cells = " | ".join(map(mean_and_std, (own, balanced, head)))
        print(f"| {name} ({ROUNDS[name]}) | {cells} | {TABLE6[data].get(name, '-')} |")


def domain_skew(series: Series, data: str, methods: list[str]) -> None:
    """Table V and the right half of Table VII, per domain."""
    series.run_all([series.job(data, name, seed, DOMAINS, ROUNDS[name]) for name, seed in product(methods, SEEDS)])
    domains = list(series.all_seeds(data, "mp", DOMAINS, 60)[0]["domains"])
    print(f"\n{data}, one client per domain, seeds 0 to 2 (Tables V and VII); the paper's in brackets\n")
    print(f"| method (rounds) | {' | '.join(domains)} | mean |\n|---{'|---' * (len(domains) + 1)}|")
    for name in methods:
        results, way = series.all_seeds(data, name, DOMAINS, ROUNDS[name]), WAY.get(name, "head")
        ours = {domain: mean_and_std([result["domains"][domain][way] for result in results]) for domain in domains}
        ours["mean"] = mean_and_std(own_and_balanced(results, name)[0])
        office = {"mean": TABLE7["office"].get(name, "- / ").split(" / ")[1]}
        paper = TABLE5.get(name, {}) if data == "digit5" else office
        cells = [f"{cell} ({paper[domain]})" if paper.get(domain) else cell for domain, cell in ours.items()]
        print(f"| {name} ({ROUNDS[name]}) | {' | '.join(cells)} |")


def varied(
    series: Series, title: str, data: str, methods: list[str], splits: dict[str, str], k: int | None = None
) -> None:
    """Accuracy on the balanced test set for several splits."""
    every = list(product(methods, SEEDS, splits.values()))
    series.run_all([series.job(data, name, seed, split, ROUNDS[name], k) for name, seed, split in every])
    print(f"\n{data}: {title}\n\n| method (rounds) | {' | '.join(splits)} |\n|---{'|---' * len(splits)}|")
    for name in methods:
        by_split = [series.all_seeds(data, name, split, ROUNDS[name], k) for split in splits.values()]
        cells = [mean_and_std(own_and_balanced(results, name)[1]) for results in by_split]
        print(f"| {name} ({ROUNDS[name]}) | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="mnist, domains, labels, k, alpha, clients")
    parser.add_argument("--encoder", default="runs/encoder.safetensors", help="encoder file for digit5 and office")
    options = parser.parse_args()
    series, every = Series(options.encoder), list(METHODS)
    for what in options.what or ["mnist", "domains", "labels", "k", "alpha", "clients"]:
        if what == "mnist":
            label_skew(series, "mnist", every)
        elif what == "domains":
            for data in ("digit5", "office"):
                domain_skew(series, data, every)
        elif what == "labels":
            half = {"dirichlet 0.5": f"{LABELS} partition.alpha=0.5"}
            for data in ("digit5", "office"):
                label_skew(series, data, every)
                varied(series, "Dirichlet 0.5 (Table VII)", data, every, half)
        elif what == "k":
            for data, k in product(K, (2, 3, 4)):
                split = {f"k = {k}": f"{LABELS} partition.alpha=0.05"}
                varied(series, f"Fig. 5, k = {k}", data, ["mp"], split, k)
        elif what == "alpha":
            splits = {f"alpha {alpha}": f"{LABELS} partition.alpha={alpha}" for alpha in (0.1, 0.2, 0.5, 1.0)}
            for data in ("digit5", "office"):
                varied(series, "Fig. 8", data, ["mp", "sp", "fedavg", "fedproto", "local"], splits)
        elif what == "clients":
            split = f"{LABELS} partition.alpha=0.1".replace("smallest=10", "smallest=2")
            splits = {
                f"{number} clients": split.replace("clients=5", f"clients={number}") for number in (5, 10, 20, 40)
            }
            for data in ("mnist", "digit5"):
                varied(series, "Fig. 9", data, ["mp", "fedavg", "fedproto"], splits)
        else:
            raise SystemExit(f'There is no table "{what}". Choose from mnist, domains, labels, k, alpha, clients.')


if __name__ == "__main__":
    main()
