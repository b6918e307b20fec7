"""Prototype-guided aggregation compared with its paper: the tables and pictures of docs/results/protomargin.md.

    python scripts/protomargin_table.py [table2] [table3] [table4] [pictures]

Without arguments: all four. Each run is measured every 20 rounds and writes a small file to runs/protomargin; runs with
a file are not repeated. An hour on two cores.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from series import two_at_a_time

from protofed import Config
from protofed.core import Prototypes, cross_entropy
from protofed.engines.threads import one_thread
from protofed.examples import Examples
from protofed.experiment.folder import write_atomically
from protofed.experiment.members import Members
from protofed.experiment.roster import draw_roster
from protofed.experiment.run import resolve_engine
from protofed.experiment.runner import Runner
from protofed.measures.discrepancy import bandwidth, feature_discrepancy, gradient_dissimilarity, mean_mmd
from protofed.methods.parts.margins import aggregate_mean_margin
from protofed.pictures import bands

RUNS, PICTURES = Path("runs/protomargin"), Path("docs/pictures")
EVERY, LAST = 20, 20
SMALLER = {
    "synthetic": 'train.epochs=3 train.batch=128 data.name="synthetic"',
    "mnist": 'train.epochs=3 data.limit=10000 net.name="mlp" net.hidden=[128] net.dim=64 partition.name="power_law" partition.smallest=2 eval.test="dataset"',
}
"""The paper's Table 1 has 20 epochs, and for MNIST all images and a CNN. The paper does not give batch sizes. These runs
do not have the data and the partition of the recipes, which are FedProx's."""
METHODS = {
    "fedavg (drop)": 'method.name="fedavg" system.late="drop"',
    "fedavg (keep)": 'method.name="fedavg"',
    "fedprox": 'method.name="fedprox" method.mu=MU',
    "protomargin": "",
}
MU = {"synthetic": "0.1", "mnist": "1.0"}
ABLATIONS = {
    "fedavg": METHODS["fedavg (drop)"],
    "fairness": 'method.name="fedavg" method.weights="equal" system.late="drop"',
    "fairness, sampling i.i.d.": 'method.name="fedavg" method.weights="equal" system.late="drop" run.sampling="uniform"',
    "fedavg + toleration": METHODS["fedavg (keep)"],
    "fairness + toleration": 'method.name="fedavg" method.weights="equal"',
    "protomargin, no toleration": 'system.late="drop"',
    "protomargin, minus d+ only": 'method.exponent="distance"',
    "protomargin, aggregate margin only": 'method.margins="aggregate"',
    "protomargin, local margin only": 'method.margins="local"',
    "protomargin": "",
}
PAPER2 = {
    "synthetic": {
        "fedavg (drop)": "72.3 ± 2.6, 0.41",
        "fedprox": "74.8 ± 1.6, 0.37",
        "protomargin": "78.7 ± 0.2, 0.36",
    },
    "mnist": {"fedavg (drop)": "88.8 ± 3.8, 0.39", "fedprox": "91.7 ± 0.2, 0.30", "protomargin": "93.3 ± 0.2, 0.18"},
}
PAPER3 = (
    "92.7 88.7 85.1",
    "92.8 89.9 86.5",
    "92.5 88.4 84.9",
    "92.7 90.2 89.1",
    "92.8 91.2 90.6",
    "93.5 90.8 88.1",
    "92.8 92.4 92.1",
    "93.0 92.7 92.6",
    "91.9 91.0 90.6",
    "93.5 93.4 93.1",
)
PAPER4 = {
    "synthetic": {"fedavg (drop)": "0.45", "fedprox": "0.48, 61.9", "protomargin": "0.63, 64.5"},
    "mnist": {"fedavg (drop)": "2.38", "fedprox": "2.14, 5.9", "protomargin": "2.49, 7.7"},
}
CENTRAL = {"synthetic": "0.60 (78.5 %)", "mnist": "8.68 (99.0 %)"}
SLOW, SEEDS = (0.0, 0.5, 0.8), (0, 1, 2)


def changes(data: str, method: str, slow: float, seed: int) -> str:
    """The changes to the recipe. Without slow clients system.late has no effect and is left out."""
    method = method.replace('system.late="drop"', "") if not slow else method
    return f"{SMALLER[data]} system.slow={slow} run.seed={seed} {method.replace('MU', MU[data])}".strip()


def figures(data: str, words: str) -> dict[str, Any]:
    """The figures of a run over its rounds, from its file; it is run if the file is missing."""
    config = Config.load(f"recipes/protomargin-{data}.toml", [*words.split(), "run.eval_every=220"])
    file = RUNS / f"{data}-{config.digest()[:16]}.json"
    if not file.exists():
        print(f"{data} {words} ...", file=sys.stderr, flush=True)
        with one_thread():
            measured = measure(config, torch.tensor(central(data, config.run.seed)["features"]))
        write_atomically(file, json.dumps(measured).encode())
    return json.loads(file.read_text())


def make_runner(config: Config) -> Runner:
    members = Members.of(config)
    return Runner(resolve_engine(config.with_clients(len(members)), members), members, None)


def central(data: str, seed: int) -> dict[str, Any]:
    """A model trained on all data in one place: its accuracy, its margin, and Q of Eq. (16), features of 1,000 examples."""
    smaller = [word for word in SMALLER[data].split() if not word.startswith("partition.")]
    words = f'system.slow=0.0 run.seed={seed} run.rounds=20 run.sample=1.0 method.name="fedavg" partition.name="pooled" data.clients=1 run.eval_every=20'
    config = Config.load(f"recipes/protomargin-{data}.toml", [*smaller, *words.split()])
    file = RUNS / f"{data}-central-{config.digest()[:16]}.json"
    if not file.exists():
        print(f"{data}, central, seed {seed} ...", file=sys.stderr, flush=True)
        runner = make_runner(config)
        runner.go()
        net, params, everything = runner.members.nets[0], runner.server.params, runner.members.train[0]
        sample = everything.subset(np.random.RandomState(seed).permutation(len(everything))[:1000])
        model = {
            "accuracy": runner.rounds[-1]["accuracy_global"],
            "between": aggregate_mean_margin(Prototypes.of(*net.features(params, everything), net.classes)),
            "features": net.features(params, sample)[0].tolist(),
        }
        write_atomically(file, json.dumps(model).encode())
    return json.loads(file.read_text())


def measure(config: Config, centre: torch.Tensor) -> dict[str, Any]:
    """Run the experiment and measure the server's model every 20 rounds. `centre`: features of the central model."""
    runner = make_runner(config)
    members, net = runner.members, runner.members.nets[0]
    everything = pooled(members)
    measured: dict[str, Any] = {key: [] for key in ("round", "accuracy", "between", "dissimilarity", "mmd")}
    measured |= {"loss": [], "attention": [], "sizes": []}
    for number in range(config.run.rounds):
        row = runner.one_round(number)
        measured["loss"].append(row["loss"].get("supervised"))
        measured["attention"].append(row.get("attention"))
        measured["sizes"].append([len(members.train[client]) for client in row["clients"]])
        if (number + 1) % EVERY == 0:
            params = runner.server.params
            sampled = [members.train[client] for client in draw_roster(runner.config, members, number).sampled]
            measured["round"].append(number + 1)
            measured["accuracy"].append(runner.server_columns()["accuracy_global"])
            measured["between"].append(
                aggregate_mean_margin(Prototypes.of(*net.features(params, everything), net.classes))
            )
            measured["dissimilarity"].append(gradient_dissimilarity(net, params, members.train[:100], cross_entropy))
            features = [net.features(params, train)[0][:500] for train in sampled]
            measured["mmd"].append(mean_mmd(features, centre, bandwidth(centre)))
    return measured


def pooled(members: Members) -> Examples:
    """The training examples of all clients."""
    first = members.train[0]
    return Examples(
        first.x, first.y, torch.cat([train.index for train in members.train]), first.scale, first.mean, first.std
    )


def final_accuracy_and_loss(run: dict[str, Any]) -> tuple[float, float]:
    """Accuracy and training loss, over the last rounds."""
    losses = [value for value in run["loss"][-LAST:] if value is not None]
    return float(np.mean(run["accuracy"][-LAST // EVERY :])), float(np.mean(losses))


def all_runs(data: str, method: str) -> dict[tuple[float, int], dict[str, Any]]:
    """The figures of a method's runs, by share of slow clients and seed."""
    return {(slow, seed): figures(data, changes(data, method, slow, seed)) for slow, seed in product(SLOW, SEEDS)}


def mean_and_std(values: list[float], digits: int = 1) -> str:
    """Mean and population standard deviation."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}"


def table2() -> None:
    for data in SMALLER:
        print(f"\n{data}: accuracy (%) and training loss, seeds 0 to 2\n")
        print("| method | slow 0 | 0.5 | 0.8 | all | loss | paper |\n|---|---|---|---|---|---|---|")
        for name, method in METHODS.items():
            runs = all_runs(data, method)
            loss = [float(np.mean([final_accuracy_and_loss(runs[slow, seed])[1] for seed in SEEDS])) for slow in SLOW]
            print(f"| {name} | {accuracies(runs)} | {mean_and_std(loss, 2)} | {PAPER2[data].get(name, '-')} |")


def accuracies(runs: dict[tuple[float, int], dict[str, Any]]) -> str:
    """A cell per share of slow clients, over seeds, and one for all shares: the means over seeds, over shares."""
    by_slow = [[100 * final_accuracy_and_loss(runs[slow, seed])[0] for seed in SEEDS] for slow in SLOW]
    return f"{' | '.join(map(mean_and_std, by_slow))} | {mean_and_std([float(np.mean(values)) for values in by_slow])}"


def table3() -> None:
    print(
        "\nmnist: accuracy (%), seeds 0 to 2\n\n| method | slow 0 | 0.5 | 0.8 | all | paper |\n|---|---|---|---|---|---|"
    )
    for (name, method), paper in zip(ABLATIONS.items(), PAPER3, strict=True):
        print(f"| {name} | {accuracies(all_runs('mnist', method))} | {paper} |")


def table4() -> None:
    for data in SMALLER:
        print(f"\n{data}: margin, MMD and FFD of the last model, over slow and seeds\n")
        print("| method | margin | MMD | FFD, % | paper: margin, FFD |\n|---|---|---|---|---|")
        by_method = {name: all_runs(data, method) for name, method in METHODS.items()}
        base = float(np.mean([run["mmd"][-1] for run in by_method["fedavg (drop)"].values()]))
        for name, runs in by_method.items():
            margins, mmd = ([run[key][-1] for run in runs.values()] for key in ("between", "mmd"))
            gain = f"{feature_discrepancy(float(np.mean(mmd)), base):.1f}" if name != "fedavg (drop)" else "-"
            print(
                f"| {name} | {mean_and_std(margins, 2)} | {mean_and_std(mmd, 3)} | {gain} | {PAPER4[data].get(name, '-')} |"
            )
        models = [central(data, seed) for seed in SEEDS]
        accuracy = mean_and_std([100 * model["accuracy"] for model in models])
        margin = mean_and_std([model["between"] for model in models], 2)
        print(f"| central, {accuracy} % | {margin} | | | {CENTRAL[data]} |")


def pictures() -> None:
    """Fig. 2 to 4: mean and band over shares of slow clients and seeds; Fig. S2: the distribution of attention."""
    kinds = {
        "accuracy": "accuracy",
        "dissimilarity": "gradient dissimilarity",
        "between": "aggregate mean margin",
        "mmd": "MMD to a central model",
    }
    panels = []
    for data in SMALLER:
        by_method = {name: list(all_runs(data, method).values()) for name, method in METHODS.items()}
        rounds = by_method["protomargin"][0]["round"]
        for key, title in kinds.items():
            curves = {name: np.array([run[key] for run in runs]) for name, runs in by_method.items()}
            panels.append(bands.BandPanel(f"{data}: {title}", rounds, curves, log_y=key == "dissimilarity"))
        losses = {name: np.array([smooth(run["loss"]) for run in runs]) for name, runs in by_method.items()}
        panels.append(bands.BandPanel(f"{data}: training loss", range(1, 221), losses))
    bands.write_bands(panels, PICTURES / "protomargin-curves.png", columns=5)
    attention()


def smooth(values: list[float | None]) -> np.ndarray:
    """The moving average over a tenth of the rounds; rounds without clients are interpolated."""
    present = [(position, value) for position, value in enumerate(values) if value is not None]
    filled = np.interp(range(len(values)), *np.array(present).T)
    before = np.concatenate([[0.0], np.cumsum(filled)])
    first = np.maximum(np.arange(1, len(values) + 1) - LAST, 0)
    return (before[1:] - before[first]) / (np.arange(1, len(values) + 1) - first)


def attention() -> None:
    """The distributions of protomargin's weights and of shares by size."""
    picture, axes = plt.subplots(1, 2, figsize=(7, 2.6))
    for axis, data in zip(axes, SMALLER, strict=True):
        runs = list(all_runs(data, "").values())
        weights = np.concatenate([np.array(row) for run in runs for row in run["attention"][1:] if row])
        shares = np.concatenate([np.array(row) / sum(row) for run in runs for row in run["sizes"][1:] if sum(row)])
        for values, name, colour in ((shares, "fedavg, by size", "#d55e00"), (weights, "protomargin", "#0072b2")):
            axis.hist(values, np.linspace(0, 0.6, 61), density=True, alpha=0.6, color=colour, label=name)
        print(
            f"\n{data}: the standard deviation of attention is {weights.std():.4f}, that of shares by size {shares.std():.4f}"
        )
        axis.set(xlabel=f"weight of a client, {data}", ylabel="density", yscale="log")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    picture.tight_layout()
    picture.savefig(PICTURES / "protomargin-attention.png", dpi=150)


def main(tables: list[str]) -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    jobs = {}
    for data, seed in product(SMALLER, SEEDS):
        rows = METHODS if set(tables) - {"table3"} else {}
        rows = {**rows, **ABLATIONS} if "table3" in tables and data == "mnist" else rows
        if rows:
            central(data, seed)
        jobs |= {(data, changes(data, method, slow, seed)): None for slow, method in product(SLOW, rows.values())}
    two_at_a_time(figures, list(jobs))
    for table in tables:
        {"table2": table2, "table3": table3, "table4": table4, "pictures": pictures}[table]()


if __name__ == "__main__":
    main(sys.argv[1:] or ["table2", "table3", "table4", "pictures"])
