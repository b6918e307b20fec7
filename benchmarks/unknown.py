"""Measure the rules for unknown inputs: the table of docs/own-data.md.

    python benchmarks/unknown.py [--seeds 3] [--json docs/results/data/unknown.json]

Five methods on digits and mnist, 20 clients with about three classes each, several seeds; about 15 minutes on one core.
Runs that the JSON file already has are not repeated. The table is printed at the end.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

import protofed
from protofed import Config

METHODS = ("fedproto", "local", "fedavg", "fednh", "mpfedcl")
SETTINGS = {
    "digits": ["run.rounds=35"],
    "mnist": [
        "run.rounds=20",
        "data.name=mnist",
        "net.name=cnn",
        "partition.shots=100",
        "partition.test=40",
        "train.batch=32",
        "train.lr=0.02",
        "train.momentum=0.9",
    ],
}
RULES = ("softmax", "energy", "prototype", "server_prototype")
KEPT = Path(__file__).parents[1] / "docs" / "results" / "data" / "unknown.json"


def measured(dataset: str, method: str, seed: int) -> dict[str, Any]:
    """The rows of `protofed measure --what unknown` for one run."""
    words = [*SETTINGS[dataset], f"run.eval_every={35 if dataset == 'digits' else 20}"]
    result = protofed.run(Config.load(None, [*words, f"method.name={method}", f"run.seed={seed}"]))
    return protofed.measure(result, ["unknown"])["unknown"].rows


def table(kept: dict[str, Any]) -> str:
    """The Markdown table: per rule and dataset the AUC by method, and both rates; means over seeds."""
    lines = [
        f"| rule | data | {' | '.join(METHODS)} | false alarms | found |",
        f"|---|---|{'---|' * (len(METHODS) + 2)}",
    ]
    for rule in RULES:
        for dataset in SETTINGS:
            cells = {
                method: [rows[rule] for rows in runs_of(kept, dataset, method) if rule in rows] for method in METHODS
            }
            areas = [f"{mean(row['auc'] for row in rows):.3f}" if rows else "-" for rows in cells.values()]
            rates = [
                f"{100 * mean(row[key] for rows in cells.values() for row in rows):.1f} %"
                for key in ("false_alarms", "found")
            ]
            lines.append(f"| `{rule}` | {dataset} | {' | '.join([*areas, *rates])} |")
    return "\n".join(lines)


def runs_of(kept: dict[str, Any], dataset: str, method: str) -> list[dict[str, Any]]:
    """The rows of all seeds of a method on a dataset."""
    return [rows for name, rows in kept.items() if name.startswith(f"{dataset} {method} ")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=KEPT)
    arguments = parser.parse_args()
    kept = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for seed in range(arguments.seeds):
        for dataset in SETTINGS:
            for method in METHODS:
                name = f"{dataset} {method} {seed}"
                if name not in kept:
                    kept[name] = measured(dataset, method, seed)
                    arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
                    print(name, {rule: round(row["auc"], 3) for rule, row in kept[name].items()}, flush=True)
    print(table(kept))


if __name__ == "__main__":
    main()
