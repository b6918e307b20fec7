"""Measure accuracy against epsilon: the table and the figure of docs/privacy.md.

    python benchmarks/privacy.py [--seeds 2] [--json docs/results/data/privacy.json]

Digits (5 clients) and mnist (20 clients with 300 examples each), divided evenly; about 10 minutes on one core, most of
it for DP-SGD. Runs that the JSON file already has are not repeated. The table is printed at the end, and the figure is
written to docs/pictures/privacy.png.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt

import protofed
from protofed import Config
from protofed.pictures.style import COLOURS, MARKS, STYLES
from protofed.trust.privacy.accounting import noise_factor
from protofed.trust.privacy.rules import round_cost

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, math.inf)
DATA = {
    "digits": ["data.clients=5", "partition.name=iid", "privacy.clip=0.5"],
    "mnist": ["data.name=mnist", "data.limit=6000", "data.clients=20", "partition.name=iid", "net.name=cnn"],
}
FROZEN = ["run.rounds=1", "train.epochs=0", "method.pooling=examples", "method.nearest=all", "privacy.encoder=frozen"]
DP_SGD = ["method.name=fedavg", "run.rounds=10", "train.batch=64", "train.lr=0.5", "run.eval_every=10"]
DP_SGD += ["train.momentum=0", "privacy.encoder=dp-sgd", "privacy.examples=280"]
CURVES = {
    "fedproto, frozen random encoder": FROZEN,
    "fedavg, DP-SGD": DP_SGD,
}
ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "results" / "data" / "privacy.json"


def measured(words: list[str], epsilon: float, seed: int) -> dict[str, float]:
    """The noise for a total epsilon, and the accuracy with it on all test examples."""
    frozen = "privacy.encoder=frozen" in words
    key = "privacy.noise" if frozen else "privacy.step_noise"
    config = Config.load(None, [*words, f"run.seed={seed}", f"{key}=1.0"])
    if math.isinf(epsilon):
        noise = 1e-6
    else:
        cost = round_cost(config.method, config.privacy, config.train)
        noise = noise_factor(cost, config.run.rounds, config.privacy, epsilon)
    privacy = replace(config.privacy, **({"noise": noise} if frozen else {"step_noise": noise}))
    result = protofed.run(replace(config, privacy=privacy))
    accuracy = result.summary["accuracy"]["prototype"]["mean"] if frozen else result.summary["global"]["accuracy"]
    return {"noise": noise, "accuracy": accuracy}


def table(kept: dict[str, Any]) -> str:
    """The Markdown table: accuracy in percent, means over seeds."""
    names = [f"{epsilon:g}" if epsilon < math.inf else "no noise" for epsilon in EPSILONS]
    lines = [f"| data | what | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for curve in kept["curves"]:
        cells = " | ".join(f"{100 * mean(values):.1f}" for values in curve["accuracy"])
        lines.append(f"| {curve['data']} | {curve['name']} | {cells} |")
    return "\n".join(lines)


def draw(kept: dict[str, Any], path: Path) -> None:
    """Accuracy along epsilon, one panel per dataset."""
    figure, axes = plt.subplots(1, len(DATA), figsize=(6.8, 2.6), sharey=True)
    for axis, data in zip(axes, DATA, strict=True):
        for curve in (curve for curve in kept["curves"] if curve["data"] == data):
            accuracies = [100 * mean(values) for values in curve["accuracy"]]
            style = list(CURVES).index(curve["name"])
            look = {"color": COLOURS[style], "marker": MARKS[style], "linestyle": STYLES[style], "markersize": 4}
            axis.plot(EPSILONS[:-1], accuracies[:-1], label=curve["name"], **look)
            axis.axhline(accuracies[-1], color=COLOURS[style], linewidth=0.6, linestyle=":")
        axis.set(title=data, xscale="log", xlabel="epsilon (total, delta = 1e-5)", ylim=(0, 100))
        axis.set_xticks(EPSILONS[:-1], [f"{epsilon:g}" for epsilon in EPSILONS[:-1]])
        axis.minorticks_off()
    axes[0].set_ylabel("accuracy in %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=7)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, default=KEPT)
    parser.add_argument("--only-draw", action="store_true")
    options = parser.parse_args()
    kept = json.loads(options.json.read_text()) if options.json.exists() else {"curves": []}
    for data, base in DATA.items():
        for name, words in CURVES.items():
            if options.only_draw or any((curve["data"], curve["name"]) == (data, name) for curve in kept["curves"]):
                continue
            rows = [[measured([*base, *words], e, seed) for seed in range(options.seeds)] for e in EPSILONS]
            curve = {
                "data": data,
                "name": name,
                "epsilon": ["inf" if math.isinf(epsilon) else epsilon for epsilon in EPSILONS],
                "noise": [row[0]["noise"] for row in rows],
                "accuracy": [[run["accuracy"] for run in row] for row in rows],
            }
            kept["curves"].append(curve)
            options.json.write_text(json.dumps(kept, indent=1) + "\n")
            print(data, name, [round(mean(values), 3) for values in curve["accuracy"]], flush=True)
    draw(kept, ROOT / "docs" / "pictures" / "privacy.png")
    print(table(kept))


if __name__ == "__main__":
    main()
